//! Sockets, epoll and their kin on IX, for unmodified dynamically linked programs.
//!
//! `ix run` loads this library in front of the C library. What a program calls comes here first
//! (`ffi`); what is not about a socket of IX goes on to the C library. The table in `table.rs` says
//! which call goes where.
//!
//! * `fds` knows which descriptors are ours, without a lock. Under each lies one of Linux's, so
//!   that numbers, `fstat` and `select` are as ever; `numbers` keeps those of closed sockets for
//!   the next ones, and `ops::under` makes real sockets of them where Linux is asked after all.
//! * `ops`, `transfer`, `options`, `poll` and `ready` are the calls, in safe code, on what `state`
//!   holds.
//! * `seat` says which process of the program has the dataplane, and begins it.
//! * `drive` runs the dataplane on whichever thread has to wait; `emit` and `dispatch` are its two
//!   ends: calls in, events out. Calls under way, transmit memory and flows are kept by the parts
//!   of `libix::engine`.
//! * `signals` keeps the program's handlers out of the dataplane.
//!
//! The path of a request on a busy server has no system call: `epoll_wait` runs a cycle, `read`
//! copies out of the receive buffer, `write` into transmit memory, the next `epoll_wait` sends.
// Without the C names, which a test must not carry, nobody calls most of it.
#![cfg_attr(test, allow(dead_code))]

mod control;
#[cfg(test)]
mod cycle_tests;
mod dispatch;
mod drive;
mod emit;
mod epoll;
mod fds;
#[cfg(not(test))]
mod ffi;
mod icmp;
mod interface;
mod lacking;
mod lane;
mod log;
mod mem;
mod numbers;
mod ops;
mod options;
mod pair;
mod paths;
mod poll;
mod process;
mod ready;
mod real;
mod route;
mod seat;
mod signals;
mod slab;
mod socket;
mod state;
mod stream;
mod sync;
#[cfg(test)]
mod table;
mod transfer;
