//! Processes of one program that share its dataplane, for tests.
//!
//! `ix-workers PORT COUNT CHURN`. The program forks COUNT workers, each of which attaches and
//! serves PORT; each says `worker NUMBER PID`. Once all serve it forks, CHURN times, one process
//! after the other that attaches and ends at once, and says `churned CHURN`. Then it waits for
//! ever.
//!
//! A worker echoes what it gets. `?` alone is answered by the worker's number, as two digits; `!`
//! alone is left unread; `c` alone makes it compute without end.
use libix::event::{Conn, EventLoop, Handler, Io};
use libix::raw::{Process, Thread, Wait};
use std::error::Error;
use std::io::{PipeWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

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
            b'c' => loop {
                std::hint::spin_loop();
            },
            _ => {
                conn.send_received(bytes);
            }
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, ()>) {
        conn.close();
    }
}

/// Forks; what the child does is its life. Returns the child's number.
fn child(life: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<i32, Box<dyn Error>> {
    // SAFETY: the program has one thread, so the child may go on like any program.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let status = match life() {
                Ok(()) => 0,
                Err(why) => {
                    eprintln!("ix-workers: {why}");
                    1
                }
            };
            // SAFETY: no pointers; nothing of the parent's is run.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid),
    }
}

fn work(program: &Process, port: u16, mut serves: PipeWriter) -> Result<(), Box<dyn Error>> {
    // SAFETY: a forked child that has entered no elastic thread, with one thread and no handlers.
    let process = unsafe { program.attach() }?;
    let number = process.attachment();
    let thread = Thread::enter(&process, 0)?;
    let mut event_loop = EventLoop::new(thread, Worker { number });
    event_loop.listen((Ipv4Addr::UNSPECIFIED, port).into(), 0)?;
    println!("worker {number} {}", std::process::id());
    serves.write_all(b"s")?;
    event_loop.run()?;
    Ok(())
}

fn visit(program: &Process) -> Result<(), Box<dyn Error>> {
    // SAFETY: as above.
    let process = unsafe { program.attach() }?;
    let mut thread = Thread::enter(&process, 0)?;
    thread.run_io(Wait::Poll)?;
    // It ends without leaving.
    std::mem::forget(thread);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
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
