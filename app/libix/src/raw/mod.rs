//! The contract with the dataplane (`ix-abi`) in safe types.
//!
//! [`Process`] is the dataplane of this process, [`Thread`] one of its elastic threads, entered by
//! the calling Linux thread. A cycle of a program on this layer:
//!
//! 1. [`Thread::push`] and [`Thread::push_sendv`] append batched system calls;
//! 2. [`Thread::run_io`] gives the thread to the dataplane for one cycle;
//! 3. [`Thread::answer`] reads the return codes, [`Thread::event`] the event conditions.
//!
//! This path does not allocate, lock or enter Linux, except for pending signals.

mod bell;
pub mod call;
mod event;
pub(crate) mod huge;
mod lent;
mod packet;
mod process;
pub(crate) mod receive;
mod signal;
mod socket;
mod thread;
mod tx;
mod tx_buf;
mod will;

pub(crate) use bell::{ring_eventfd, signal_process};
pub use event::{Event, Received, Said};
pub use huge::prefetch;
pub use lent::Lent;
pub use packet::Packet;
pub(crate) use packet::Returns;
pub use process::{FindError, Process, ProcessGate, Starter};
pub(crate) use socket::connect_within;
pub use thread::{Ends, EnterError, Thread, Wait};
pub use tx::TxArena;
pub use tx_buf::{TxBuf, TxShared};
pub use will::Will;

/// The entry of the dataplane: `ix_abi::gate_op` and its three arguments.
///
/// [`ProcessGate`] is the real one; a simulator implements it over a simulated elastic thread, so
/// that the same programs run in virtual time.
pub trait Gate {
    /// Crosses the wall and returns with the result (< 0: minus an `ix_abi::error`).
    fn call(&mut self, op: u64, a: u64, b: u64, c: u64) -> i64;
}
