//! The wait for a server, in the scripts that run programs from packages.

/// A shell function that waits until a server listens at TCP port 18515, the default of rdma-core's
/// examples and of this repository's examples in C. For `sh -e`, which the function ends after a
/// minute. Its commands are not printed.
pub(super) const AWAIT_SERVER: &str = r#"
await_server() (
    set +x
    tries=0
    until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 [0-9A-F:]* 0A '; do
        tries=$((tries + 1))
        if [ "$tries" -eq 600 ]; then
            echo "no server listens at TCP port 18515"
            exit 1
        fi
        sleep 0.1
    done
)
"#;
