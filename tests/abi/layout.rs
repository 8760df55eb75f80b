//! Sizes, offsets and values: in Rust, in urxe's headers and in Debian's. A C program that is
//! generated from one list of names prints them as the compiler sees them, and Rust must print the
//! same lines.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::layout_cm;
use super::layout_list::{
    CONSTANTS_SINCE_44, NEWER_CONSTANTS, kernel_structures, newer_structures, structures_since_44,
};
use super::require::{SYSTEM_CM_HEADER, SYSTEM_HEADER, have_file, have_program};

/// A structure as Rust lays it out.
pub struct Structure {
    /// `struct` or `union`.
    pub kind: &'static str,
    /// Its name in both languages.
    pub name: &'static str,
    /// The end at which later versions of the ABI extend it.
    pub growth: Growth,
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment in bytes.
    pub alignment: usize,
    /// The path of each member in C, its offset and its size in bytes.
    pub members: Vec<(String, usize, usize)>,
}

/// The end at which later versions extend a structure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Later versions do not extend it.
    Fixed,
    /// At its end.
    AtEnd,
    /// At its front: offsets are compared from the end.
    AtFront,
}

/// Returns the comparable position of a member in a structure that may grow at its front.
fn position(growth: Growth, offset: usize, size: usize) -> usize {
    if growth == Growth::AtFront {
        size - offset
    } else {
        offset
    }
}

macro_rules! growth {
    () => {
        $crate::layout::Growth::Fixed
    };
    (grows) => {
        $crate::layout::Growth::AtEnd
    };
    (from_end) => {
        $crate::layout::Growth::AtFront
    };
}

macro_rules! structures {
    ($($kind:tt $name:ident $(($growth:ident))? { $(
        $first:ident $(. $rest:ident)* $(= $c_first:ident $(. $c_rest:ident)*)?
    ),* $(,)? })*) => {
        vec![$($crate::layout::Structure {
            kind: stringify!($kind),
            name: stringify!($name),
            growth: $crate::layout::growth!($($growth)?),
            size: size_of::<$name>(),
            alignment: align_of::<$name>(),
            members: vec![$((
                $crate::layout::c_path(
                    stringify!($first $(. $rest)*),
                    None $(.or(Some(stringify!($c_first $(. $c_rest)*))))?,
                ),
                core::mem::offset_of!($name, $first $(. $rest)*),
                {
                    let value = core::mem::MaybeUninit::<$name>::uninit();
                    // SAFETY: only the address of the member is taken, and it is inside `value`.
                    $crate::layout::pointee_size(unsafe {
                        &raw const (*value.as_ptr()).$first $(. $rest)*
                    })
                },
            )),*],
        }),*]
    };
}

macro_rules! constants {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as i64)),*] };
}

pub(crate) use {constants, growth, structures};

/// Returns the size of a pointer's target.
pub fn pointee_size<T>(_pointer: *const T) -> usize {
    size_of::<T>()
}

/// Returns a member's path in C: the given one, or else that in Rust.
pub fn c_path(rust: &str, given: Option<&str>) -> String {
    given.unwrap_or(rust).replace("r#", "").replace(' ', "")
}

/// The names that a run compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Since44,
    All,
    Kernel,
    CmSince44,
    CmAll,
}

impl Scope {
    fn structures(self) -> Vec<Structure> {
        match self {
            Self::Since44 => structures_since_44(),
            Self::All => structures_since_44()
                .into_iter()
                .chain(newer_structures())
                .collect(),
            Self::Kernel => kernel_structures(),
            Self::CmSince44 | Self::CmAll => layout_cm::structures_since_44(),
        }
    }

    fn constants(self) -> Vec<(&'static str, i64)> {
        match self {
            Self::Since44 => CONSTANTS_SINCE_44.to_vec(),
            Self::All => [CONSTANTS_SINCE_44, NEWER_CONSTANTS].concat(),
            Self::Kernel => Vec::new(),
            Self::CmSince44 => layout_cm::CONSTANTS_SINCE_44.to_vec(),
            Self::CmAll => [layout_cm::CONSTANTS_SINCE_44, layout_cm::NEWER_CONSTANTS].concat(),
        }
    }

    /// Returns whether both sides of this comparison have the same size of a structure.
    fn has_fixed_size(self, structure: &Structure) -> bool {
        structure.growth == Growth::Fixed || self == Self::All
    }
}

/// Returns the lines that the C program must print.
fn lines_of_rust(scope: Scope) -> String {
    let mut lines = String::new();
    for structure in scope.structures() {
        let Structure {
            name,
            size,
            alignment,
            growth,
            ..
        } = structure;
        if scope.has_fixed_size(&structure) {
            writeln!(lines, "{name}: size {size}, alignment {alignment}").expect("a string");
        }
        for (path, offset, member_size) in &structure.members {
            let at = position(growth, *offset, size);
            writeln!(lines, "{name}.{path}: at {at}, size {member_size}").expect("a string");
        }
    }
    for (name, value) in scope.constants() {
        writeln!(lines, "{name} = {value}").expect("a string");
    }
    lines
}

/// Returns a C program that prints the lines by the headers.
fn c_program(scope: Scope, headers: &[&str]) -> String {
    let mut code = String::new();
    for header in headers {
        writeln!(code, "#include <{header}>").expect("a string");
    }
    code += "#include <stdio.h>\nint main(void) {\n";
    for structure in scope.structures() {
        let name = structure.name;
        let full = format!("{} {name}", structure.kind);
        if scope.has_fixed_size(&structure) {
            writeln!(
                code,
                "printf(\"{name}: size %zu, alignment %zu\\n\", sizeof({full}), _Alignof({full}));"
            )
            .expect("a string");
        }
        for (path, ..) in &structure.members {
            let offset = format!("offsetof({full}, {path})");
            let at = match structure.growth {
                Growth::AtFront => format!("sizeof({full}) - {offset}"),
                Growth::Fixed | Growth::AtEnd => offset,
            };
            writeln!(
                code,
                "printf(\"{name}.{path}: at %zu, size %zu\\n\", {at}, \
                 sizeof((({full} *)0)->{path}));"
            )
            .expect("a string");
        }
    }
    for (name, _) in scope.constants() {
        writeln!(code, "printf(\"{name} = %lld\\n\", (long long){name});").expect("a string");
    }
    code + "return 0;\n}\n"
}

/// Compiles and runs the program. `include` precedes the system's headers.
fn lines_of_c(name: &str, scope: Scope, headers: &[&str], include: Option<&Path>) -> String {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("{name}.c"));
    let binary = directory.join(name);
    fs::write(&source, c_program(scope, headers)).expect("the target directory takes files");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Werror"]);
    if let Some(include) = include {
        compiler.arg("-I").arg(include);
    }
    let compiled = compiler
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .expect("cc runs");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let ran = Command::new(&binary).output().expect("the program runs");
    assert!(ran.status.success());
    String::from_utf8(ran.stdout).expect("the program prints ASCII")
}

/// Compares line by line, so that a failure shows the member that differs.
#[track_caller]
fn assert_same_lines(rust: &str, c: &str) {
    let differences: Vec<_> = rust
        .lines()
        .zip(c.lines())
        .filter(|(rust, c)| rust != c)
        .collect();
    assert!(
        differences.is_empty(),
        "Rust and C differ: {differences:#?}"
    );
    assert_eq!(rust.lines().count(), c.lines().count());
    assert!(rust.lines().count() > 20, "next to nothing was compared");
}

fn our_include() -> PathBuf {
    urxe_tests::workspace().join("include")
}

#[test]
fn rust_lays_out_as_our_headers_do() {
    if !have_program("cc", "gcc") {
        return;
    }
    let headers = ["infiniband/verbs.h"];
    let c = lines_of_c("layout_urxe", Scope::All, &headers, Some(&our_include()));
    assert_same_lines(&lines_of_rust(Scope::All), &c);
}

#[test]
fn our_headers_lay_out_as_rdma_core_does() {
    if !have_program("cc", "gcc") || !have_file(SYSTEM_HEADER, "libibverbs-dev") {
        return;
    }
    let headers = ["infiniband/verbs.h"];
    let rdma_core = lines_of_c("layout_rdma_core", Scope::Since44, &headers, None);
    assert_same_lines(&lines_of_rust(Scope::Since44), &rdma_core);
    let urxe = lines_of_c(
        "layout_urxe_44",
        Scope::Since44,
        &headers,
        Some(&our_include()),
    );
    assert_same_lines(&urxe, &rdma_core);
}

#[test]
fn kernel_structures_lay_out_as_in_its_headers() {
    if !have_program("cc", "gcc") || !have_file(SYSTEM_HEADER, "libibverbs-dev") {
        return;
    }
    let headers = ["rdma/ib_user_verbs.h", "rdma/ib_user_sa.h", "stddef.h"];
    let c = lines_of_c("layout_kernel", Scope::Kernel, &headers, None);
    assert_same_lines(&lines_of_rust(Scope::Kernel), &c);
}

#[test]
fn rust_lays_out_as_our_headers_of_the_connection_manager_do() {
    if !have_program("cc", "gcc") {
        return;
    }
    let include = our_include();
    let c = lines_of_c(
        "layout_cm_ours",
        Scope::CmAll,
        &layout_cm::HEADERS,
        Some(&include),
    );
    assert_same_lines(&lines_of_rust(Scope::CmAll), &c);
}

#[test]
fn connection_manager_lays_out_as_in_rdma_core() {
    if !have_program("cc", "gcc") || !have_file(SYSTEM_CM_HEADER, "librdmacm-dev") {
        return;
    }
    let rdma_core = lines_of_c(
        "layout_cm_theirs",
        Scope::CmSince44,
        &layout_cm::HEADERS,
        None,
    );
    assert_same_lines(&lines_of_rust(Scope::CmSince44), &rdma_core);
}

/// Names that the lists omit: opaque structures, the part of a device that drivers define, and a
/// constant that is a pointer.
const NOT_IN_THE_HEADERS: [&str; 5] = [
    "IBV_ALLOCATOR_USE_DEFAULT",
    "verbs_device",
    "verbs_ex_private",
    "_compat_ibv_port_attr",
    "ibv_buf",
];

#[test]
fn list_names_every_structure_and_constant() {
    let mut listed = BTreeSet::new();
    for scope in [Scope::All, Scope::Kernel, Scope::CmAll] {
        listed.extend(
            scope
                .structures()
                .iter()
                .map(|structure| structure.name.to_owned()),
        );
        listed.extend(scope.constants().iter().map(|(name, _)| (*name).to_owned()));
    }
    listed.extend(NOT_IN_THE_HEADERS.map(str::to_owned));

    let mut defined = BTreeSet::new();
    let ffi = urxe_tests::workspace().join("verbs/src/ffi");
    for entry in fs::read_dir(ffi).expect("a readable directory") {
        let path = entry.expect("a readable directory").path();
        for line in fs::read_to_string(path).expect("a readable source").lines() {
            defined.extend(definition(line).map(str::to_owned));
        }
    }
    // In Rust, unnamed parts of a C structure have the name of the structure as a prefix.
    let is_part = |name: &String| {
        listed
            .iter()
            .any(|outer| name.starts_with(&format!("{outer}_")))
    };
    defined.retain(|name| listed.contains(name) || !is_part(name));
    let missing: Vec<_> = defined.difference(&listed).collect();
    assert!(missing.is_empty(), "not in layout_list.rs: {missing:?}");
    assert!(
        defined.len() > 500,
        "found only {} definitions",
        defined.len()
    );
}

/// Returns the structure or constant that a line of `verbs/src/ffi` defines.
fn definition(line: &str) -> Option<&str> {
    match line.split([' ', ':', '<', '(']).collect::<Vec<_>>()[..] {
        ["pub", "struct" | "union", name, ..] => Some(name),
        ["pub", "const", name, ..]
            if ["IBV_", "RDMA_", "RAI_"]
                .iter()
                .any(|prefix| name.starts_with(prefix)) =>
        {
            Some(name)
        }
        _ => None,
    }
}
