//! Descriptors that arrive while the program runs: for a device that changes, or a capture. Linux
//! gives them the lowest free numbers, which belong to the program. They are moved to the
//! dataplane's numbers at once, but a thread of the program that guessed the number could have
//! copied one by then. So no call of the program may be on its way to Linux meanwhile: new calls
//! wait, and calls that sleep in the kernel have already looked up their descriptors.
use super::record::{self, LIVE, RECORDS, Record};
use crate::sys;
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A thread is receiving descriptors.
static COMING: AtomicBool = AtomicBool::new(false);

/// How often the calls in progress are checked, at least, before this is put off.
const LOOKS: usize = 100;
/// The wait doubles after this many refusals.
const TRIES: u32 = 4;
/// Number of doublings, from one millisecond on.
const DOUBLINGS: u32 = 8;

/// To be called before a call for the application is made; waits while descriptors arrive.
pub fn call_begins(record: &Record) {
    loop {
        while COMING.load(Ordering::Acquire) {
            give_way();
        }
        // The receiving thread uses the other order, so at least one of the two sees the other.
        record.calling.store(1, Ordering::SeqCst);
        if !COMING.load(Ordering::SeqCst) {
            return;
        }
        record.calling.store(0, Ordering::Release);
    }
}

/// To be called after that call.
pub fn call_ends(record: &Record) {
    record.calling.store(0, Ordering::Release);
}

/// Runs `work` while no call of the application can name a new descriptor. `None`: calls that take
/// long and do not sleep were in progress; try again later, with how often this was `refused`.
///
/// A call may wait for a slow disk, and as soon as one ends another one begins. So the more often
/// it was refused the longer it keeps new calls waiting: then all calls end but those of a program
/// that makes long ones on purpose.
pub fn alone<T>(refused: u32, work: impl FnOnce() -> T) -> Option<T> {
    if !super::is_raised() {
        return Some(work());
    }
    COMING.store(true, Ordering::SeqCst);
    let quiet = becomes_quiet(longest(refused), || (0..RECORDS).all(is_quiet));
    let result = quiet.then(work);
    COMING.store(false, Ordering::Release);
    result
}

/// How long calls may take that began before.
fn longest(refused: u32) -> Duration {
    match refused / TRIES {
        0 => Duration::ZERO,
        more => Duration::from_millis(1 << more.min(DOUBLINGS)),
    }
}

fn becomes_quiet(longest: Duration, is_quiet: impl Fn() -> bool) -> bool {
    let (begin, mut looks) = (Instant::now(), 0);
    while !is_quiet() {
        looks += 1;
        if looks >= LOOKS && begin.elapsed() >= longest {
            return false;
        }
        give_way();
    }
    true
}

fn is_quiet(index: usize) -> bool {
    let record = record::at(index);
    // SAFETY: both words are atomic; the number was written before `calling`.
    let (state, calling, tid) = unsafe { (&(*record).state, &(*record).calling, (*record).tid) };
    let makes_a_call = state.load(Ordering::Acquire) == LIVE && calling.load(Ordering::SeqCst) != 0;
    !makes_a_call || sleeps(tid)
}

/// Whether a thread sleeps interruptibly in the kernel: then its call has already looked up its
/// descriptors.
fn sleeps(tid: u64) -> bool {
    const FOLDER: &[u8] = b"/proc/self/task/";
    const BEHIND: &[u8] = b"/stat\0";
    const DIGITS_MAX: usize = 10;
    if !(1..10u64.pow(DIGITS_MAX as u32)).contains(&tid) {
        return false;
    }
    let digits = tid.ilog10() as usize + 1;
    let mut path = [0u8; FOLDER.len() + DIGITS_MAX + BEHIND.len()];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    for (place, byte) in path[FOLDER.len()..][..digits].iter_mut().rev().enumerate() {
        *byte = b'0' + (tid / 10u64.pow(place as u32) % 10) as u8;
    }
    path[FOLDER.len() + digits..][..BEHIND.len()].copy_from_slice(BEHIND);
    let mut text = [0u8; 128];
    // SAFETY: a path that ends with a zero, and an array with its length; the descriptor is closed.
    let length = unsafe {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let fd = sys::syscall(libc::SYS_open, [path.as_ptr() as u64, flags, 0, 0, 0, 0]);
        if fd < 0 {
            // It has ended, or there is no `/proc` to read; it does not sleep.
            return false;
        }
        let args = [fd as u64, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0];
        let length = sys::syscall(libc::SYS_read, args);
        sys::syscall(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
        length
    };
    state(&text[..length.clamp(0, text.len() as i64) as usize]) == Some(b'S')
}

/// The state in `/proc/PID/stat` (proc(5)): after the name, which may contain anything.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.windows(2).rposition(|two| two == b") ")?;
    stat.get(end + 2).copied()
}

fn give_way() {
    // SAFETY: no pointers.
    unsafe { sys::syscall(libc::SYS_sched_yield, [0; 6]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_take_a_while_are_waited_for_if_they_refuse_again_and_again() {
        const TAKES: Duration = Duration::from_millis(60);
        let waits = |refused: u32| {
            let begin = Instant::now();
            becomes_quiet(longest(refused), || begin.elapsed() >= TAKES)
        };
        // A program that pauses is not waited for at first.
        assert_eq!(longest(0), Duration::ZERO);
        assert!(!becomes_quiet(longest(0), || false));
        assert!(becomes_quiet(longest(0), || true));
        assert!(waits(TRIES * 6) && waits(u32::MAX));
        let all = (0..crate::updates::REFUSED_MAX).map(longest).sum::<Duration>();
        assert!((Duration::from_secs(5)..Duration::from_secs(10)).contains(&all), "{all:?}");
    }

    #[test]
    fn only_who_waits_in_the_kernel_sleeps() {
        assert_eq!(state(b"7 (a) R) S 1 2 3"), Some(b'S'));
        assert_eq!(
            (state(b"7 (x) R 1"), state(b"7 (x"), state(b"7 (x) ")),
            (Some(b'R'), None, None)
        );
        // SAFETY: no arguments.
        let tid = || unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        assert!(!sleeps(tid()) && !sleeps(0) && !sleeps(u64::MAX));
        let (say, hear) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(tid()).expect("heard");
            ended.recv().expect("told");
        });
        let other = hear.recv().expect("said");
        let begin = Instant::now();
        while !sleeps(other) {
            assert!(begin.elapsed() < Duration::from_secs(20), "it waits for us");
        }
        end.send(()).expect("heard");
        thread.join().expect("no panic");
        assert!(!sleeps(other));
    }
}
