//! `struct event`, which programs allocate themselves, in libevent 2.1's layout.
use core::cell::Cell;
use core::ffi::{c_int, c_short, c_void};
use libc::timeval;

/// A program's function.
pub type Callback = unsafe extern "C" fn(fd: c_int, what: c_short, arg: *mut c_void);

/// Conditions of an event: those that it waits for, and those that its function gets (`EV_*`).
pub mod what {
    /// Its time is over.
    pub const TIMEOUT: i16 = 0x01;
    /// Readable.
    pub const READ: i16 = 0x02;
    /// Writable.
    pub const WRITE: i16 = 0x04;
    /// A signal was received.
    pub const SIGNAL: i16 = 0x08;
    /// It stays added after its callback.
    pub const PERSIST: i16 = 0x10;
    /// Edge-triggered.
    pub const ET: i16 = 0x20;
    /// The peer has closed.
    pub const CLOSED: i16 = 0x80;
    /// Flags of a descriptor.
    pub const IO: i16 = READ | WRITE | CLOSED;
}

/// Lists that contain an event (`EVLIST_*`).
pub mod list {
    /// Has a time.
    pub const TIMEOUT: i16 = 0x01;
    /// Waits for a descriptor or a signal.
    pub const INSERTED: i16 = 0x02;
    /// Is active.
    pub const ACTIVE: i16 = 0x08;
    /// Belongs to the library: it does not keep the loop running.
    pub const INTERNAL: i16 = 0x10;
    /// Was assigned.
    pub const INIT: i16 = 0x80;
}

/// An event. Fields have the same offsets as libevent's; this library uses libevent's list links
/// for other things.
#[repr(C)]
pub struct event {
    /// Not used.
    pub active_next: [Cell<usize>; 2],
    /// Its lists: [`list`].
    pub flags: Cell<i16>,
    /// Priority: smaller is sooner.
    pub priority: Cell<u8>,
    /// Not used.
    pub closure: Cell<u8>,
    /// The program's function.
    pub callback: Cell<Option<Callback>>,
    /// Its argument.
    pub arg: Cell<*mut c_void>,
    /// Key among the timers: when it is due, µs, and a unique number.
    pub due: [Cell<u64>; 2],
    /// Descriptor or signal.
    pub fd: Cell<c_int>,
    /// Its base, an `event_base`.
    pub base: Cell<*mut c_void>,
    /// Signals since the last callback.
    pub calls: Cell<usize>,
    /// Not used.
    pub links: Cell<usize>,
    /// Interval of a persistent event, µs; [`NEVER`] without a time.
    pub interval_us: Cell<u64>,
    /// Not used.
    pub unused: Cell<usize>,
    /// What it waits for: [`what`].
    pub events: Cell<i16>,
    /// What its function gets.
    pub result: Cell<i16>,
    /// Not used.
    pub timeout: Cell<timeval>,
}

/// No time.
pub const NEVER: u64 = u64::MAX;

/// An event that the program has assigned and not freed, as libevent demands of callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ev(pub *mut event);

// SAFETY: events of a base are used under its lock only, on any thread.
unsafe impl Send for Ev {}

impl core::ops::Deref for Ev {
    type Target = event;
    fn deref(&self) -> &event {
        // SAFETY: `Ev`'s promise; all fields are cells, so shared references suffice.
        unsafe { &*self.0 }
    }
}

impl event {
    /// Whether it is in one of these lists.
    pub fn is_in(&self, lists: i16) -> bool {
        self.flags.get() & lists != 0
    }

    /// Marks it as in a list.
    pub fn enter(&self, list: i16) {
        self.flags.set(self.flags.get() | list);
    }

    /// Marks it as not in a list.
    pub fn leave(&self, list: i16) {
        self.flags.set(self.flags.get() & !list);
    }

    /// Whether it waits for any of these.
    pub fn wants(&self, what: i16) -> bool {
        self.events.get() & what != 0
    }
}

const _: () = assert!(size_of::<event>() == 128);
