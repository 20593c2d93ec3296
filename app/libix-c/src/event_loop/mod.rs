//! The event loop: one for each elastic thread.
//!
//! The actions of a callback are only noted. Before the next cycle, each changed connection sends
//! everything that was written and returns everything that was consumed, in one step. A function
//! returns -IX_ERROR_STATE if it must not be called at this point: one that runs cycles within a
//! callback, or any function of the loop within a release function.
//!
//! Signals of the program are handled on the loop's thread, between two cycles; a handler that
//! calls ix_loop_stop ends ix_loop_run.
mod callbacks;
mod handler;

use crate::error::{code, remember};
use crate::types::{State, ix_endpoint};
pub use callbacks::ix_callbacks;
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use handler::Callbacks;
use ix_abi::gate_op;
use libix::Error;
use libix::event::{EventLoop, Io, Team};
use libix::raw::{Gate, Process, ProcessGate, Thread, Wait};

/// Who may use the loop at the moment.
#[derive(Clone, Copy)]
enum Access {
    /// The program, between cycles.
    Free,
    /// The program, in a callback, through the argument of the callback.
    Lent(*mut Io<State>),
    /// A cycle or a function of the loop runs: no other use.
    Taken,
}

/// The loops of a service on several elastic threads, between which connections move.
pub struct ix_team(pub(crate) Team<State>);

impl ix_team {
    /// The team, for tests that make loops themselves.
    pub fn inner(&self) -> &Team<State> {
        &self.0
    }
}

/// An event loop on an elastic thread. It belongs to the Linux thread that made it: only
/// ix_loop_stop may be called by other threads.
pub struct ix_loop {
    access: Cell<Access>,
    events: UnsafeCell<EventLoop<Callbacks>>,
    context: *mut c_void,
    idle_us: Cell<u64>,
    stop: AtomicBool,
    index: u32,
    /// `None` on the model of a dataplane.
    gate: Option<ProcessGate>,
}

/// Restores the access at the end of a callback or a function.
struct Restore<'a>(&'a Cell<Access>, Access);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl ix_loop {
    /// Makes a loop on an elastic thread of any dataplane; `ix_loop_free` frees it.
    pub fn on(
        thread: Thread,
        table: ix_callbacks,
        context: *mut c_void,
        team: Option<&Team<State>>,
        gate: Option<ProcessGate>,
    ) -> *mut ix_loop {
        let (index, handler) = (thread.index(), Callbacks::new(table));
        let events = match team {
            Some(team) => EventLoop::in_team(thread, handler, team),
            None => EventLoop::new(thread, handler),
        };
        let made = Box::into_raw(Box::new(ix_loop {
            access: Cell::new(Access::Free),
            events: UnsafeCell::new(events),
            context,
            idle_us: Cell::new(gate_op::WAIT_FOREVER),
            stop: AtomicBool::new(false),
            index,
            gate,
        }));
        // SAFETY: there is no other reference yet.
        unsafe { (*(*made).events.get()).handler().owner = made };
        made
    }

    fn take(&self) -> (Access, Restore<'_>) {
        let before = self.access.replace(Access::Taken);
        (before, Restore(&self.access, before))
    }

    /// Lets the program use `io` while `call` runs.
    pub(crate) fn lend<R>(&self, io: &mut Io<State>, call: impl FnOnce() -> R) -> R {
        let _restore = Restore(&self.access, self.access.replace(Access::Lent(io)));
        call()
    }

    /// Uses the loop, in a callback or between cycles.
    pub(crate) fn io<R>(&self, work: impl FnOnce(&mut Io<State>) -> R) -> Result<R, Error> {
        let (access, _restore) = self.take();
        match access {
            // SAFETY: no cycle runs and no other function, so this is the only reference.
            Access::Free => Ok(work(unsafe { (*self.events.get()).io() })),
            // SAFETY: the lender waits for the present callback, and no other code uses it while it
            // is taken.
            Access::Lent(io) => Ok(work(unsafe { &mut *io })),
            Access::Taken => Err(Error::State),
        }
    }

    /// Runs cycles; not within a callback.
    pub(crate) fn events<R>(
        &self,
        work: impl FnOnce(&mut EventLoop<Callbacks>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (access, _restore) = self.take();
        match access {
            // SAFETY: as in `io`; callbacks of `work` reach the loop through what they are lent.
            Access::Free => work(unsafe { &mut *self.events.get() }),
            Access::Lent(_) | Access::Taken => Err(Error::State),
        }
    }

    fn run(&self) -> Result<(), Error> {
        let mut quiet_since_us = self.io(|io| io.now_us())?;
        while !self.stop.swap(false, Ordering::Relaxed) {
            let idle_us = self.idle_us.get();
            let wait =
                if idle_us == gate_op::WAIT_FOREVER { Wait::Forever } else { Wait::Us(idle_us) };
            let (now_us, happened, idle) = self.events(|events| {
                let before = events.handler().told;
                events.turn(wait)?;
                let handler = events.handler();
                let (happened, idle) = (handler.told != before, handler.table.idle);
                Ok((events.io().now_us(), happened, idle))
            })?;
            if happened {
                quiet_since_us = now_us;
            } else if now_us.saturating_sub(quiet_since_us) >= idle_us {
                quiet_since_us = now_us;
                if let Some(idle) = idle {
                    // SAFETY: a function of this type (`ix_loop_new`), between two cycles.
                    unsafe { idle(core::ptr::from_ref(self).cast_mut()) };
                }
            }
        }
        Ok(())
    }
}

/// The loop behind a C program's pointer.
///
/// # Safety
/// It is null or a loop that was not freed, and the calling thread is the loop's.
pub(crate) unsafe fn with<R>(
    loop_: *const ix_loop,
    work: impl FnOnce(&ix_loop) -> Result<R, Error>,
) -> Result<R, Error> {
    // SAFETY: the caller's promise.
    unsafe { loop_.as_ref() }.ok_or(Error::Invalid).and_then(work)
}

/// Turns an outcome into a result for C.
pub(crate) fn answer(outcome: Result<i64, Error>) -> i64 {
    outcome.unwrap_or_else(code)
}

fn begin(
    thread: u32,
    table: ix_callbacks,
    context: *mut c_void,
    team: Option<&ix_team>,
) -> Result<*mut ix_loop, Box<dyn std::error::Error>> {
    let process = Process::find()?;
    let entered = Thread::enter(&process, thread)?;
    let team = team.map(|team| &team.0);
    Ok(ix_loop::on(entered, table, context, team, Some(process.gate())))
}

/// Makes the calling Linux thread the elastic thread with this number, counted from 0, and returns
/// a loop on it. context is the program's. If team is NULL, connections whose flow group moves to
/// another elastic thread are reset. On failure returns NULL, and ix_last_error has the reason.
///
/// # Safety
/// The table has the size that it states, its functions have their types, and team is null or was
/// not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_new(
    thread: u32,
    callbacks: *const ix_callbacks,
    context: *mut c_void,
    team: *const ix_team,
) -> *mut ix_loop {
    let mut table = ix_callbacks::default();
    if !callbacks.is_null() {
        // SAFETY: it has at least its stated size; only the part that both know is read.
        unsafe {
            let size = (*callbacks).size.min(size_of::<ix_callbacks>());
            let to = (&raw mut table).cast::<u8>();
            to.copy_from_nonoverlapping(callbacks.cast(), size);
        }
    }
    // SAFETY: null or a team by the caller's promise.
    match begin(thread, table, context, unsafe { team.as_ref() }) {
        Ok(made) => made,
        Err(why) => {
            remember(&why);
            core::ptr::null_mut()
        }
    }
}

/// Frees a loop: its connections are reset without a callback, and the calling thread becomes an
/// ordinary Linux thread again. Must not be called within a callback.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed, and no callback of it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_free(loop_: *mut ix_loop) {
    // SAFETY: the caller's promise.
    let Some(this) = (unsafe { loop_.as_ref() }) else { return };
    // A dataplane that no longer runs this thread has no connections of it either.
    if this.events(|events| events.abort_all()) != Err(Error::State) {
        // SAFETY: from `Box::into_raw` in `ix_loop_new`.
        drop(unsafe { Box::from_raw(loop_) });
    }
}

/// Runs cycles until ix_loop_stop is called, then returns 0.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_run(loop_: *mut ix_loop) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.run().map(|()| 0)) })
}

/// Runs one cycle: sends what was noted, waits at most wait_us for an event, and calls the
/// callbacks. A wait_us of 0 does not wait; IX_GATE_WAIT_FOREVER has no limit. For programs with a
/// loop of their own.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_turn(loop_: *mut ix_loop, wait_us: u64) -> i64 {
    let wait = match wait_us {
        0 => Wait::Poll,
        gate_op::WAIT_FOREVER => Wait::Forever,
        us => Wait::Us(us),
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.events(|events| events.turn(wait)).map(|()| 0)) })
}

/// Ends ix_loop_run after this cycle. Any thread and any signal handler may call it.
///
/// # Safety
/// `loop_` is null or a loop that is not freed during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_stop(loop_: *const ix_loop) {
    if loop_.is_null() {
        return;
    }
    // SAFETY: only fields that any thread may use: an atomic, and two that never change.
    let (stop, index, gate) = unsafe { (&(*loop_).stop, (*loop_).index, (*loop_).gate) };
    stop.store(true, Ordering::Relaxed);
    if let Some(mut gate) = gate {
        gate.call(gate_op::KICK, index.into(), 0, 0);
    }
}

/// Makes ix_loop_run call the callback idle after idle_us without events. With IX_GATE_WAIT_FOREVER
/// it is never called.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_set_idle(loop_: *mut ix_loop, idle_us: u64) -> i64 {
    let set = |this: &ix_loop| {
        this.idle_us.set(idle_us);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, set) })
}

/// Returns the context that ix_loop_new was given.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_context(loop_: *const ix_loop) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { loop_.as_ref() }.map_or(core::ptr::null_mut(), |this| this.context)
}

/// Returns the number of the loop's elastic thread.
///
/// # Safety
/// `loop_` is null or a loop that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_thread(loop_: *const ix_loop) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { loop_.as_ref() }.map_or(0, |this| this.index)
}

/// Opens a listener and returns its number. Runs cycles until it is open, so it must not be called
/// within a callback. A backlog of 0 is the dataplane's default.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `at` is null or points to an
/// endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_listen(
    loop_: *mut ix_loop,
    at: *const ix_endpoint,
    backlog: u32,
) -> i64 {
    let open = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let at = unsafe { crate::endpoint::read(at) }.ok_or(Error::Invalid)?;
        this.events(|events| events.listen(at, backlog)).map(|id| id as i64)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, open) })
}

/// Opens a UDP socket and returns its number. Runs cycles until it is open, so it must not be
/// called within a callback. Port 0 stands for any free port.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `at` is null or points to an
/// endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_bind(loop_: *mut ix_loop, at: *const ix_endpoint) -> i64 {
    let open = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let at = unsafe { crate::endpoint::read(at) }.ok_or(Error::Invalid)?;
        this.events(|events| events.udp_bind(at)).map(|id| id as i64)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, open) })
}

/// Returns a team for the elastic threads 0 to threads - 1.
#[unsafe(no_mangle)]
pub extern "C" fn ix_team_new(threads: u32) -> *mut ix_team {
    Box::into_raw(Box::new(ix_team(Team::new(threads))))
}

/// Frees the program's reference to a team. Loops that were made with it keep it.
///
/// # Safety
/// `team` is null or a team that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_team_free(team: *mut ix_team) {
    if !team.is_null() {
        // SAFETY: from `Box::into_raw` in `ix_team_new`.
        drop(unsafe { Box::from_raw(team) });
    }
}
