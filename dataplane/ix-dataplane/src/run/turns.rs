//! The time slice of an elastic thread that takes turns with its program on one hardware thread.
//!
//! A thread that yields is behind by one slice for Linux's scheduler (EEVDF). An elastic thread has
//! a short slice, so that it runs soon after a packet has woken it. A thread of an unmodified
//! program has the usual one, 14 times as long: after each turn the program is behind by as much,
//! and the elastic thread gets the processor back from `sched_yield` until it has yielded 14 times
//! and more. With memcached that was 16 µs of each 64. So an elastic thread that yields in vain
//! takes the usual slice, for as long as its program takes turns with it.

/// Number of turns after which the slice is looked at.
const LOOK_TURNS: u32 = 64;

/// More yields in vain than this a turn are due to the slices.
const IN_VAIN_MAX: u32 = 3;

/// Most yields in vain of one turn that count: a program that computes for long is another matter.
const OF_ONE_TURN_MAX: u32 = 32;

/// The usual slice, for `sched_setattr`.
const USUAL: u64 = 0;

/// The turns of one elastic thread. For the Linux thread that has made it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    turns: u32,
    in_vain: u32,
    /// The slice to return to, ns, if it has the usual one for its program.
    own_slice_ns: Option<u64>,
}

impl Turns {
    /// The program has had a turn. `in_vain`: how many yields before it did not let it run.
    #[inline]
    pub fn had_one(&mut self, in_vain: u32) {
        self.turns += 1;
        self.in_vain += in_vain.min(OF_ONE_TURN_MAX);
        if self.turns == LOOK_TURNS {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        let are_in_vain = self.in_vain > IN_VAIN_MAX * LOOK_TURNS;
        (self.turns, self.in_vain) = (0, 0);
        if are_in_vain && self.own_slice_ns.is_none() {
            self.own_slice_ns = exchange_slice(USUAL);
        }
    }

    /// The program computes on another hardware thread.
    #[inline]
    pub fn are_over(&mut self) {
        if let Some(own_ns) = self.own_slice_ns.take() {
            exchange_slice(own_ns);
        }
    }
}

/// Gives the calling thread this slice; returns the one that it had. `None`: it is not scheduled in
/// the usual way, or that is refused. A kernel without slices (before Linux 6.12) ignores it.
fn exchange_slice(slice_ns: u64) -> Option<u64> {
    // SAFETY: numbers only; all zero is a value of it.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::sched_attr>();
    // SAFETY: fills a local of that size; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, bytes, 0) };
    if got != 0 || attr.sched_policy != libc::SCHED_OTHER as u32 {
        return None;
    }
    let before_ns = attr.sched_runtime;
    (attr.size, attr.sched_runtime) = (bytes as u32, slice_ns);
    // SAFETY: reads a local; 0 is the calling thread.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } == 0;
    set.then_some(before_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one look makes of so many yields in vain a turn.
    fn after(turns: &mut Turns, in_vain: u32) -> Option<u64> {
        (0..LOOK_TURNS).for_each(|_| turns.had_one(in_vain));
        turns.own_slice_ns
    }

    #[test]
    fn yields_in_vain_bring_the_usual_slice_and_the_end_of_turns_the_own_one() {
        const OWN_NS: u64 = 100_000;
        let works = || {
            let usual_ns = exchange_slice(OWN_NS).expect("a usual thread");
            let mut turns = Turns::default();
            assert_eq!(after(&mut turns, 0), None);
            assert_eq!(after(&mut turns, IN_VAIN_MAX), None);
            let own_ns = after(&mut turns, 20).expect("the usual slice");
            assert_eq!(after(&mut turns, 0), Some(own_ns), "as long as there are turns");
            turns.are_over();
            assert_eq!(turns.own_slice_ns, None);
            assert_eq!(exchange_slice(usual_ns), Some(own_ns));
        };
        std::thread::spawn(works).join().expect("all of it");
    }

    #[test]
    fn one_long_computation_is_not_many_turns() {
        let mut turns = Turns::default();
        turns.had_one(1_000_000);
        (1..LOOK_TURNS).for_each(|_| turns.had_one(0));
        assert_eq!(turns.own_slice_ns, None);
    }
}
