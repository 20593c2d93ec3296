//! Processes of one program that share its dataplane, for tests.
//!
//! `ix-workers PORT COUNT CHURN`. The program forks COUNT workers, each of which attaches and
//! serves PORT; each says `worker NUMBER PID`. Once all serve it forks, CHURN times, one process
//! after the other that attaches and ends at once, and says `churned CHURN`. Then it waits for
//! ever.
//!
//! With several elastic threads a worker serves on each, and connections move between them.
//!
//! A worker echoes what it gets. `?` alone is answered by the worker's number, as two digits; `!`
//! alone is left unread; `c` alone makes it compute without end, and `s` for 60 ms, with `s` for an
//! answer; `x` alone makes it execute another program, while a child has copies of all that it has
//! open.
mod children;

use children::{Outcome, attach, child};
use libix::event::{Conn, EventLoop, Handler, Io, Team};
use libix::raw::{Process, Thread};
use std::error::Error;
use std::io::{PipeWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

struct Worker {
    number: u32,
}

impl Handler for Worker {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        let bytes = conn.received_bytes();
        let first = conn.received().flatten().next().copied();
        match first.filter(|_| bytes == 1).unwrap_or(0) {
            b'?' => {
                let number = format!("{:02}", self.number);
                conn.consume(bytes);
                conn.send(number.as_bytes());
            }
            b'!' => {}
            b's' => {
                let since = Instant::now();
                while since.elapsed() < Duration::from_millis(60) {
                    std::hint::spin_loop();
                }
                conn.consume(bytes);
                conn.send(b"s");
            }
            b'c' => loop {
                std::hint::spin_loop();
            },
            b'x' => execute(),
            _ => {
                conn.send_received(bytes);
            }
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, ()>) {
        conn.close();
    }
}

/// Executes another program. A child stays that only waits, with copies of all descriptors.
fn execute() -> ! {
    // SAFETY: the child makes system calls only, until its parent ends.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    panic!("cannot execute: {}", Command::new("sleep").arg("60").exec())
}

fn work(program: &Process, port: u16, mut serves: PipeWriter) -> Outcome {
    // SAFETY: a forked child that has entered no elastic thread, with one thread and no handlers.
    let process = unsafe { program.attach() }?;
    let number = process.attachment();
    let team = Team::new(process.threads());
    let serve = |index: u32| -> Result<EventLoop<Worker>, Box<dyn Error>> {
        let thread = Thread::enter(&process, index)?;
        let mut event_loop = EventLoop::in_team(thread, Worker { number }, &team);
        event_loop.listen((Ipv4Addr::UNSPECIFIED, port).into(), 0)?;
        Ok(event_loop)
    };
    let (begun, serve) = (&Barrier::new(process.threads() as usize), &serve);
    std::thread::scope(|scope| {
        for index in 1..process.threads() {
            scope.spawn(move || {
                let mut event_loop = serve(index).expect("serves");
                begun.wait();
                event_loop.run().expect("goes on");
            });
        }
        let mut event_loop = serve(0)?;
        begun.wait();
        println!("worker {number} {}", std::process::id());
        serves.write_all(b"s")?;
        event_loop.run()?;
        Ok(())
    })
}

fn visit(program: &Process) -> Outcome {
    let (_process, thread) = attach(program)?;
    // It ends without leaving.
    std::mem::forget(thread);
    Ok(())
}

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [port, count, churn] = words.as_slice() else {
        return Err("usage: ix-workers PORT COUNT CHURN".into());
    };
    let (port, count, churn): (u16, u32, u32) = (port.parse()?, count.parse()?, churn.parse()?);
    let program = Process::find()?;
    let (mut serving, serves) = std::io::pipe()?;
    for _ in 0..count {
        child(|| work(&program, port, serves.try_clone()?))?;
    }
    serving.read_exact(&mut vec![0; count as usize])?;
    for _ in 0..churn {
        let pid = child(|| visit(&program))?;
        let mut status = 0;
        // SAFETY: fills a local.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if status != 0 {
            return Err(format!("a visitor ended with {status:#x}").into());
        }
    }
    println!("churned {churn}");
    loop {
        // SAFETY: no pointers. Workers that end are not waited for.
        unsafe { libc::pause() };
    }
}
