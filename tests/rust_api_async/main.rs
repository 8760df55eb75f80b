//! The futures of the Rust API over the loopback interface, on tokio, on async-io, and on a reactor
//! of this test.

mod buffers;
mod dropped;
mod own_reactor;
mod runtimes;
mod tasks;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use urxe::cm::{Connection, Listener};
use urxe::{MemoryRegion, RemoteAccess};

/// The time after which a test counts as hung.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a future on tokio with two threads, or fails after the timeout.
fn on_tokio<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await.expect("hung") })
}

/// Runs a future on async-io, or fails after the timeout.
fn on_async_io<T>(future: impl Future<Output = T>) -> T {
    let timeout = async {
        async_io::Timer::after(TIMEOUT).await;
        panic!("hung")
    };
    let (future, timeout) = (std::pin::pin!(future), std::pin::pin!(timeout));
    match async_io::block_on(futures_util::future::select(future, timeout)) {
        futures_util::future::Either::Left((value, _)) => value,
        futures_util::future::Either::Right(((), _)) => unreachable!("the timeout panics"),
    }
}

/// Makes one test of an async function for each runtime.
macro_rules! on_both {
    ($($name:ident,)*) => {
        mod on_tokio {
            $(#[test]
            fn $name() {
                crate::on_tokio(super::$name());
            })*
        }
        mod on_async_io {
            $(#[test]
            fn $name() {
                crate::on_async_io(super::$name());
            })*
        }
    };
}
pub(crate) use on_both;

/// Returns the two ends of a connection.
async fn connected() -> [Arc<Connection>; 2] {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let connect = urxe::connect(listener.local_addr());
    let (server, client) = tokio::join!(listener.accept(), connect);
    [Arc::new(server.unwrap()), Arc::new(client.unwrap())]
}

fn memory(connection: &Connection, len: usize) -> MemoryRegion {
    let pd = connection.queue_pair().pd();
    pd.register(len, RemoteAccess::all()).unwrap()
}
