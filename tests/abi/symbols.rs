//! The exports of the built library: exactly the list, everything that rdma-core's libraries
//! export, and the functions of `docs/SUPPORT.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::library::{self, Library};
use super::require::{have_file, have_program};

#[path = "../../verbs/liburxe/symbol_list.rs"]
mod symbol_list;

use symbol_list::{State, Symbol};

const SUPPORT_PAGE: &str = "docs/SUPPORT.md";

fn list() -> Vec<Symbol> {
    symbol_list::parse(include_str!("../../verbs/liburxe/symbols.txt"))
        .expect("the list is well-formed")
}

fn listed(symbols: &[Symbol]) -> BTreeSet<String> {
    let versions = symbols.iter().flat_map(|symbol| {
        symbol.versions.iter().map(|version| {
            let at = if version.default { "@@" } else { "@" };
            format!("{}{at}{}", symbol.name, version.node)
        })
    });
    versions.collect()
}

/// The dynamic symbols that a library defines, as `readelf` writes them.
fn defined(library: &Path) -> BTreeSet<String> {
    let output = Command::new("readelf")
        .args(["--wide", "--dyn-syms"])
        .arg(library)
        .output()
        .expect("readelf runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("readelf writes UTF-8");
    let mut symbols = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        // Num: Value Size Type Bind Vis Ndx Name
        if let [number, _value, _size, _kind, bind, _visibility, section, name, ..] = words[..]
            && number.trim_end_matches(':').parse::<u32>().is_ok()
            && bind != "LOCAL"
            && section != "UND"
            // The nodes themselves are absolute symbols.
            && section != "ABS"
        {
            symbols.insert(name.to_owned());
        }
    }
    symbols
}

#[test]
fn library_exports_exactly_the_list() {
    if !have_program("readelf", "binutils") {
        return;
    }
    let (exported, listed) = (defined(&library::path()), listed(&list()));
    let missing: Vec<_> = listed.difference(&exported).collect();
    let unlisted: Vec<_> = exported.difference(&listed).collect();
    assert!(
        missing.is_empty() && unlisted.is_empty(),
        "missing {missing:?}, unlisted {unlisted:?}"
    );
    assert!(
        listed.len() > 600,
        "the list has only {} versions",
        listed.len()
    );
}

#[test]
fn every_version_is_found_at_run_time() {
    let library = Library::load(&library::path());
    for symbol in list() {
        for version in &symbol.versions {
            assert!(
                library.symbol_at(&symbol.name, &version.node).is_some(),
                "{} at {}",
                symbol.name,
                version.node
            );
        }
    }
}

#[test]
fn each_name_has_at_most_one_default_version() {
    let mut seen = BTreeSet::new();
    for symbol in list() {
        let defaults = symbol
            .versions
            .iter()
            .filter(|version| version.default)
            .count();
        assert!(defaults <= 1, "{}", symbol.name);
        assert!(
            defaults == 0 || seen.insert(symbol.name.clone()),
            "{} twice",
            symbol.name
        );
    }
}

/// Returns Debian's directory of libraries.
fn system_libraries() -> PathBuf {
    PathBuf::from(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

#[test]
fn library_has_every_symbol_of_rdma_core() {
    if !have_program("readelf", "binutils") {
        return;
    }
    // The default version matters only when programs are linked.
    let plain = |names: BTreeSet<String>| -> BTreeSet<String> {
        names
            .into_iter()
            .map(|name| name.replace("@@", "@"))
            .collect()
    };
    let urxe = plain(defined(&library::path()));
    for (name, package) in [
        ("libibverbs.so.1", "libibverbs1"),
        ("librdmacm.so.1", "librdmacm1"),
        ("libmlx5.so.1", "ibverbs-providers"),
        ("libefa.so.1", "ibverbs-providers"),
    ] {
        let rdma_core = system_libraries().join(name);
        if !have_file(&rdma_core, package) {
            return;
        }
        let rdma_core = plain(defined(&rdma_core));
        let missing: Vec<_> = rdma_core.difference(&urxe).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
        assert!(rdma_core.len() > 5);
    }
}

#[test]
fn programs_and_drivers_of_debian_resolve_against_the_library() {
    if !have_program("ldd", "libc-bin") {
        return;
    }
    let bin = Path::new("/usr/bin");
    let lib = system_libraries();
    let python = Path::new("/usr/lib/python3/dist-packages/pyverbs");
    let users = [
        (bin.join("ibv_rc_pingpong"), "ibverbs-utils"),
        (bin.join("ibv_devinfo"), "ibverbs-utils"),
        (bin.join("ib_write_bw"), "perftest"),
        (bin.join("raw_ethernet_bw"), "perftest"),
        (bin.join("rping"), "rdmacm-utils"),
        (bin.join("rstream"), "rdmacm-utils"),
        (lib.join("libmlx5.so.1"), "ibverbs-providers"),
        (lib.join("libmlx4.so.1"), "ibverbs-providers"),
        (lib.join("libefa.so.1"), "ibverbs-providers"),
        (lib.join("ucx/libuct_ib.so.0"), "libucx0"),
        (lib.join("ucx/libuct_rdmacm.so.0"), "libucx0"),
        (lib.join("libfabric.so.1"), "libfabric1"),
        (python.to_owned(), "python3-pyverbs"),
    ];
    let names = library::under_both_names();
    for (user, package) in users {
        if !have_file(&user, package) {
            continue;
        }
        let files = if user.is_dir() {
            let entries = fs::read_dir(&user).expect("a readable directory");
            entries
                .map(|entry| entry.expect("a readable entry").path())
                .collect()
        } else {
            vec![user]
        };
        for file in files
            .iter()
            .filter(|file| file.extension().is_none_or(|kind| kind != "py"))
        {
            assert_resolves(file, &names);
        }
    }
}

/// Checks that the dynamic linker resolves all symbols of a file with the libraries in `names`.
#[track_caller]
fn assert_resolves(file: &Path, names: &Path) {
    if file.is_dir() {
        return;
    }
    let output = Command::new("ldd")
        .arg("-r")
        .arg(file)
        .env("LD_LIBRARY_PATH", names)
        .output()
        .expect("ldd runs");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let urxe = names.to_string_lossy();
    if !text.contains("libibverbs.so.1 =>") && !text.contains("librdmacm.so.1 =>") {
        return;
    }
    assert!(
        text.contains(&*urxe),
        "{} did not load our library:\n{text}",
        file.display()
    );
    // The interpreter provides Python's symbols to extension modules.
    let wanted = |line: &&str| {
        let symbol = line
            .split_once("undefined symbol: ")
            .map(|(_, symbol)| symbol);
        line.contains("not found")
            || symbol.is_some_and(|symbol| !symbol.starts_with("Py") && !symbol.starts_with("_Py"))
    };
    let unresolved: Vec<_> = text.lines().filter(wanted).collect();
    assert!(unresolved.is_empty(), "{}: {unresolved:#?}", file.display());
}

/// Returns the text of the support page for these symbols.
fn support_page(symbols: &[Symbol]) -> String {
    let mut page = String::from(
        "# What is supported\n\
         \n\
         Every symbol of `liburxe.so`, which serves as `libibverbs.so.1` and as `librdmacm.so.1`, by\n\
         version node. Inline functions of the headers, such as `ibv_post_send`, are not symbols: they\n\
         call through the objects. A symbol that is not implemented returns its error and does\n\
         nothing else.\n\
         \n\
         This page is written from `symbols.txt` and `inline.md` in `verbs/liburxe` by\n\
         `UPDATE=1 cargo test -p urxe-tests --test abi support_page`; a test keeps it true.\n",
    );
    let (drivers, symbols): (Vec<&Symbol>, Vec<&Symbol>) = symbols
        .iter()
        .partition(|symbol| is_of_driver(&symbol.versions[0].node));
    let done = symbols
        .iter()
        .filter(|symbol| symbol.state == State::Done)
        .count();
    writeln!(
        page,
        "\n{done} of {} symbols are implemented.",
        symbols.len()
    )
    .expect("a string");

    let mut nodes: Vec<String> = Vec::new();
    for symbol in &symbols {
        let node = heading(symbol);
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    for node in nodes {
        write!(
            page,
            "\n## {node}\n\n| symbol | state | note |\n|---|---|---|\n"
        )
        .expect("a string");
        for symbol in symbols.iter().filter(|symbol| heading(symbol) == node) {
            let older = symbol.versions.iter().all(|version| !version.default);
            let older = if older { " (older programs)" } else { "" };
            let state = match &symbol.state {
                State::Done => "yes".to_owned(),
                State::Errno(errno) => format!("no: `{errno}`"),
                State::MinusOne(errno) => format!("no: -1, `{errno}`"),
                State::Null(errno) => format!("no: NULL, `{errno}`"),
                State::Zero(errno) => format!("no: 0, `{errno}`"),
                State::Void => "no: does nothing".to_owned(),
                State::Data => "a variable".to_owned(),
            };
            writeln!(
                page,
                "| `{}`{older} | {state} | {} |",
                symbol.name, symbol.note
            )
            .expect("a string");
        }
    }
    write!(
        page,
        "\n## libmlx5 and libefa\n\n\
         Where `libmlx5.so.1` or `libefa.so.1` is not installed, `urxe run` stands in for it, so that\n\
         programs start that are linked with it. Its {} functions refuse: NULL or an error, with\n\
         `EOPNOTSUPP`; no device of urxe's is one of theirs.\n",
        drivers.len()
    )
    .expect("a string");
    page + include_str!("../../verbs/liburxe/inline.md")
}

/// Returns whether a version node belongs to a provider library, such as libmlx5.
fn is_of_driver(node: &str) -> bool {
    node.starts_with("MLX5_") || node.starts_with("EFA_")
}

/// Returns the section of a symbol: its version node. All private nodes have one section.
fn heading(symbol: &Symbol) -> String {
    let node = &symbol.versions[0].node;
    if node.starts_with("IBVERBS_PRIVATE_") {
        "IBVERBS_PRIVATE".to_owned()
    } else {
        node.clone()
    }
}

#[test]
fn support_page_is_the_list() {
    let page = support_page(&list());
    let file = urxe_tests::workspace().join(SUPPORT_PAGE);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &page).expect("the page can be written");
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "{SUPPORT_PAGE} is not what verbs/liburxe/symbols.txt says; \
         UPDATE=1 cargo test -p urxe-tests --test abi support_page writes it anew"
    );
}
