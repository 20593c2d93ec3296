//! Numbers of closed sockets, kept for the next sockets so that these need no call to Linux.
//!
//! A socket of IX needs a number that Linux gives to no other file, so a file of Linux's is open at
//! that number. When the program closes the socket, that file stays open for the next socket: the
//! number is free for the program and taken for Linux. The program expects the lowest free number,
//! so
//!
//! * a kept number is only used while no lower one can be free on Linux ([`Freed`] knows), and
//! * before anything else takes a number from Linux, the lowest kept ones are closed there.
//!
//! Only a few are kept, because descriptors that the C library opens inside its own functions are
//! not seen here.
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::RawFd;

/// Most numbers that are kept.
pub const KEPT_MAX: usize = 256;

/// What this module needs of Linux.
pub trait Linux {
    /// Opens a file at the lowest free number, or returns an errno.
    fn open(&mut self) -> Result<RawFd, i32>;
    /// Frees a number.
    fn close(&mut self, fd: RawFd);
}

/// The number below which no number is free on Linux, as far as is known. It is reported each
/// number after Linux has freed it, and may assume too many to be free. Low half: the number; high
/// half: a count of reports.
pub struct Freed(AtomicU64);

/// The numbers that Linux has freed in this process.
pub static FREED: Freed = Freed::new();

/// Linux has freed this number.
pub fn freed(fd: RawFd) {
    FREED.at(fd);
}

impl Freed {
    /// Any number may be free.
    pub const fn new() -> Freed {
        Freed(AtomicU64::new(0))
    }

    /// Linux has freed this number.
    pub fn at(&self, fd: RawFd) {
        let lower = |word: u64| {
            let below = (word as u32).min(fd.max(0) as u32);
            Some((word >> 32).wrapping_add(1) << 32 | u64::from(below))
        };
        // The closure always returns `Some`, so the update cannot fail.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, lower);
    }

    fn seen(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// No number below `fd` is free, unless one was freed since `seen`.
    fn none_below(&self, fd: RawFd, seen: u64) {
        let word = seen >> 32 << 32 | u64::from(fd.max(0) as u32);
        let _ = self.0.compare_exchange(seen, word, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A number for a new socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A new file of Linux's is open there.
    Opened(RawFd),
    /// It was kept: the file that a closed socket has left is open there.
    Kept(RawFd),
}

/// The numbers that are kept.
pub struct Numbers {
    /// Highest first.
    kept: Vec<RawFd>,
    max: usize,
    /// How often a number was kept or used again.
    pub changes: u64,
}

impl Numbers {
    /// Keeps no number.
    pub const fn new() -> Numbers {
        Numbers { kept: Vec::new(), max: 0, changes: 0 }
    }

    /// Sets how many may be kept, from the process's limit of descriptors.
    pub fn limit(&mut self, descriptors: u64) {
        self.max = KEPT_MAX.min((descriptors / 8) as usize);
        self.kept.reserve(KEPT_MAX);
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// The lowest kept number.
    pub fn lowest(&self) -> Option<RawFd> {
        self.kept.last().copied()
    }

    /// Takes the lowest number that is free for the program.
    pub fn take(&mut self, freed: &Freed, linux: &mut impl Linux) -> Result<Taken, i32> {
        let seen = freed.seen();
        let Some(lowest) = self.lowest() else {
            let fd = linux.open()?;
            freed.none_below(fd + 1, seen);
            return Ok(Taken::Opened(fd));
        };
        self.changes += 1;
        if (seen as u32) < lowest as u32 {
            match linux.open() {
                Ok(fd) if fd < lowest => {
                    freed.none_below(fd + 1, seen);
                    return Ok(Taken::Opened(fd));
                }
                Ok(fd) => {
                    linux.close(fd);
                    freed.none_below(fd, seen);
                }
                // Linux has no free number, but one is kept.
                Err(libc::EMFILE) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.kept.pop();
        Ok(Taken::Kept(lowest))
    }

    /// Keeps a number that the program has closed. Returns a number, perhaps the same, that the
    /// caller must close on Linux because too many are kept.
    pub fn keep(&mut self, fd: RawFd) -> Option<RawFd> {
        self.changes += 1;
        let at = self.kept.partition_point(|other| *other > fd);
        self.kept.insert(at, fd);
        if self.kept.len() > self.max { Some(self.kept.remove(0)) } else { None }
    }

    /// Removes the lowest kept number that is at least `least`. The caller must close it on Linux.
    pub fn give_back(&mut self, least: RawFd) -> Option<RawFd> {
        let at = self.kept.partition_point(|other| *other >= least);
        (at > 0).then(|| self.kept.remove(at - 1))
    }

    /// Removes this number. Returns whether it was kept.
    pub fn remove(&mut self, fd: RawFd) -> bool {
        let at = self.kept.iter().position(|other| *other == fd);
        at.is_some_and(|at| self.kept.remove(at) == fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Descriptors of a process: the model; with a limit also Linux.
    #[derive(Default)]
    struct Table {
        used: BTreeSet<RawFd>,
        limit: RawFd,
        calls: u32,
    }

    impl Table {
        fn lowest(&self, least: RawFd) -> Option<RawFd> {
            (least..self.limit).find(|fd| !self.used.contains(fd))
        }
    }

    impl Linux for Table {
        fn open(&mut self) -> Result<RawFd, i32> {
            self.calls += 1;
            let fd = self.lowest(0).ok_or(libc::EMFILE)?;
            self.used.insert(fd);
            Ok(fd)
        }

        fn close(&mut self, fd: RawFd) {
            self.calls += 1;
            assert!(self.used.remove(&fd), "{fd} was not open");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// `socket`, `accept` of IX.
        Socket,
        /// `close` of the nth socket of IX.
        Close(usize),
        /// `open`, this many times.
        Open(usize),
        /// `fcntl(F_DUPFD)` with this least number.
        From(RawFd),
        /// `close` of the nth descriptor of Linux's.
        CloseLinux(usize),
        /// `dup2` over any number.
        Over(RawFd),
        /// All kept numbers are released.
        Quiet,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => Just(Step::Socket),
            5 => (0..64usize).prop_map(Step::Close),
            2 => (1..3usize).prop_map(Step::Open),
            1 => (0..40).prop_map(Step::From),
            2 => (0..64usize).prop_map(Step::CloseLinux),
            1 => (0..40).prop_map(Step::Over),
            1 => Just(Step::Quiet),
        ];
        proptest::collection::vec(step, 0..200)
    }

    /// The library with Linux, and what the program expects.
    struct World {
        linux: Table,
        expected: Table,
        numbers: Numbers,
        freed: Freed,
        ours: Vec<RawFd>,
        theirs: Vec<RawFd>,
    }

    impl World {
        fn close(&mut self, fd: RawFd) {
            self.linux.close(fd);
            self.freed.at(fd);
        }

        fn make_room(&mut self, count: usize, least: RawFd) {
            for _ in 0..count {
                if let Some(fd) = self.numbers.give_back(least) {
                    self.close(fd);
                }
            }
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Socket => {
                    let taken = self.numbers.take(&self.freed, &mut self.linux);
                    let fd = taken.map(|taken| match taken {
                        Taken::Opened(fd) | Taken::Kept(fd) => fd,
                    });
                    assert_eq!(fd, self.expected.open());
                    self.ours.extend(fd);
                }
                Step::Close(nth) if !self.ours.is_empty() => {
                    let fd = self.ours.swap_remove(nth % self.ours.len());
                    self.expected.close(fd);
                    if let Some(over) = self.numbers.keep(fd) {
                        self.close(over);
                    }
                }
                Step::Open(count) => {
                    self.make_room(count, 0);
                    for _ in 0..count {
                        let fd = self.linux.open();
                        assert_eq!(fd, self.expected.open());
                        self.theirs.extend(fd);
                    }
                }
                Step::From(least) => {
                    self.make_room(1, least);
                    let fd = self.linux.lowest(least);
                    assert_eq!(fd, self.expected.lowest(least));
                    self.linux.used.extend(fd);
                    self.expected.used.extend(fd);
                    self.theirs.extend(fd);
                }
                Step::CloseLinux(nth) if !self.theirs.is_empty() => {
                    let fd = self.theirs.swap_remove(nth % self.theirs.len());
                    self.expected.close(fd);
                    self.close(fd);
                }
                Step::Over(fd) if fd < self.linux.limit && !self.ours.contains(&fd) => {
                    self.numbers.remove(fd);
                    self.linux.used.insert(fd);
                    if self.expected.used.insert(fd) {
                        self.theirs.push(fd);
                    }
                }
                Step::Quiet => self.make_room(KEPT_MAX, 0),
                _ => {}
            }
            assert!(self.numbers.len() <= self.numbers.max);
        }
    }

    fn world(limit: RawFd, max: usize) -> World {
        let table = || Table { limit, ..Table::default() };
        let mut numbers = Numbers::new();
        numbers.limit(8 * max as u64);
        let (ours, theirs) = (Vec::new(), Vec::new());
        World { linux: table(), expected: table(), numbers, freed: Freed::new(), ours, theirs }
    }

    proptest! {
        #[test]
        fn the_program_gets_the_lowest_free_number(steps in steps(), limit in 1..40, max in 0..9usize) {
            let mut world = world(limit, max);
            for step in &steps {
                world.step(step);
            }
            world.step(&Step::Quiet);
            prop_assert_eq!(world.linux.used, world.expected.used);
        }
    }

    #[test]
    fn connections_come_and_go_without_linux() {
        // At some moment all are kept, at another none.
        let mut world = world(100, 64);
        (0..20).for_each(|_| world.step(&Step::Socket));
        let churn = |world: &mut World| {
            for nth in [3, 0, 7, 7, 1] {
                world.step(&Step::Close(nth));
            }
            (0..5).for_each(|_| world.step(&Step::Socket));
        };
        churn(&mut world);
        let before = world.linux.calls;
        (0..1000).for_each(|_| churn(&mut world));
        assert_eq!(world.linux.calls, before);
    }
}
