//! The event loop: one for each elastic thread.
//!
//! What a callback does is only noted; before the next cycle every connection that was touched
//! gives back what was consumed and sends what was written, at once, however often it was read from
//! and written to. A function that is called where it cannot be (a cycle within a callback,
//! anything within a release function) answers -IX_ERROR_STATE.
//!
//! Signals of the program are handled on the loop's thread, between two cycles; a handler that
//! calls ix_loop_stop ends ix_loop_run.
use crate::error::{code, remember};
use crate::handler::Callbacks;
use crate::types::{State, ix_callbacks, ix_team};
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use ix_abi::gate_op;
use libix::Error;
use libix::event::{EventLoop, Io, Team};
use libix::raw::{Gate, Process, ProcessGate, Thread, Wait};

/// Who may use the loop now.
#[derive(Clone, Copy)]
enum Access {
    /// The program, between cycles.
    Free,
    /// The program, in a callback, through what the callback was given.
    Lent(*mut Io<State>),
    /// Nobody: a cycle runs, or a function of the loop.
    Taken,
}

/// An event loop on an elastic thread. It belongs to the Linux thread that made it: all functions
/// but ix_loop_stop are for that thread only.
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

/// Puts the access back when a callback or a function is over.
struct Restore<'a>(&'a Cell<Access>, Access);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl ix_loop {
    /// On an elastic thread of any dataplane; to be freed by `ix_loop_free`.
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
        // SAFETY: nobody else has it yet.
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
            // SAFETY: whoever lent it waits for the callback in which we are, and nobody else uses
            // it while it is taken.
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
            // SAFETY: as in `io`; callbacks of this work reach the loop by what they are lent.
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

/// What a C program points to.
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

/// Makes an answer of an outcome.
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

/// Makes the calling Linux thread this elastic thread (the first one is 0) with a loop on it.
/// context is the program's own. team may be NULL: then connections whose flow group goes to
/// another elastic thread are reset. NULL: see ix_last_error.
///
/// # Safety
/// The table is of the size that it says, its functions are of their types, and team is null or was
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
        // SAFETY: it has at least its size; no more is read than both know.
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

/// Ends a loop: its connections are reset without a callback, and the calling thread is an ordinary
/// Linux thread again. Not within a callback.
///
/// # Safety
/// A loop of this thread that was not freed, or null; no callback of it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_free(loop_: *mut ix_loop) {
    // SAFETY: the caller's promise.
    let Some(this) = (unsafe { loop_.as_ref() }) else { return };
    // A dataplane that no longer runs this thread has no connections of it either.
    if this.events(|events| events.abort_all()) != Err(Error::State) {
        // SAFETY: of `Box::into_raw` in `ix_loop_new`.
        drop(unsafe { Box::from_raw(loop_) });
    }
}

/// Runs cycles until ix_loop_stop; then answers 0.
///
/// # Safety
/// A loop of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_run(loop_: *mut ix_loop) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.run().map(|()| 0)) })
}

/// Runs one cycle: sends what was noted, waits at most wait_us for something to happen (0: not at
/// all, IX_GATE_WAIT_FOREVER: no bound), and calls back. For a program with a loop of its own.
///
/// # Safety
/// A loop of this thread.
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

/// Ends ix_loop_run after this cycle. Any thread may call it, and a signal handler.
///
/// # Safety
/// A loop that is not freed meanwhile, or null.
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

/// Has ix_loop_run call back idle when nothing happened for idle_us; IX_GATE_WAIT_FOREVER: never.
///
/// # Safety
/// A loop of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_set_idle(loop_: *mut ix_loop, idle_us: u64) -> i64 {
    let set = |this: &ix_loop| {
        this.idle_us.set(idle_us);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, set) })
}

/// What ix_loop_new was given.
///
/// # Safety
/// A loop of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_context(loop_: *const ix_loop) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { loop_.as_ref() }.map_or(core::ptr::null_mut(), |this| this.context)
}

/// Which elastic thread it is.
///
/// # Safety
/// A loop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_loop_thread(loop_: *const ix_loop) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { loop_.as_ref() }.map_or(0, |this| this.index)
}

/// Opens a listener and answers its number; cycles run meanwhile, so not within a callback. backlog
/// 0: the dataplane's default.
///
/// # Safety
/// A loop of this thread, and an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_listen(
    loop_: *mut ix_loop,
    at: *const crate::types::ix_endpoint,
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

/// Opens a UDP socket and answers its number; cycles run meanwhile, so not within a callback. Port
/// 0: any that is free.
///
/// # Safety
/// A loop of this thread, and an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_bind(
    loop_: *mut ix_loop,
    at: *const crate::types::ix_endpoint,
) -> i64 {
    let open = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let at = unsafe { crate::endpoint::read(at) }.ok_or(Error::Invalid)?;
        this.events(|events| events.udp_bind(at)).map(|id| id as i64)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, open) })
}

/// A team for the elastic threads 0 to threads - 1.
#[unsafe(no_mangle)]
pub extern "C" fn ix_team_new(threads: u32) -> *mut ix_team {
    Box::into_raw(Box::new(ix_team(Team::new(threads))))
}

/// Ends a team; loops that were made with it keep it.
///
/// # Safety
/// A team that was not freed, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_team_free(team: *mut ix_team) {
    if !team.is_null() {
        // SAFETY: of `Box::into_raw` in `ix_team_new`.
        drop(unsafe { Box::from_raw(team) });
    }
}
