//! A program that keeps commands from its dataplane. Behind keys, a message that brings descriptors
//! is received only while no system call of the program is under way that might name one. These
//! calls take long and do not sleep: as long as there is always one, such a message never arrives.
use crate::call;
use crate::calls::Calls;
use std::sync::atomic::{AtomicU32, Ordering};

/// Threads that make such calls: one is always within one.
const THREADS: u32 = 3;
/// Bytes that a part of a call fills, again and again the same ones.
const PART_BYTES: usize = 1 << 20;
/// Most parts of a call.
const PARTS: usize = 1024;
/// The hardware thread of elastic thread 0, on which these threads do not run where there is
/// another one: the dataplane looks at the calls 100 times, and gives way each time.
const ELASTIC_CPUS: u64 = 1;

/// Refuses until the process is ended. `Err`: it cannot begin, or the dataplane has gone.
pub fn attack(c: &Calls) -> Result<(), String> {
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..THREADS {
        std::thread::spawn(|| {
            let others = !ELASTIC_CPUS;
            let (bytes, at) = (size_of_val(&others) as u64, &raw const others as u64);
            let _ = call(libc::SYS_sched_setaffinity, [0, bytes, at, 0, 0, 0]);
            let mut zeros = vec![0u8; PART_BYTES];
            let part = libc::iovec { iov_base: zeros.as_mut_ptr().cast(), iov_len: zeros.len() };
            let parts = vec![part; PARTS];
            let path = c"/dev/zero".as_ptr() as u64;
            let file = call(libc::SYS_open, [path, libc::O_RDONLY as u64, 0, 0, 0, 0]);
            let file = file.expect("/dev/zero opens");
            BEGUN.fetch_add(1, Ordering::Relaxed);
            loop {
                let filled = [file, parts.as_ptr() as u64, parts.len() as u64, 0, 0, 0];
                let _ = call(libc::SYS_readv, filled);
            }
        });
    }
    while BEGUN.load(Ordering::Relaxed) < THREADS {
        std::thread::yield_now();
    }
    println!("refuses all control");
    loop {
        let answer = c.cycle(1000);
        if answer < 0 {
            return Err(format!("a cycle answers {answer}"));
        }
    }
}
