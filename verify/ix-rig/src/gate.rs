//! The library's end of an elastic thread in virtual time.
use crate::{Arrays, RigThread, VirtualClock};
use ix_abi::gate_op;
use ix_dataplane::{CycleReport, ElasticThread};
use libix::raw::{Gate, Thread};
use std::cell::RefCell;
use std::rc::Rc;

/// Sees, and may change, what crosses the gate of a thread. By default each method does nothing.
pub trait Watch {
    /// The application is in the gate with `calls` calls, and would wait for `wait_us`. Returns the
    /// number of calls to run; the method may append calls.
    fn before(&mut self, arrays: &mut Arrays, calls: usize, wait_us: u64) -> usize {
        let _ = (arrays, wait_us);
        calls
    }

    /// Runs one cycle at `now_us`; `last` is what the cycle before reported.
    fn cycle(
        &mut self,
        elastic: &mut ElasticThread,
        calls: usize,
        last: CycleReport,
        now_us: u64,
    ) -> CycleReport {
        let _ = last;
        elastic.run_cycle(calls, now_us)
    }

    /// The cycle is over, with this result.
    fn after(&mut self, arrays: &Arrays, calls: usize, report: CycleReport) {
        let _ = (arrays, calls, report);
    }
}

impl Watch for () {}

/// An elastic thread behind a gate.
pub struct Core<W = ()> {
    /// The thread.
    pub thread: RigThread,
    /// What sees its gate.
    pub watch: W,
    /// The clock of its cycles.
    pub clock: VirtualClock,
    /// What the last cycle reported.
    pub report: CycleReport,
}

impl<W: Watch> Core<W> {
    /// A thread that has not run yet.
    pub fn new(thread: RigThread, clock: &VirtualClock, watch: W) -> Core<W> {
        let report = CycleReport { events: 0, busy: false };
        Core { thread, watch, clock: clock.clone(), report }
    }

    fn run_io(&mut self, calls: usize, wait_us: u64) -> usize {
        let now_us = self.clock.now_us();
        let RigThread { elastic, arrays } = &mut self.thread;
        let calls = self.watch.before(arrays, calls, wait_us);
        arrays.set_now(now_us);
        self.report = self.watch.cycle(elastic, calls, self.report, now_us);
        self.watch.after(arrays, calls, self.report);
        self.report.events
    }
}

/// The wall in virtual time: `run_io` is one cycle, at the clock's time.
struct VirtualGate<W>(Rc<RefCell<Core<W>>>);

impl<W: Watch> Gate for VirtualGate<W> {
    fn call(&mut self, op: u64, _thread: u64, calls: u64, wait_us: u64) -> i64 {
        if op != gate_op::RUN_IO {
            return 0;
        }
        self.0.borrow_mut().run_io(calls as usize, wait_us) as i64
    }
}

/// Enters an elastic thread, number `index` of its dataplane, as a program does.
///
/// # Panics
/// When the thread was entered before.
pub fn enter<W: Watch + 'static>(core: &Rc<RefCell<Core<W>>>, index: usize) -> Thread {
    let area = core.borrow().thread.arrays.area();
    let gate = Box::new(VirtualGate(core.clone()));
    // SAFETY: the gate, which the library's thread holds, holds the core, which owns the arrays; it
    // serves them as the contract says, and writes them within gate calls only.
    let entered = unsafe { Thread::with_gate(gate, area, index as u32) };
    entered.expect("a fresh elastic thread")
}
