//! HTTP over RDMA: hyper's server and client on [`RdmaStream`].
//!
//! ```text
//! cargo run --example http_hyper --features tokio -- server 0.0.0.0:7471
//! cargo run --example http_hyper --features tokio -- get 192.0.2.1:7471 /path
//! ```

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1 as client;
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::env;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::runtime::{Builder, Runtime};
use urxe::net::{RdmaListener, RdmaStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The bytes of a read.
const READ: usize = 1 << 14;

/// A stream with hyper's traits.
struct Connection(RdmaStream);

impl hyper::rt::Read for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffer = [0; READ];
        let len = into.remaining().min(READ);
        let slices = &mut [IoSliceMut::new(&mut buffer[..len])];
        let read = ready!(self.0.poll_read_vectored(context, slices))?;
        into.put_slice(&buffer[..read]);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_vectored(context, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(context)
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match &args[..] {
        ["server", address] => {
            let listener = RdmaListener::bind(address)?;
            println!("listening on {}", listener.local_addr());
            runtime()?.block_on(serve(listener))
        }
        ["get", address, path] => {
            println!("{}", runtime()?.block_on(get(address, path))?);
            Ok(())
        }
        _ => Err("usage: http_hyper server ADDRESS:PORT | get ADDRESS:PORT PATH".into()),
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().build()
}

async fn serve(listener: RdmaListener) -> Result<()> {
    loop {
        let stream = Connection(listener.accept().await?);
        tokio::spawn(async move {
            let connection = server::Builder::new().serve_connection(stream, service_fn(respond));
            if let Err(error) = connection.await {
                eprintln!("{error}");
            }
        });
    }
}

async fn respond(request: Request<Incoming>) -> std::result::Result<Response<String>, Infallible> {
    Ok(Response::new(format!(
        "{} over RDMA\n",
        request.uri().path()
    )))
}

async fn get(server: &str, path: &str) -> Result<String> {
    let stream = Connection(RdmaStream::connect(server).await?);
    let (mut sender, connection) = client::handshake(stream).await?;
    let driver = tokio::spawn(connection);
    let request = Request::get(path)
        .header("Host", server)
        .body(String::new())?;
    let response = sender.send_request(request).await?;
    let mut body = pin!(response.into_body());
    let mut text = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            text.extend_from_slice(&data);
        }
    }
    // hyper closes the connection when there is no sender.
    drop(sender);
    driver.await??;
    Ok(String::from_utf8(text)?)
}

#[test]
fn it_works() -> Result<()> {
    runtime()?.block_on(async {
        let listener = RdmaListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr().to_string();
        let server = tokio::spawn(serve(listener));
        assert_eq!(get(&address, "/hello").await?, "/hello over RDMA\n");
        server.abort();
        Ok(())
    })
}
