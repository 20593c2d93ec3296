//! Two processes of one program, for tests: one serves a port and gives each connection to the
//! other one, with bytes that were not read.
//!
//! `ix-givers PORT`. The giver accepts, returns the first byte of what it receives, says
//! `gave CONNECTION`, and gives the connection away with the rest. The taker echoes the rest and
//! all that follows, from the packet buffers. Each says `giver PID` or `taker PID` when it serves.
mod children;

use children::{Outcome, attach, child};
use ix_abi::SgEntry;
use libix::raw::{Event, Process, Thread, Wait, call};
use std::error::Error;
use std::io::{PipeWriter, Read, Write};
use std::net::Ipv4Addr;

/// What the giver sends along.
const TOKEN: u64 = 4711;

fn attached(
    program: &Process,
    what: &str,
    mut ready: PipeWriter,
) -> Result<Thread, Box<dyn Error>> {
    let (process, thread) = attach(program)?;
    println!("{what} {}", std::process::id());
    ready.write_all(&[process.attachment() as u8])?;
    Ok(thread)
}

/// Echoes what connections send that it is given.
fn take(program: &Process, ready: PipeWriter) -> Outcome {
    let mut thread = attached(program, "taker", ready)?;
    loop {
        for index in 0..thread.run_io(Wait::Forever)? {
            match thread.event(index) {
                Event::Given { token, handle, .. } if token == TOKEN => {
                    thread.push(call::accept(handle, handle));
                }
                Event::Recv { handle, news, .. } => {
                    if news.bytes() > 0 {
                        thread.push(call::recv_done(handle, news.bytes().into()));
                    }
                    let bytes = thread.received(index);
                    let piece = SgEntry { base: bytes.as_ptr() as u64, len: bytes.len() as u64 };
                    thread.push_sendv(handle, std::iter::once(piece));
                }
                // Its cookie is its handle.
                Event::Sent { cookie, bytes, .. } => {
                    thread.push(call::recv_done(cookie, bytes.into()));
                }
                Event::Eof { cookie } => {
                    thread.push(call::close(cookie));
                }
                _ => {}
            }
        }
    }
}

/// Accepts connections, and gives each away when it has received something.
fn give(program: &Process, port: u16, to: u32, ready: PipeWriter) -> Outcome {
    let mut thread = attached(program, "giver", ready)?;
    thread.push(call::listen((Ipv4Addr::UNSPECIFIED, port).into(), 0, 1));
    let mut given = 0;
    loop {
        for index in 0..thread.run_io(Wait::Forever)? {
            match thread.event(index) {
                Event::Knock { handle, .. } => {
                    thread.push(call::accept(handle, handle));
                }
                Event::Recv { handle, .. } => {
                    thread.push(call::recv_done(handle, 1));
                    thread.push(call::give(handle, to, TOKEN));
                    given += 1;
                    println!("gave {given}");
                }
                _ => {}
            }
        }
    }
}

fn main() -> Outcome {
    let port: u16 = std::env::args().nth(1).ok_or("usage: ix-givers PORT")?.parse()?;
    let program = Process::find()?;
    let (mut attached, attaches) = std::io::pipe()?;
    let mut number = [0];
    child(|| take(&program, attaches.try_clone()?))?;
    attached.read_exact(&mut number)?;
    child(|| give(&program, port, number[0].into(), attaches.try_clone()?))?;
    attached.read_exact(&mut [0])?;
    println!("ready");
    loop {
        // SAFETY: no pointers.
        unsafe { libc::pause() };
    }
}
