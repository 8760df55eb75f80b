//! `polled.c` with the safe Rust API: `urxe-polled empty|send|receive COUNT PORT [SERVER]`. The
//! header of `polled.c` describes the modes and the output; either program may be the server of the
//! other.

use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use urxe::cm::{Connection, Listener, Options, Route};
use urxe::{
    Completion, CompletionQueue, Device, LocalBuffer, PreparedQueuePair, QueuePair, ReceiveRequest,
    Result, SendRequest,
};

const SIZE: usize = 64;
const DEPTH: usize = 16;
/// See `MORE_POLLS` in `polled.c`.
const MORE_POLLS: usize = 8;

#[inline(never)]
fn measured_send(qp: &QueuePair, message: LocalBuffer) {
    qp.post_send(SendRequest::send(message)).expect("post_send");
}

#[inline(never)]
fn measured_receive(qp: &QueuePair, inbox: LocalBuffer) {
    qp.post_receive(ReceiveRequest::into(inbox))
        .expect("post_receive");
}

#[inline(never)]
fn measured_poll(cq: &CompletionQueue) -> Option<Completion> {
    cq.poll()
}

struct Program {
    connection: Connection,
    control: TcpStream,
    empty_polls: u64,
}

impl Program {
    fn new(connection: Connection, control: TcpStream) -> Program {
        Program {
            connection,
            control,
            empty_polls: 0,
        }
    }

    fn qp(&self) -> &QueuePair {
        self.connection.queue_pair()
    }

    fn notify(&mut self) {
        self.control.write_all(b"!").expect("write");
    }

    fn wait(&mut self) {
        self.control.read_exact(&mut [0]).expect("read");
    }

    /// Polls the queue of sends or of receives once. Returns the buffer of a completion, and counts
    /// the polls that find none.
    fn poll_once(&mut self, cq: &CompletionQueue) -> Option<LocalBuffer> {
        let Some(completion) = measured_poll(cq) else {
            self.empty_polls += 1;
            return None;
        };
        completion.result.expect("completion");
        completion.buffer
    }

    fn serve(&mut self, mode: &str, count: u64) -> Result<()> {
        let cqs = [self.qp().send_cq().clone(), self.qp().recv_cq().clone()];
        let [send_cq, recv_cq] = &cqs;
        let mut message = Some(self.qp().pd().buffer(SIZE)?);
        for _ in 0..count {
            match mode {
                "send" => {
                    let inbox = loop {
                        if let Some(inbox) = self.poll_once(recv_cq) {
                            break inbox;
                        }
                    };
                    measured_receive(self.qp(), inbox);
                    self.poll_once(recv_cq);
                    self.notify();
                }
                "receive" => {
                    self.wait();
                    measured_send(self.qp(), message.take().expect("the last SEND completed"));
                    message = self.poll_once(send_cq);
                    self.notify();
                    while message.is_none() {
                        message = self.poll_once(send_cq);
                    }
                }
                _ => {}
            }
        }
        self.wait();
        Ok(())
    }

    fn drive(&mut self, mode: &str, count: u64) -> Result<()> {
        let cqs = [self.qp().send_cq().clone(), self.qp().recv_cq().clone()];
        let [send_cq, recv_cq] = &cqs;
        let mut message = Some(self.qp().pd().buffer(SIZE)?);
        for _ in 0..count {
            match mode {
                "send" => {
                    measured_send(self.qp(), message.take().expect("the last SEND completed"));
                    message = self.poll_once(send_cq);
                    self.wait();
                    while message.is_none() {
                        message = self.poll_once(send_cq);
                    }
                }
                "receive" => {
                    self.notify();
                    self.wait();
                    let inbox = loop {
                        if let Some(inbox) = self.poll_once(recv_cq) {
                            break inbox;
                        }
                    };
                    measured_receive(self.qp(), inbox);
                    self.poll_once(recv_cq);
                }
                _ => drop(self.poll_once(send_cq)),
            }
            for _ in 0..MORE_POLLS {
                if mode != "empty" {
                    assert!(send_cq.poll().is_none());
                }
            }
        }
        self.notify();
        let counted = if mode == "empty" { 0 } else { self.empty_polls };
        println!("empty {counted}");
        Ok(())
    }
}

/// A queue pair as that of `polled.c`, with receives.
fn queue_pair(device: &Device) -> Result<PreparedQueuePair> {
    let context = device.open()?;
    let (pd, send_cq) = (context.pd(), context.completion_queue()?);
    let recv_cq = context.completion_queue()?;
    let depth = DEPTH as u32;
    let qp = pd
        .queue_pair(&send_cq, &recv_cq)
        .max_send_wr(depth)
        .max_recv_wr(depth)
        .max_send_sge(1)
        .max_recv_sge(1)
        .build()?;
    for _ in 0..DEPTH {
        qp.post_receive(ReceiveRequest::into(pd.buffer(SIZE)?))?;
    }
    Ok(qp)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (mode, count, port, server) = match words[..] {
        [mode, count, port] => (mode, count, port, None),
        [mode, count, port, server] => (mode, count, port, Some(server)),
        _ => panic!("usage: urxe-polled empty|send|receive COUNT PORT [SERVER]"),
    };
    let count = count.parse().expect("COUNT is a number");
    match server {
        Some(server) => {
            let address = format!("{server}:{port}");
            let control = TcpStream::connect(&address).expect("connect");
            let route = Route::resolve(&address)?;
            let qp = queue_pair(&route.device())?;
            let connection = route.connect(qp, &Options::default())?;
            Program::new(connection, control).drive(mode, count)
        }
        None => {
            let address = format!("0.0.0.0:{port}");
            let listener = Listener::bind(&address)?;
            let control = TcpListener::bind(&address).expect("listen");
            let (control, _) = control.accept().expect("accept");
            let request = listener.next()?;
            let qp = queue_pair(&request.device())?;
            let connection = request.accept(qp, &Options::default())?;
            Program::new(connection, control).serve(mode, count)
        }
    }
}
