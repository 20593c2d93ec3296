//! A program that keeps commands from its dataplane. Behind keys, a message that brings descriptors
//! is received only while no system call of the program is under way that might name one. These
//! calls take long and do not sleep: as long as there is always one, such a message never arrives.
//! A thread whose child has all of its memory and does nothing never comes back from its call. A
//! dataplane in a process of its own waits for none of them.
use crate::call;
use crate::calls::Calls;
use std::sync::atomic::{AtomicU32, Ordering};

/// Threads that make such calls: one is always within one.
const THREADS: u32 = 3;
/// Bytes that a part of a call fills, again and again the same ones.
const PART_BYTES: usize = 1 << 20;
/// Most parts of a call, which takes seconds to fill: new calls are kept waiting for a quarter of a
/// second at most.
const PARTS: usize = 1024;
/// The hardware thread of elastic thread 0, on which these threads do not run where there is
/// another one: the dataplane looks at the calls 100 times, and gives way each time.
const ELASTIC_CPUS: u64 = 1;
/// How long the child lives that is waited for, unless its parent ends before.
const AT_MOST_S: u32 = 300;

/// Refuses until the process is ended. `Err`: it cannot begin, or the dataplane has gone.
pub fn attack(c: &Calls) -> Result<(), String> {
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..THREADS {
        std::thread::spawn(|| {
            let others = !ELASTIC_CPUS;
            let (bytes, at) = (size_of_val(&others) as u64, &raw const others as u64);
            let _ = call(libc::SYS_sched_setaffinity, [0, bytes, at, 0, 0, 0]);
            let mut buffer = vec![0u8; PART_BYTES];
            let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let parts = vec![part; PARTS];
            let path = c"/dev/urandom".as_ptr() as u64;
            let file = call(libc::SYS_open, [path, libc::O_RDONLY as u64, 0, 0, 0, 0]);
            let file = file.expect("/dev/urandom opens");
            BEGUN.fetch_add(1, Ordering::Relaxed);
            loop {
                let args = [file, parts.as_ptr() as u64, parts.len() as u64, 0, 0, 0];
                let _ = call(libc::SYS_readv, args);
            }
        });
    }
    while BEGUN.load(Ordering::Relaxed) < THREADS {
        std::thread::yield_now();
    }
    std::thread::spawn(wait_for_a_child);
    println!("refuses all control");
    serve_on(c)
}

/// Serves clients until the process is ended.
pub fn serve(c: Calls) -> Result<(), String> {
    serve_on(&c)
}

/// Waits for a child to end, or to execute another program, which it does not.
fn wait_for_a_child() {
    let flags = (libc::CLONE_VFORK | libc::SIGCHLD) as u64;
    if call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]) == Ok(0) {
        // SAFETY: no pointers.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(AT_MOST_S);
            loop {
                libc::pause();
            }
        }
    }
}

fn serve_on(c: &Calls) -> Result<(), String> {
    loop {
        let answer = c.cycle(1000);
        if answer < 0 {
            return Err(format!("a cycle answers {answer}"));
        }
    }
}
