//! The native API and event loop of programs written for IX.
//!
//! A program under `ix run` shares its process with a dataplane: its own TCP/IP stack on dedicated
//! hardware threads. The library has two layers, and the lower one is useful on its own:
//!
//! * [`raw`]: the contract of `ix-abi` in safe types. A [`raw::Thread`] is one elastic thread: it
//!   takes batched system calls and returns event conditions; `run_io` is the only crossing.
//! * [`event`]: an [`event::EventLoop`] with connections, callbacks, zero-copy receive and send,
//!   timers, and one `sendv` per connection and cycle however often it was written to.
//!
//! All `unsafe` of the library is in [`raw`] and in the model of a dataplane (`loopback`).
//!
//! ```no_run
//! use libix::event::{Conn, EventLoop, Handler, Io};
//! use libix::raw::{Process, Thread};
//!
//! struct Echo;
//! impl Handler for Echo {
//!     type State = ();
//!     fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: std::net::SocketAddr) -> Option<()> {
//!         Some(())
//!     }
//!     fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
//!         let bytes = conn.received_bytes();
//!         conn.send_received(bytes); // straight out of the receive buffer
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let process = Process::find()?;
//! let mut service = EventLoop::new(Thread::enter(&process, 0)?, Echo);
//! service.listen("0.0.0.0:7".parse()?, 0)?;
//! service.run()?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod addr;
pub mod control;
pub mod engine;
mod error;
pub mod event;
mod fifo;
#[cfg(feature = "loopback")]
#[allow(unsafe_code)]
pub mod loopback;
#[allow(unsafe_code)]
pub mod raw;
mod turns;

pub use error::{Dead, Error};
