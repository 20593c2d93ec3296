//! Listeners, which accept connections and pass them to the program.
use crate::core::event_base;
use crate::event::{event, what};
use crate::util;
use core::cell::Cell;
use core::ffi::{c_int, c_short, c_void};
use libc::{sockaddr, sockaddr_storage, socklen_t};
use std::rc::Rc;

/// A program's function for a new connection.
pub type Accepted = unsafe extern "C" fn(
    listener: *mut evconnlistener,
    fd: c_int,
    peer: *mut sockaddr,
    bytes: c_int,
    arg: *mut c_void,
);
/// A program's function for an error of `accept`.
pub type Failed = unsafe extern "C" fn(listener: *mut evconnlistener, arg: *mut c_void);

/// Options (`LEV_OPT_*`).
pub mod option {
    /// Accepted sockets are blocking.
    pub const BLOCKING: u32 = 1;
    /// Closes the socket when the listener is freed.
    pub const CLOSE_ON_FREE: u32 = 2;
    /// Sockets are close-on-exec.
    pub const CLOSE_ON_EXEC: u32 = 4;
    /// `SO_REUSEADDR`.
    pub const REUSEABLE: u32 = 8;
    /// Does not accept before it is enabled.
    pub const DISABLED: u32 = 32;
    /// `TCP_DEFER_ACCEPT`.
    pub const DEFERRED: u32 = 64;
    /// `SO_REUSEPORT`.
    pub const REUSEABLE_PORT: u32 = 128;
    /// IPv6 only.
    pub const IPV6_ONLY: u32 = 256;
}

/// A listener: programs hold a pointer to this.
pub struct evconnlistener {
    readable: event,
    /// The function for connections.
    pub accepted: Cell<Option<Accepted>>,
    /// The function for errors.
    pub failed: Cell<Option<Failed>>,
    /// Their argument.
    pub arg: Cell<*mut c_void>,
    flags: u32,
    enabled: Cell<bool>,
    dead: Cell<bool>,
}

unsafe extern "C" fn on_readable(_: c_int, _: c_short, arg: *mut c_void) {
    evconnlistener::hold(arg.cast()).accept();
}

impl evconnlistener {
    /// A listener for a socket that listens already.
    pub fn new(
        base: *mut event_base,
        accepted: Option<Accepted>,
        arg: *mut c_void,
        flags: u32,
        fd: c_int,
    ) -> *mut evconnlistener {
        let made = Rc::new(evconnlistener {
            readable: event::zeroed(),
            accepted: Cell::new(accepted),
            failed: Cell::new(None),
            arg: Cell::new(arg),
            flags,
            enabled: Cell::new(false),
            dead: Cell::new(false),
        });
        let me = (&raw const *made).cast_mut();
        made.readable.assign(base, fd, what::READ | what::PERSIST, Some(on_readable), me.cast());
        if flags & option::DISABLED == 0 {
            made.enable();
        }
        Rc::into_raw(made).cast_mut()
    }

    /// Adds a reference, while there is one.
    pub fn hold(this: *const evconnlistener) -> Rc<evconnlistener> {
        // SAFETY: programs and our events refer to listeners that were not freed, which `new` made
        // by `Rc::into_raw`.
        unsafe {
            Rc::increment_strong_count(this);
            Rc::from_raw(this)
        }
    }

    /// Frees the listener.
    pub fn free(this: *mut evconnlistener) {
        // SAFETY: as in `hold`; this is the program's reference.
        let listener = unsafe { Rc::from_raw(this.cast_const()) };
        listener.dead.set(true);
        listener.readable.delete();
        if listener.flags & option::CLOSE_ON_FREE != 0 {
            util::close(listener.fd());
        }
    }

    /// The socket.
    pub fn fd(&self) -> c_int {
        self.readable.fd.get()
    }

    /// Its base.
    pub fn base(&self) -> *mut event_base {
        self.readable.base_ptr()
    }

    /// Starts to accept.
    pub fn enable(&self) -> bool {
        self.enabled.set(true);
        self.accepted.get().is_none() || self.readable.add(None)
    }

    /// Stops accepting.
    pub fn disable(&self) {
        self.enabled.set(false);
        self.readable.delete();
    }

    /// Sets another function for connections. If there was none, starts to accept.
    pub fn set_accepted(&self, accepted: Option<Accepted>, arg: *mut c_void) {
        self.accepted.set(accepted);
        self.arg.set(arg);
        if self.enabled.get() {
            self.enable();
        }
    }

    fn accept(&self) {
        while !self.dead.get()
            && self.enabled.get()
            && let Some(accepted) = self.accepted.get()
        {
            // SAFETY: all-zero is an address of no family.
            let mut peer: sockaddr_storage = unsafe { core::mem::zeroed() };
            let mut bytes = size_of::<sockaddr_storage>() as socklen_t;
            let blocking = self.flags & option::BLOCKING != 0;
            let mut flags = if blocking { 0 } else { libc::SOCK_NONBLOCK };
            if self.flags & option::CLOSE_ON_EXEC != 0 {
                flags |= libc::SOCK_CLOEXEC;
            }
            let at = (&raw mut peer).cast();
            // SAFETY: a place for any address, with its size.
            let fd = unsafe { libc::accept4(self.fd(), at, &mut bytes, flags) };
            let me = core::ptr::from_ref(self).cast_mut();
            if fd < 0 {
                let error = std::io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR | libc::ECONNABORTED) => continue,
                    Some(libc::EAGAIN) => return,
                    _ => {}
                }
                match self.failed.get() {
                    // SAFETY: the program's function with its argument.
                    Some(failed) => unsafe { failed(me, self.arg.get()) },
                    None => crate::log::warn(&format!("accept: {error}")),
                }
                return;
            }
            // SAFETY: as above; the listener is held by `on_readable`.
            unsafe { accepted(me, fd, at, bytes as c_int, self.arg.get()) };
        }
    }
}
