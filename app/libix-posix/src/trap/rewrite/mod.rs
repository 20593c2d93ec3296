//! Rewriting of system call instructions, so that their calls come here without a signal.
//!
//! An instruction is rewritten when it has trapped a few times. It is then known to be one, and
//! two bytes long; a short jump has two bytes as well and takes its place, so that no other
//! instruction changes, and a jump to it or behind it goes where it went. The short jump leads to
//! room behind the instruction that nothing executes ([`instructions::room`]), where a long one
//! leads to a stub of ours, and that to [`entry`]. What does not fit stays as it is and goes on
//! trapping.
//!
//! * `code`: changing code that other threads execute.
//! * `entry`: what a rewritten call does.
mod code;
pub mod entry;

pub use code::has_threads;

use super::frame::SYSCALL;
use super::sites::Site;
use crate::{instructions, limited};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ix_abi::SiteState;

/// Most sites that are rewritten.
pub const STUBS_MAX: usize = 120;
/// How often a site traps before it is rewritten: a change costs as much as some traps.
const TRAPS: u64 = 4;
/// A jump, and how far a short one goes.
const JUMP_BYTES: usize = 5;
const SHORT_REACH: usize = 127;
/// How much code is looked at: what a short jump reaches, and the longest room behind it.
const LOOKED_AT: usize = SHORT_REACH + 32;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// A thread changes code.
static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// How many sites were rewritten.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Behind each rewritten site, and where its jump stands.
static BEHIND: [AtomicU64; STUBS_MAX] = [const { AtomicU64::new(0) }; STUBS_MAX];
static JUMPS: [AtomicU64; STUBS_MAX] = [const { AtomicU64::new(0) }; STUBS_MAX];

/// Sites are rewritten from now on, where the processor lets it.
pub fn begin() {
    if entry::is_possible() {
        code::begin();
        IS_ON.store(true, Ordering::Relaxed);
    }
}

/// Whether a site is to be looked at. Runs in the handler.
pub fn wants(site: &Site) -> bool {
    IS_ON.load(Ordering::Relaxed)
        && match site.state() {
            SiteState::New | SiteState::Whole => {
                site.trapped() >= TRAPS || code::is_last_chance(site.behind())
            }
            SiteState::Rewritten => true,
            _ => false,
        }
}

/// Rewrites a site, if that is safe. Runs with all signals blocked.
pub fn consider(site: &Site) {
    if !wants(site) || limited::has_filter() || IS_BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    let state = match site.state() {
        // Another thread may have come here before the site was rewritten.
        SiteState::Rewritten if is_rewritten(site.behind()) => SiteState::Rewritten,
        SiteState::Rewritten => SiteState::PutBack,
        _ => rewrite(site.behind()).err().unwrap_or(SiteState::Rewritten),
    };
    site.set_state(state);
    IS_BUSY.store(false, Ordering::Release);
}

/// Before a fork, and after it in both processes: no code is changed meanwhile.
pub fn hold(held: bool) {
    while held && IS_BUSY.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    if !held {
        IS_BUSY.store(false, Ordering::Release);
    }
}

/// Whether the program still has the jump that was written there.
fn is_rewritten(behind: u64) -> bool {
    // SAFETY: the instruction has just been executed.
    let bytes = unsafe { ((behind - 2) as *const [u8; 2]).read_unaligned() };
    bytes != SYSCALL
}

fn rewrite(behind: u64) -> Result<(), SiteState> {
    let nth = COUNT.load(Ordering::Relaxed);
    if nth >= STUBS_MAX {
        return Err(SiteState::Full);
    }
    let text = code::Text::around(behind - 2).ok_or(SiteState::NotInFile)?;
    // SAFETY: the program has just executed it.
    let room = unsafe {
        if text.from(behind - 2, 2) != Some(&SYSCALL[..]) {
            return Err(SiteState::PutBack);
        }
        let code = text.from(behind, LOOKED_AT).ok_or(SiteState::NotInFile)?;
        instructions::room(code, behind, JUMP_BYTES, SHORT_REACH).ok_or(SiteState::NoRoom)?
    };
    BEHIND[nth].store(behind, Ordering::Relaxed);
    JUMPS[nth].store(behind + room.first as u64, Ordering::Relaxed);
    // SAFETY: as above; only one thread is here.
    unsafe { code::replace(text, behind, &room, nth)? };
    COUNT.store(nth + 1, Ordering::Relaxed);
    Ok(())
}

/// How many sites were rewritten.
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Where the instruction of a rewritten site ended.
pub fn behind(nth: usize) -> u64 {
    BEHIND[nth].load(Ordering::Relaxed)
}

/// The number of a rewritten site; `None`: it is none.
pub fn number_of(behind: u64) -> Option<usize> {
    let count = COUNT.load(Ordering::Relaxed);
    BEHIND[..count].iter().position(|other| other.load(Ordering::Relaxed) == behind)
}

/// Behind the site whose jumps an instruction belongs to, which the thread has not left yet.
pub fn on_the_way(address: u64) -> Option<u64> {
    let nth = code::stub_at(address).or_else(|| {
        let count = COUNT.load(Ordering::Relaxed);
        JUMPS[..count].iter().position(|jump| jump.load(Ordering::Relaxed) == address)
    })?;
    Some(BEHIND[nth].load(Ordering::Relaxed)).filter(|behind| *behind != 0)
}
