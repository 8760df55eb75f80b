//! Generates the exports of the shared object from the list of symbols: a version script with the
//! nodes, and for each symbol and node an assembler label that jumps to the function behind it.

mod symbol_list;

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use symbol_list::{State, Symbol, Version};

const LIST: &str = "symbols.txt";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={LIST}");
    println!("cargo:rerun-if-changed=symbol_list.rs");
    let symbols = symbol_list::parse(&fs::read_to_string(LIST)?)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let script = out.join("versions.map");
    fs::write(&script, version_script(&symbols))?;
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        script.display()
    );

    // Programs load this library as part of a plugin and may unload the plugin, while the progress
    // thread goes on.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let jump = jump_instruction(&env::var("CARGO_CFG_TARGET_ARCH")?)?;
    fs::write(out.join("exports.rs"), exports(&symbols, jump)?)?;
    Ok(())
}

/// Returns the architecture's instruction for a jump without a return address.
fn jump_instruction(arch: &str) -> Result<&'static str, String> {
    match arch {
        "x86_64" => Ok("jmp"),
        "aarch64" => Ok("b"),
        "riscv64" => Ok("tail"),
        _ => Err(format!(
            "build.rs does not know the jump instruction of {arch}; add it"
        )),
    }
}

/// Returns the version script. It has the nodes only; the symbols carry theirs in their names. Each
/// node of a library inherits from the one before it; the private ones have no parent.
fn version_script(symbols: &[Symbol]) -> String {
    let mut nodes: Vec<&str> = Vec::new();
    for version in symbols.iter().flat_map(|symbol| &symbol.versions) {
        if !nodes.contains(&version.node.as_str()) {
            nodes.push(&version.node);
        }
    }
    let mut script = String::new();
    for (index, node) in nodes.iter().enumerate() {
        let family = node.rsplit_once('_').map_or(*node, |(family, _)| family);
        let parent = nodes[..index].iter().rev().find(|earlier| {
            family != "IBVERBS_PRIVATE"
                && earlier.rsplit_once('_').is_some_and(|(f, _)| f == family)
        });
        let parent = parent.map_or(String::new(), |parent| format!(" {parent}"));
        writeln!(script, "{node} {{ }}{parent};").expect("a string takes every write");
    }
    script
}

/// Returns the functions of unsupported symbols, and the labels of all symbols.
fn exports(symbols: &[Symbol], jump: &str) -> Result<String, Box<dyn Error>> {
    let mut code = String::new();
    for symbol in symbols {
        writeln!(code, "// {} {}", symbol.name, symbol.note)?;
        if symbol.state == State::Data {
            code += &data(symbol)?;
            continue;
        }
        let function = function_name(symbol);
        if let Some((result, shape, errno)) = refusal(&symbol.state) {
            let errno = errno.map_or(String::new(), |errno| format!(", libc::{errno}"));
            writeln!(
                code,
                "extern \"C\" fn {function}(){result} {{ unsupported::{shape}({:?}{errno}) }}",
                symbol.name,
            )?;
        }
        for version in &symbol.versions {
            let label = label(symbol, version);
            writeln!(
                code,
                "::core::arch::global_asm!({:?}, {:?}, {:?}, {:?}, {:?}, {:?}, {:?}, \
                 target = sym {function});",
                ".pushsection .text.urxe_exports, \"ax\", @progbits",
                format!(".globl {label}\n.type {label}, @function"),
                symver(symbol, version),
                format!("{label}:"),
                format!("{jump} {{target}}"),
                format!(".size {label}, . - {label}"),
                ".popsection",
            )?;
        }
    }
    Ok(code)
}

/// Returns the name of the Rust function behind a symbol. It is the symbol's, except for
/// unsupported symbols that only older programs call.
fn function_name(symbol: &Symbol) -> String {
    match symbol.versions.iter().any(|version| version.default) || symbol.state == State::Done {
        true => symbol.name.clone(),
        false => {
            let node = symbol.versions[0].node.to_lowercase().replace('.', "_");
            format!("{}_at_{node}", symbol.name)
        }
    }
}

/// Returns the result type, the function of `unsupported` and the errno of an unsupported symbol.
fn refusal(state: &State) -> Option<(&'static str, &'static str, Option<&str>)> {
    match state {
        State::Errno(errno) => Some((" -> libc::c_int", "errno", Some(errno))),
        State::MinusOne(errno) => Some((" -> isize", "minus1", Some(errno))),
        State::Null(errno) => Some((" -> *mut libc::c_void", "null", Some(errno))),
        State::Zero(errno) => Some((" -> u64", "zero", Some(errno))),
        State::Void => Some(("", "void", None)),
        State::Done | State::Data => None,
    }
}

/// Returns the assembler text of one zero byte under all versions of a symbol.
fn data(symbol: &Symbol) -> Result<String, Box<dyn Error>> {
    let mut asm = String::from(".pushsection .bss.urxe_exports, \"aw\", @nobits\n");
    for version in &symbol.versions {
        let label = label(symbol, version);
        writeln!(
            asm,
            ".globl {label}\n.type {label}, @object\n.size {label}, 1"
        )?;
        writeln!(asm, "{}\n{label}:", symver(symbol, version))?;
    }
    asm += ".zero 1\n.popsection";
    Ok(format!("::core::arch::global_asm!({asm:?});\n"))
}

fn label(symbol: &Symbol, version: &Version) -> String {
    format!("urxe_export.{}.{}", symbol.name, version.node)
}

/// Returns the directive that gives a label its exported name and version. `remove` keeps the label
/// itself out of the object.
fn symver(symbol: &Symbol, version: &Version) -> String {
    let at = if version.default { "@@" } else { "@" };
    format!(
        ".symver {}, {}{at}{}, remove",
        label(symbol, version),
        symbol.name,
        version.node
    )
}
