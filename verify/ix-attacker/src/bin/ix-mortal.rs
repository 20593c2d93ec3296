//! An echo server that ends as its clients ask, to test what is left then.
//!
//! `ix-mortal PORT`. The first received byte says how it ends: `a`bort, `s`egmentation fault,
//! `e`xit with status 3, SIG`K`ILL, e`x`ecute another program, `c`ompute without end; other bytes
//! are echoed. `!` leaves the received bytes unread.
use libix::event::{Conn, EventLoop, Handler, Io};
use libix::raw::{Process, Thread};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

struct Mortal;

/// An address without any mapping.
const NOWHERE: usize = 0x1234;

fn end_by(way: u8) {
    match way {
        b'a' => std::process::abort(),
        // SAFETY: none; it must fault.
        b's' => unsafe { (NOWHERE as *mut u8).write_volatile(0) },
        b'e' => std::process::exit(3),
        b'K' => {
            // SAFETY: no pointers; the process ends.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        b'x' => {
            use std::os::unix::process::CommandExt;
            // It returns only if there is no such program.
            let _ = std::process::Command::new("sleep").arg("1").exec();
        }
        b'c' => loop {
            std::hint::spin_loop();
        },
        _ => {}
    }
}

impl Handler for Mortal {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        let way = conn.received().flatten().next().copied().unwrap_or(0);
        end_by(way);
        if way != b'!' {
            let bytes = conn.received_bytes();
            conn.send_received(bytes);
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, ()>) {
        conn.close();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(7);
    let process = Process::find()?;
    let mut service = EventLoop::new(Thread::enter(&process, 0)?, Mortal);
    service.listen((Ipv4Addr::UNSPECIFIED, port).into(), 0)?;
    println!("ready");
    service.run()?;
    Ok(())
}
