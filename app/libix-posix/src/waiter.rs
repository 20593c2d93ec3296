//! Threads of the program that wait, and which of them should look.
use std::os::fd::RawFd;

/// How a waiting thread is told to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// It sleeps on this wake descriptor, and drives this elastic thread when it waits next.
    Sleeper(RawFd, usize),
    /// It drives this elastic thread, and should come out.
    Driver(usize),
}

/// Threads to be told once the lock is released.
pub struct Wakeups {
    wake_fds: Vec<RawFd>,
    /// A bit for each elastic thread that one of the sleepers drives when it waits next.
    homes: u64,
    /// A bit for each elastic thread whose driver should come out.
    drivers: u64,
}

impl Wakeups {
    /// No thread.
    pub const fn none() -> Wakeups {
        Wakeups { wake_fds: Vec::new(), homes: 0, drivers: 0 }
    }

    /// Adds a thread that waits.
    pub fn add(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Sleeper(wake_fd, elastic) => {
                self.homes |= 1 << elastic;
                self.add_fd(wake_fd);
            }
            Waiter::Driver(elastic) => self.drivers |= 1 << elastic,
        }
    }

    /// Adds a sleeper that does not drive an elastic thread afterwards.
    pub fn add_fd(&mut self, wake_fd: RawFd) {
        if !self.wake_fds.contains(&wake_fd) {
            self.wake_fds.push(wake_fd);
        }
    }

    /// Whether one of the sleepers drives this elastic thread when it waits next.
    pub fn is_at_home(&self, elastic: usize) -> bool {
        self.homes >> elastic & 1 != 0
    }

    /// A driver has come out by itself.
    pub fn came_out(&mut self, elastic: usize) {
        self.drivers &= !(1 << elastic);
    }

    /// Takes the wake descriptors.
    pub fn take_wake_fds(&mut self) -> Vec<RawFd> {
        self.homes = 0;
        core::mem::take(&mut self.wake_fds)
    }

    /// Takes a bit for each elastic thread whose driver should come out.
    pub fn take_drivers(&mut self) -> u64 {
        core::mem::take(&mut self.drivers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_told_once() {
        let mut wakeups = Wakeups::none();
        for waiter in [Waiter::Sleeper(5, 2), Waiter::Driver(3), Waiter::Sleeper(5, 2)] {
            wakeups.add(waiter);
        }
        wakeups.add_fd(6);
        wakeups.add(Waiter::Driver(1));
        assert!(wakeups.is_at_home(2) && !wakeups.is_at_home(3));
        wakeups.came_out(3);
        assert_eq!((wakeups.take_wake_fds(), wakeups.take_drivers()), (vec![5, 6], 1 << 1));
        assert_eq!((wakeups.take_wake_fds(), wakeups.take_drivers()), (vec![], 0));
        assert!(!wakeups.is_at_home(2));
    }
}
