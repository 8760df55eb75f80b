//! Our headers compile as programs compile them: C and C++, strict, each header alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::require::have_program;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Checks a source without making an object of it.
#[track_caller]
fn compiles(name: &str, compiler: &str, arguments: &[&str], source: &str) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, source).expect("the target directory takes files");
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .arg(include())
        .args(arguments)
        .arg(&file)
        .output()
        .expect("the compiler runs");
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A call of each kind of inline function and macro.
const PROGRAM: &str = r#"
#include <infiniband/verbs.h>
struct ibv_mr *both(struct ibv_pd *pd, void *buf, size_t len, int access);
struct ibv_mr *both(struct ibv_pd *pd, void *buf, size_t len, int access)
{
    ibv_dereg_mr(ibv_reg_mr(pd, buf, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    ibv_dereg_mr(ibv_reg_mr_iova(pd, buf, len, 0, access));
    return ibv_reg_mr(pd, buf, len, access);
}
int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_port_attr port;
    struct ibv_device_attr_ex device;
    struct ibv_wc wc;
    struct ibv_cq_init_attr_ex attr;
    struct ibv_cq_ex *cq;

    memset(&attr, 0, sizeof(attr));
    cq = ibv_create_cq_ex(context, &attr);
    if (ibv_query_port(context, 1, &port) || ibv_query_device_ex(context, NULL, &device))
        return errno;
    while (ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 0)
        ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0);
    return (int)wc.imm_data + ibv_flow_label_to_udp_sport(7);
}
"#;

#[test]
fn program_compiles_against_our_headers_as_c() {
    if !have_program("cc", "gcc") {
        return;
    }
    for standard in ["-std=gnu99", "-std=gnu11", "-std=c11", "-std=gnu17"] {
        compiles(&format!("program{standard}.c"), "cc", &[standard], PROGRAM);
    }
}

#[test]
fn program_compiles_against_our_headers_as_cxx() {
    if !have_program("c++", "g++") {
        return;
    }
    for standard in ["-std=gnu++11", "-std=gnu++17", "-std=gnu++20"] {
        compiles(
            &format!("program{standard}.cc"),
            "c++",
            &[standard],
            PROGRAM,
        );
    }
}

#[test]
fn every_header_compiles_alone() {
    if !have_program("cc", "gcc") {
        return;
    }
    for directory in ["infiniband", "infiniband/verbs", "rdma"] {
        for entry in fs::read_dir(include().join(directory)).expect("the headers are there") {
            let name = entry.expect("a readable directory").file_name();
            let name = name.to_str().expect("the headers have ASCII names");
            if name.ends_with(".h") {
                let source = format!("#include <{directory}/{name}>\nint unused;\n");
                compiles(&format!("alone_{name}.c"), "cc", &[], &source);
            }
        }
    }
}
