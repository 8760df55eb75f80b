//! urxe's headers compile in C and C++, with strict warnings, each header alone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::require::have_program;

fn include() -> PathBuf {
    urxe_tests::workspace().join("include")
}

/// Compiles a source without writing an object file.
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

/// A call of each kind of inline function of the connection manager's headers.
const CM_PROGRAM: &str = r#"
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
int main(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct ib_addr gid;
    struct ibv_mr *mr;
    struct ibv_wc wc;
    char data[8];

    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
        return errno;
    ib_addr_set(&gid, 0, 0, 0, 1);
    if (ib_addr_any(&gid) || ib_addr_loopback(&gid) || ib_addr_cmp(&gid, &gid))
        return rdma_get_local_addr(id)->sa_family + rdma_get_peer_addr(id)->sa_family;
    rdma_dereg_mr(rdma_reg_msgs(id, data, sizeof(data)));
    rdma_dereg_mr(rdma_reg_write(id, data, sizeof(data)));
    mr = rdma_reg_read(id, data, sizeof(data));
    rdma_post_recv(id, NULL, data, sizeof(data), mr);
    rdma_post_send(id, NULL, data, sizeof(data), mr, IBV_SEND_SIGNALED);
    rdma_post_read(id, NULL, data, sizeof(data), mr, 0, 0, 0);
    rdma_post_write(id, NULL, data, sizeof(data), mr, 0, 0, 0);
    rdma_post_ud_send(id, NULL, data, sizeof(data), mr, 0, NULL, 1);
    return rdma_get_send_comp(id, &wc) + rdma_get_recv_comp(id, &wc) + rclose(rsocket(AF_INET, SOCK_STREAM, 0));
}
"#;

#[test]
fn program_of_the_connection_manager_compiles_as_c_and_cxx() {
    for (compiler, package, standards, suffix) in [
        ("cc", "gcc", ["-std=gnu99", "-std=c11"], "c"),
        ("c++", "g++", ["-std=gnu++11", "-std=gnu++20"], "cc"),
    ] {
        if !have_program(compiler, package) {
            return;
        }
        for standard in standards {
            let name = format!("cm_program{standard}.{suffix}");
            compiles(&name, compiler, &[standard], CM_PROGRAM);
        }
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
