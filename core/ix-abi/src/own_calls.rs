//! Counts of system calls that a program makes by instructions of its own, and what the socket
//! library says. The program's processes write both into a file of the run, which the broker reads.
//! It is not trusted: the program can write there what it likes.
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the page of counts: the first ones of the file.
pub const OWN_CALLS_BYTES: usize = 4096;
/// Bytes of the text behind it: the lines that the library has said, each with its time and an end
/// of line. Behind the last one there are zeros.
pub const SAID_BYTES: usize = 8192;
/// Bytes of the file.
pub const OWN_FILE_BYTES: usize = OWN_CALLS_BYTES + SAID_BYTES;
/// Most sites of all processes of a run that are counted there.
pub const OWN_SITES_MAX: usize = OWN_CALLS_BYTES / size_of::<OwnSite>();

/// A site: an instruction of one process. Free while `process` is 0.
#[repr(C)]
#[derive(Debug, Default)]
pub struct OwnSite {
    /// The process, by its number in its own namespace.
    pub process: AtomicU32,
    /// What became of the site ([`SiteState`]).
    pub state: AtomicU32,
    /// Its address.
    pub address: AtomicU64,
    /// The number of the call that it made last.
    pub number: AtomicU64,
    /// Calls that trapped.
    pub trapped: AtomicU64,
    /// Calls that came without a trap, because the instruction was rewritten.
    pub rewritten: AtomicU64,
}

const _: () = assert!(size_of::<OwnSite>() == 40);

/// What Linux or IX has last refused the program, behind the sites.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RefusedBind {
    /// The errno of `bind` or `listen`; 0: nothing, or the program has bound another port since.
    pub errno: AtomicU32,
    /// The port.
    pub port: AtomicU32,
    /// Not 0: the user has read so on standard error.
    pub told: AtomicU32,
}

/// Where it is.
pub const REFUSED_BIND_AT: usize = OWN_SITES_MAX * size_of::<OwnSite>();

const _: () = assert!(REFUSED_BIND_AT + size_of::<RefusedBind>() <= OWN_CALLS_BYTES);

macro_rules! states {
    ($($(#[$doc:meta])* $state:ident = $number:literal, $why:expr;)*) => {
        /// What became of a site that has trapped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum SiteState {
            $($(#[$doc])* $state = $number,)*
        }

        impl SiteState {
            /// The state of this number.
            pub fn of(number: u32) -> Option<SiteState> {
                match number {
                    $($number => Some(SiteState::$state),)*
                    _ => None,
                }
            }

            /// Why its calls go on trapping, in words; `None`: they do not, or it is too early.
            pub fn why(self) -> Option<&'static str> {
                match self {
                    $(SiteState::$state => $why,)*
                }
            }
        }
    };
}

states! {
    /// It has trapped too few times.
    New = 0, None;
    /// It was rewritten.
    Rewritten = 1, None;
    /// It does not lie in a file's code that only this process has mapped.
    NotInFile = 2, Some("not in a file's code");
    /// There is no room in its neighbourhood of which it is certain that nothing executes it.
    NoRoom = 3, Some("no room for a jump");
    /// Threads could see half of a change.
    Straddles = 4, Some("it cannot be changed at once");
    /// Linux cannot tell processors to forget what they have fetched.
    NoBarrier = 5, Some("Linux lacks membarrier's SYNC_CORE");
    /// No memory within reach of a jump.
    NoMemory = 6, Some("no memory in reach");
    /// Linux does not let code be changed.
    Refused = 7, Some("Linux refuses to have code changed");
    /// There are too many.
    Full = 8, Some("too many");
    /// It was rewritten, and the program has put back what was there.
    PutBack = 9, Some("the program changes its code");
    /// Its calls are about the thread itself: signals, threads, the end.
    Whole = 10, Some("its calls need a trap");
}
