//! bufferevents over stream sockets.
use crate::buffer::{Owner, Role, evbuffer};
use crate::core::event_base;
use crate::event::{event, what};
use crate::util;
use core::cell::Cell;
use core::ffi::{c_int, c_short, c_void};
use std::io::ErrorKind;
use std::rc::Rc;

/// A program's function for data.
pub type DataCallback = unsafe extern "C" fn(bev: *mut bufferevent, arg: *mut c_void);
/// A program's function for other events.
pub type EventCallback =
    unsafe extern "C" fn(bev: *mut bufferevent, what: c_short, arg: *mut c_void);

/// Events (`BEV_EVENT_*`).
pub mod told {
    /// While reading.
    pub const READING: i16 = 0x01;
    /// While writing.
    pub const WRITING: i16 = 0x02;
    /// The peer has closed its direction.
    pub const EOF: i16 = 0x10;
    /// A fatal error; errno has the reason.
    pub const ERROR: i16 = 0x20;
    /// A timeout.
    pub const TIMEOUT: i16 = 0x40;
    /// The connection is open.
    pub const CONNECTED: i16 = 0x80;
}

/// Options (`BEV_OPT_*`).
pub mod option {
    /// Closes the descriptor when freed.
    pub const CLOSE_ON_FREE: c_int = 1;
    /// Calls functions only from the loop.
    pub const DEFER_CALLBACKS: c_int = 4;
    use core::ffi::c_int;
}

/// Most bytes that one event reads or writes, so that connections take turns.
const AT_ONCE_BYTES: usize = 16 << 10;

/// Low and high watermark of a direction.
#[derive(Clone, Copy, Default)]
pub struct Watermark {
    /// Calls the function from this many bytes on (reading), or at most this many (writing).
    pub low: usize,
    /// Stops reading at this many bytes; 0: no limit.
    pub high: usize,
}

/// A program's functions.
#[derive(Clone, Copy)]
pub struct Callbacks {
    /// For received data.
    pub read: Option<DataCallback>,
    /// For sent data.
    pub write: Option<DataCallback>,
    /// For other events.
    pub event: Option<EventCallback>,
    /// Their argument.
    pub arg: *mut c_void,
}

/// A connection with its buffers, with a reference count: programs hold a pointer to this.
pub struct bufferevent {
    /// Received bytes.
    pub input: evbuffer,
    /// Bytes to send.
    pub output: evbuffer,
    reads: event,
    writes: event,
    /// Deferred callbacks.
    later: event,
    late: Cell<i16>,
    late_events: Cell<i16>,
    late_errno: Cell<c_int>,
    /// Functions of the program.
    pub callbacks: Cell<Callbacks>,
    /// Events for reading and writing.
    pub marks: [Cell<Watermark>; 2],
    timeouts_us: [Cell<Option<u64>>; 2],
    enabled: Cell<i16>,
    /// The input is full.
    suspended: Cell<bool>,
    connecting: Cell<bool>,
    refused: Cell<bool>,
    /// The program has freed it.
    dead: Cell<bool>,
    options: c_int,
    /// Result of the last name look-up.
    pub dns_error: Cell<c_int>,
}

unsafe extern "C" fn on_readable(_: c_int, result: c_short, arg: *mut c_void) {
    bufferevent::hold(arg.cast()).readable(result);
}

unsafe extern "C" fn on_writable(_: c_int, result: c_short, arg: *mut c_void) {
    bufferevent::hold(arg.cast()).writable(result);
}

unsafe extern "C" fn on_later(_: c_int, _: c_short, arg: *mut c_void) {
    bufferevent::hold(arg.cast()).tell_late();
}

impl bufferevent {
    /// A bufferevent over a socket, or with -1 for one that is connected later.
    pub fn new(base: *mut event_base, fd: c_int, options: c_int) -> *mut bufferevent {
        let none = Callbacks { read: None, write: None, event: None, arg: core::ptr::null_mut() };
        let mark = || Cell::new(Watermark::default());
        let made = Rc::new(bufferevent {
            input: evbuffer::default(),
            output: evbuffer::default(),
            reads: event::zeroed(),
            writes: event::zeroed(),
            later: event::zeroed(),
            late: Cell::new(0),
            late_events: Cell::new(0),
            late_errno: Cell::new(0),
            callbacks: Cell::new(none),
            marks: [mark(), mark()],
            timeouts_us: [Cell::new(None), Cell::new(None)],
            enabled: Cell::new(what::WRITE),
            suspended: Cell::new(false),
            connecting: Cell::new(false),
            refused: Cell::new(false),
            dead: Cell::new(false),
            options,
            dns_error: Cell::new(0),
        });
        let owner: *const dyn Owner = &raw const *made;
        made.input.owner.set(Some((owner, Role::Input)));
        made.output.owner.set(Some((owner, Role::Output)));
        made.input.frozen[1].set(true);
        made.output.frozen[0].set(true);
        made.assign(base, fd);
        Rc::into_raw(made).cast_mut()
    }

    /// Adds a reference, while there is one.
    pub fn hold(this: *const bufferevent) -> Rc<bufferevent> {
        // SAFETY: programs and our events refer to bufferevents that were not freed, which `new`
        // made by `Rc::into_raw`.
        unsafe {
            Rc::increment_strong_count(this);
            Rc::from_raw(this)
        }
    }

    /// Drops the program's reference.
    pub fn release(this: *mut bufferevent) {
        // SAFETY: as in `hold`; this is the program's reference.
        drop(unsafe { Rc::from_raw(this.cast_const()) });
    }

    /// Frees it. No more functions are called.
    pub fn free(&self) {
        if self.dead.replace(true) {
            return;
        }
        let none = Callbacks { read: None, write: None, event: None, arg: core::ptr::null_mut() };
        self.callbacks.set(none);
        self.stop();
        self.input.owner.set(None);
        self.output.owner.set(None);
        let fd = self.fd();
        if self.options & option::CLOSE_ON_FREE != 0 && fd >= 0 {
            util::close(fd);
        }
    }

    fn stop(&self) {
        for ev in [&self.reads, &self.writes, &self.later] {
            ev.delete();
        }
    }

    /// Its own pointer, which programs have.
    fn me(&self) -> *mut bufferevent {
        core::ptr::from_ref(self).cast_mut()
    }

    fn assign(&self, base: *mut event_base, fd: c_int) {
        let arg = self.me().cast();
        self.reads.assign(base, fd, what::READ | what::PERSIST, Some(on_readable), arg);
        self.writes.assign(base, fd, what::WRITE | what::PERSIST, Some(on_writable), arg);
        self.later.assign(base, -1, 0, Some(on_later), arg);
    }

    /// The socket, or -1.
    pub fn fd(&self) -> c_int {
        self.reads.fd.get()
    }

    /// Sets another socket.
    pub fn set_fd(&self, fd: c_int) {
        let base = self.base();
        self.stop();
        self.assign(base, fd);
        if fd >= 0 {
            self.enable(self.enabled.get());
        }
    }

    /// Sets the socket that it connects.
    pub fn become_fd(&self, fd: c_int) {
        let base = self.base();
        self.stop();
        self.assign(base, fd);
    }

    /// Its base.
    pub fn base(&self) -> *mut event_base {
        self.reads.base_ptr()
    }

    /// Sets another base, unless one of its events waits.
    pub fn set_base(&self, base: *mut event_base) -> bool {
        let idle = [&self.reads, &self.writes].iter().all(|ev| ev.flags.get() & 0x0f == 0);
        if idle {
            [&self.reads, &self.writes, &self.later].iter().for_each(|ev| ev.base.set(base.cast()));
        }
        idle
    }

    /// Sets the priority of its callbacks.
    pub fn set_priority(&self, priority: u8) {
        [&self.reads, &self.writes, &self.later].iter().for_each(|ev| ev.priority.set(priority));
    }

    /// The priority of its callbacks.
    pub fn priority(&self) -> u8 {
        self.reads.priority.get()
    }

    /// What is enabled.
    pub fn enabled(&self) -> i16 {
        self.enabled.get()
    }

    /// Enables reading or writing.
    pub fn enable(&self, which: i16) -> bool {
        self.enabled.set(self.enabled.get() | which);
        let mut done = true;
        if self.fd() < 0 {
            return done;
        }
        if which & what::READ != 0 && !self.suspended.get() && !self.connecting.get() {
            done &= self.reads.add(self.timeouts_us[0].get());
        }
        if which & what::WRITE != 0 {
            done &= self.writes.add(self.timeouts_us[1].get());
        }
        done
    }

    /// Disables reading or writing.
    pub fn disable(&self, which: i16) {
        self.enabled.set(self.enabled.get() & !which);
        if which & what::READ != 0 {
            self.reads.delete();
        }
        if which & what::WRITE != 0 && !self.connecting.get() {
            self.writes.delete();
        }
    }

    /// Sets the timeouts of reading and writing; `None` for no timeout.
    pub fn set_timeouts(&self, read_us: Option<u64>, write_us: Option<u64>) {
        self.timeouts_us[0].set(read_us);
        self.timeouts_us[1].set(write_us);
        for (ev, timeout_us) in [(&self.reads, read_us), (&self.writes, write_us)] {
            if ev.is_in(crate::event::list::INSERTED) {
                ev.stop_timer();
                ev.add(timeout_us);
            }
        }
    }

    /// Sets other watermarks; a direction that waited for room may continue.
    pub fn set_marks(&self, which: i16, mark: Watermark) {
        for (bit, place) in [(what::READ, &self.marks[0]), (what::WRITE, &self.marks[1])] {
            if which & bit != 0 {
                place.set(mark);
            }
        }
        if which & what::READ != 0 {
            self.look_at_room();
        }
    }

    /// Reads as long as there is room.
    fn look_at_room(&self) {
        let high = self.marks[0].get().high;
        let full = high > 0 && self.input.chunks.borrow().len() >= high;
        if full == self.suspended.replace(full) {
            return;
        }
        if full {
            self.reads.delete();
        } else if self.enabled.get() & what::READ != 0 {
            self.enable(what::READ);
        }
    }

    fn readable(self: &Rc<Self>, result: i16) {
        if result == what::TIMEOUT {
            return self.failed(what::READ, told::READING | told::TIMEOUT);
        }
        let high = self.marks[0].get().high;
        let room = match high {
            0 => AT_ONCE_BYTES,
            high => high.saturating_sub(self.input.chunks.borrow().len()).min(AT_ONCE_BYTES),
        };
        if room == 0 {
            return self.look_at_room();
        }
        match util::read_into(&self.input, self.fd(), room) {
            Ok(0) => self.failed(what::READ, told::READING | told::EOF),
            Ok(_) => {
                self.look_at_room();
                self.trigger(what::READ, 0);
            }
            Err(error) if is_passing(&error) => {}
            Err(_) => self.failed(what::READ, told::READING | told::ERROR),
        }
    }

    fn writable(self: &Rc<Self>, result: i16) {
        if result == what::TIMEOUT {
            return self.failed(what::WRITE, told::WRITING | told::TIMEOUT);
        }
        let was_connecting = self.connecting.get();
        if was_connecting && !self.finish_connecting() {
            return;
        }
        let mut written = 0;
        if self.output.chunks.borrow().len() > 0 {
            match util::write_from(&self.output, self.fd(), AT_ONCE_BYTES) {
                Ok(0) => return self.failed(what::WRITE, told::WRITING | told::EOF),
                Ok(n) => written = n,
                Err(error) if is_passing(&error) => return,
                Err(_) => return self.failed(what::WRITE, told::WRITING | told::ERROR),
            }
        }
        if self.output.chunks.borrow().len() == 0 {
            self.writes.delete();
        }
        if written > 0 || !was_connecting {
            self.trigger(what::WRITE, 0);
        }
    }

    /// Whether it is connected and may write.
    fn finish_connecting(self: &Rc<Self>) -> bool {
        let error = if self.refused.replace(false) {
            libc::ECONNREFUSED
        } else {
            util::socket_error(self.fd())
        };
        if error == libc::EINPROGRESS {
            return false;
        }
        self.connecting.set(false);
        if error != 0 {
            self.writes.delete();
            self.reads.delete();
            util::set_errno(error);
            self.tell(told::ERROR);
            return false;
        }
        if self.enabled.get() & what::READ != 0 {
            self.enable(what::READ);
        }
        self.tell(told::CONNECTED);
        let goes_on = !self.dead.get() && self.enabled.get() & what::WRITE != 0;
        if !goes_on {
            self.writes.delete();
        }
        goes_on
    }

    /// Waits until a connection that was begun is open.
    pub fn begin_connecting(&self, outcome: util::Connecting) {
        self.connecting.set(true);
        match outcome {
            util::Connecting::Begun => {
                self.writes.add(self.timeouts_us[1].get());
            }
            util::Connecting::Done => self.writes.activate(what::WRITE),
            util::Connecting::Refused => {
                self.refused.set(true);
                self.writes.activate(what::WRITE);
            }
        }
    }

    fn failed(self: &Rc<Self>, which: i16, event: i16) {
        let errno = util::errno();
        self.disable(which);
        util::set_errno(errno);
        self.tell(event);
    }

    /// Calls the function for data if the watermarks allow it. `options` are those of a new one,
    /// and 0x10000 to ignore the watermarks.
    pub fn trigger(self: &Rc<Self>, which: i16, options: c_int) {
        const ANYWAY: c_int = 0x10000;
        let anyway = options & ANYWAY != 0;
        let may_read = self.input.chunks.borrow().len() >= self.marks[0].get().low;
        let may_write = self.output.chunks.borrow().len() <= self.marks[1].get().low;
        let mut tells = 0;
        if which & what::READ != 0 && (anyway || may_read) {
            tells |= what::READ;
        }
        if which & what::WRITE != 0 && (anyway || may_write) {
            tells |= what::WRITE;
        }
        if (self.options | options) & option::DEFER_CALLBACKS != 0 {
            self.late.set(self.late.get() | tells);
            return self.later.activate(0);
        }
        self.tell_data(tells);
    }

    fn tell_data(self: &Rc<Self>, which: i16) {
        let calls =
            [(what::READ, self.callbacks.get().read), (what::WRITE, self.callbacks.get().write)];
        for (bit, call) in calls {
            if which & bit != 0
                && !self.dead.get()
                && let Some(call) = call
            {
                // SAFETY: the program's function with its argument; `self` is held meanwhile.
                unsafe { call(self.me(), self.callbacks.get().arg) };
            }
        }
    }

    /// Calls the function for other events, now or (with the option) from the loop.
    pub fn tell(self: &Rc<Self>, event: i16) {
        if self.options & option::DEFER_CALLBACKS != 0 {
            self.late_events.set(self.late_events.get() | event);
            self.late_errno.set(util::errno());
            return self.later.activate(0);
        }
        self.tell_event(event);
    }

    fn tell_event(self: &Rc<Self>, event: i16) {
        if let Some(call) = self.callbacks.get().event {
            // SAFETY: as in `tell_data`.
            unsafe { call(self.me(), event, self.callbacks.get().arg) };
        }
    }

    fn tell_late(self: &Rc<Self>) {
        let (data, events) = (self.late.take(), self.late_events.take());
        if events & told::CONNECTED != 0 {
            self.tell_event(told::CONNECTED);
        }
        self.tell_data(data);
        if events & !told::CONNECTED != 0 {
            util::set_errno(self.late_errno.get());
            self.tell_event(events & !told::CONNECTED);
        }
    }
}

impl Drop for bufferevent {
    fn drop(&mut self) {
        self.free();
    }
}

/// Whether an error only means to try again.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Owner for bufferevent {
    fn buffer_changed(&self, role: Role, more: bool) {
        match role {
            Role::Output => {
                let waits = self.writes.is_in(crate::event::list::INSERTED);
                let may = self.enabled.get() & what::WRITE != 0 && self.fd() >= 0;
                if more && may && !waits {
                    self.writes.add(self.timeouts_us[1].get());
                }
            }
            Role::Input if !more => self.look_at_room(),
            Role::Input => {}
        }
    }
}
