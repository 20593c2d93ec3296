//! What the processes of one program share beside their dataplane: a page that forked children
//! inherit. Behind the process wall each of them is attached to the same dataplane.
//!
//! A listener that several have inherited serves whoever waits for it, as on Linux. So each says
//! here which listeners its threads wait for, and one that is told of a connection while it does
//! something else gives it to one that waits. What is written here is a hint: a process that is
//! given a connection and does not wait any more keeps it, or gives it on.
use crate::{clock, commons, holders, pid};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::net::{IpAddr, SocketAddr};

/// Most processes that share a dataplane.
pub const PROCESSES_MAX: usize = 64;

/// In the number that goes with a connection: it comes from a listener.
const OF_LISTENER: u64 = 1 << 63;

/// What one process says, on a cache line of its own, which only it writes.
#[repr(C, align(64))]
struct One {
    /// The listeners that its threads wait for, as a set of bits ([`bit`]).
    waits: AtomicU64,
    /// The listeners that it has.
    listens: AtomicU64,
}

/// A process that has called `listen`, and does not listen in the dataplane yet.
#[repr(C, align(64))]
struct Coming {
    /// 0: nobody.
    pid: AtomicI32,
    since_us: AtomicU64,
    listens: AtomicU64,
}

/// Most of them.
const COMING_MAX: usize = 32;
/// How long others wait for such a process, µs.
const COMES_WITHIN_US: u64 = 1_000_000;

#[repr(C)]
struct Shared {
    processes: [One; PROCESSES_MAX],
    coming: [Coming; COMING_MAX],
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());
/// The number of this process among those that share the dataplane, plus one; 0: it has none.
static OWN: AtomicU32 = AtomicU32::new(0);
/// What this process says, also before it has a number.
static WAITS: AtomicU64 = AtomicU64::new(0);
static LISTENS: AtomicU64 = AtomicU64::new(0);
/// This process was forked, or has forked.
static HAS_KIN: AtomicBool = AtomicBool::new(false);
/// This process was forked.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// At the start: what the processes of the run share.
pub fn begin_run() {
    if let Some(pages) = commons::part() {
        SHARED.store(pages, Ordering::Release);
    }
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or memory of ours, all zero at first and atomic, which is never unmapped.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// This process has these listeners, as bits, and will listen in the dataplane soon: another one
/// that closes a listener at the same address (a server's old process, when it is reloaded) goes on
/// until then.
pub fn comes(listens: u64) {
    let Some(shared) = shared() else { return };
    let own = pid::own();
    let is = |pid: i32| move |one: &&Coming| one.pid.load(Ordering::Acquire) == pid;
    let place = shared.coming.iter().find(is(own)).or_else(|| {
        shared.coming.iter().find(|one| {
            let before = one.pid.load(Ordering::Acquire);
            let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            let is_free = before == 0 || !one.is_coming();
            is_free && one.pid.compare_exchange(before, own, acquire, relaxed).is_ok()
        })
    });
    if let Some(one) = place {
        one.listens.store(listens, Ordering::Release);
        one.since_us.store(clock::now_us(), Ordering::Release);
    }
}

/// It listens, or ends.
pub fn has_come() {
    let own = pid::own();
    for one in shared().into_iter().flat_map(|shared| &shared.coming) {
        let _ = one.pid.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether another process will soon listen at an address with this bit.
pub fn is_coming(bit: u64) -> bool {
    let own = pid::own();
    shared().into_iter().flat_map(|shared| &shared.coming).any(|one| {
        let pid = one.pid.load(Ordering::Acquire);
        pid != 0 && pid != own && one.listens.load(Ordering::Acquire) & bit != 0 && one.is_coming()
    })
}

impl Coming {
    fn is_coming(&self) -> bool {
        clock::now_us() < self.since_us.load(Ordering::Acquire) + COMES_WITHIN_US
    }
}

/// Whether other processes may have sockets of this one.
#[inline]
pub fn exist() -> bool {
    HAS_KIN.load(Ordering::Relaxed)
}

/// Whether this process was forked by one that had IX.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// In an executed program: other processes have had its sockets.
pub fn executed() {
    HAS_KIN.store(true, Ordering::Relaxed);
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Before a fork, and before sockets go elsewhere.
pub fn before_fork() {
    HAS_KIN.store(true, Ordering::Relaxed);
}

/// In a forked child, which shares no dataplane yet.
pub fn forked() {
    IS_CHILD.store(true, Ordering::Relaxed);
    OWN.store(0, Ordering::Relaxed);
    WAITS.store(0, Ordering::Relaxed);
    LISTENS.store(0, Ordering::Relaxed);
}

/// This process shares the dataplane now, with this number, which another one may have had.
pub fn attached(number: u32) {
    OWN.store(number + 1, Ordering::Relaxed);
    say(WAITS.load(Ordering::Relaxed), LISTENS.load(Ordering::Relaxed));
}

/// This process executes another program: it waits for nothing, and has no listener. Returns what
/// [`comes_back`] needs.
pub fn parts() -> u32 {
    let own = OWN.swap(0, Ordering::Relaxed);
    if let Some(number) = own.checked_sub(1) {
        is_gone(number);
    }
    own
}

/// It has not executed it.
pub fn comes_back(own: u32) {
    if let Some(number) = own.checked_sub(1) {
        attached(number);
    }
}

/// Says which listeners the threads of this process wait for, and which ones it has.
pub fn say(waits: u64, listens: u64) {
    WAITS.store(waits, Ordering::Relaxed);
    LISTENS.store(listens, Ordering::Relaxed);
    let own = OWN.load(Ordering::Relaxed).wrapping_sub(1) as usize;
    if let Some(one) = shared().and_then(|shared| shared.processes.get(own)) {
        one.waits.store(waits, Ordering::Release);
        one.listens.store(listens, Ordering::Release);
        if listens != 0 {
            has_come();
        }
    }
}

/// Another process that waits for a listener with this bit; `turn` says where to begin.
pub fn who_waits(bit: u64, turn: &mut usize) -> Option<u32> {
    find(turn, |one| one.waits.load(Ordering::Acquire) & bit != 0)
}

/// Another process that has a listener with this bit: one that waits for it, if there is one.
pub fn who_has(bit: u64, turn: &mut usize) -> Option<u32> {
    let waits = who_waits(bit, turn);
    waits.or_else(|| find(turn, |one| one.listens.load(Ordering::Acquire) & bit != 0))
}

/// Whether one of these processes, as bits by their numbers, has a listener with this bit.
pub fn has_one(numbers: u64, bit: u64) -> bool {
    let listens = |number: usize| {
        let one = shared().and_then(|shared| shared.processes.get(number));
        one.is_some_and(|one| one.listens.load(Ordering::Acquire) & bit != 0)
    };
    (0..PROCESSES_MAX).any(|number| numbers >> number & 1 != 0 && listens(number))
}

/// Whether the process with this number was killed. What it has noted here is dropped then.
fn was_killed(number: u32) -> bool {
    let has_ended = holders::has_ended(number);
    if has_ended {
        is_gone(number);
    }
    has_ended
}

fn find(turn: &mut usize, suits: impl Fn(&One) -> bool) -> Option<u32> {
    let processes = &shared()?.processes;
    let own = OWN.load(Ordering::Relaxed).wrapping_sub(1) as usize;
    let mut all = (1..=PROCESSES_MAX).map(|n| (*turn + n) % PROCESSES_MAX);
    let found = all.find(|n| *n != own && suits(&processes[*n]) && !was_killed(*n as u32))?;
    *turn = found;
    Some(found as u32)
}

/// A process could not be given a connection: it has ended, or is about to.
pub fn is_gone(number: u32) {
    if let Some(one) = shared().and_then(|shared| shared.processes.get(number as usize)) {
        one.waits.store(0, Ordering::Release);
        one.listens.store(0, Ordering::Release);
    }
}

/// The bit of the listeners at an address. Others may have the same.
pub fn bit(at: SocketAddr) -> u64 {
    bit_of(token_of_listener(at))
}

/// The same of the number that goes with a connection.
pub fn bit_of(token: u64) -> u64 {
    1 << (token % 64)
}

/// The number that goes with a connection of a listener at this address.
pub fn token_of_listener(at: SocketAddr) -> u64 {
    let ip = match at.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => {
            let words = ip.to_bits();
            (words ^ words >> 32 ^ words >> 64 ^ words >> 96) as u32
        }
    };
    // `::` is not 0.0.0.0.
    let is_v6 = u64::from(at.ip().to_canonical().is_ipv6());
    OF_LISTENER | is_v6 << 48 | u64::from(ip) << 16 | u64::from(at.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_called_listen_is_waited_for_a_while() {
        let _one = crate::holders::ONE_TEST.lock();
        begin_run();
        pid::note();
        let bit = bit("10.0.0.1:80".parse().unwrap());
        comes(bit);
        assert!(!is_coming(bit), "not for itself");
        let coming = &shared().expect("memory").coming;
        let one = coming.iter().find(|one| one.pid.load(Ordering::Relaxed) == pid::own());
        let one = one.expect("it is noted");
        // As if it were another process.
        one.pid.store(1, Ordering::Relaxed);
        assert!(is_coming(bit) && !is_coming(bit.rotate_left(1)));
        has_come();
        assert!(is_coming(bit), "that says it itself");
        one.since_us.store(0, Ordering::Relaxed);
        assert!(clock::now_us() < COMES_WITHIN_US || !is_coming(bit), "not for ever");
        attached(4);
        say(0, bit);
        assert!(has_one(1 << 4 | 1, bit) && !has_one(1 << 5, bit), "by their numbers");
    }

    #[test]
    fn whoever_waits_is_found_in_turn() {
        let _one = crate::holders::ONE_TEST.lock();
        begin_run();
        // Of another test's processes one was killed.
        holders::begin_run();
        attached(3);
        let at: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let processes = &shared().expect("memory").processes;
        let mut turn = 0;
        say(bit(at), bit(at));
        assert_eq!(who_waits(bit(at), &mut turn), None, "not this one itself");
        processes[1].waits.store(bit(at), Ordering::Relaxed);
        processes[5].waits.store(!0, Ordering::Relaxed);
        processes[7].waits.store(!bit(at), Ordering::Relaxed);
        let found = [0; 4].map(|_| who_waits(bit(at), &mut turn));
        assert_eq!(found, [Some(1), Some(5), Some(1), Some(5)]);
        is_gone(5);
        assert_eq!(who_waits(bit(at), &mut turn), Some(1));
        processes[9].listens.store(bit(at), Ordering::Relaxed);
        assert_eq!(who_has(bit(at), &mut turn), Some(1), "one that waits comes first");
        is_gone(1);
        assert_eq!(who_waits(bit(at), &mut turn), None);
        assert_eq!(who_has(bit(at), &mut turn), Some(9));
    }

    #[test]
    fn listeners_have_numbers_of_their_own() {
        let tokens = [
            "10.0.0.1:80",
            "10.0.0.1:81",
            "0.0.0.0:80",
            "[::]:80",
            "[ff00::]:80",
            "[2001:db8::1]:80",
        ]
        .map(|at| token_of_listener(at.parse().unwrap()));
        for (n, token) in tokens.iter().enumerate() {
            assert!(!tokens[..n].contains(token) && token & OF_LISTENER != 0);
        }
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(token_of_listener(mapped), tokens[0]);
    }
}
