//! Sockets, epoll and related calls on IX, for unmodified dynamically linked programs.
//!
//! `ix run` loads this library in front of the C library. Calls of the program arrive here first
//! (`ffi`). A call that is not about a socket of IX goes on to the C library. The table in
//! `table.rs` says which call goes where.
//!
//! The modules are in layers, lowest first; none uses one of a layer above:
//!
//! * **Linux**: which descriptors are ours, read without a lock (`fds`); the C library's functions
//!   (`real`); the program's memory (`mem`). Under each of our descriptors there is a Linux file,
//!   so that numbers, `fstat` and `select` work as usual; `numbers` keeps those of closed sockets
//!   for the next ones. `low_ports` has the broker bind what the program may not.
//! * **State**: sockets, connections, ports and epoll sets, all in `state::Core`, and what happens
//!   to them (`ports`, `accept_queue`, `closing`, `local_pair`).
//! * **Driver**: `emit` turns what the program has done into batched system calls, and `dispatch`
//!   takes in the events. `cycle` runs both around one cycle; `wait` does so on whichever thread
//!   has to wait, `helper` while none does. `serving` decides which process of the program runs the
//!   dataplane. `lock` has the one lock, and `signals` keeps the program's handlers out of the
//!   dataplane. `cancel` lets threads that wait be cancelled. Calls under way, transmit memory and
//!   flows are parts of `libix::engine`.
//! * **Own calls**: `trap` brings the system calls that the program makes itself to `ffi`.
//! * **Calls**: `ops`, `receive`, `send`, `sockopt`, `poll` and `epoll` are the calls, in safe
//!   code. `announce` says whose the sockets are.
//!
//! The path of a request on a busy server has no system call: `epoll_wait` runs a cycle, `read`
//! copies from the receive buffer, `write` copies to transmit memory, and the next `epoll_wait`
//! sends.
// Tests leave the C names out, so most functions have no caller there.
#![cfg_attr(test, allow(dead_code))]

// Linux.
mod clock;
mod common_ports;
mod commons;
mod confined;
mod ephemeral;
mod errno;
mod error_queue;
mod family;
mod fds;
mod filtered;
mod holders;
mod icmp;
mod in_flight;
mod interface;
mod kick;
mod kin;
mod linux_route;
mod linux_side;
mod log;
mod low_ports;
mod mem;
mod numbers;
mod paths;
mod pid;
mod placeholder;
mod real;
mod route;
mod slab;
mod successor;
mod verdict;
mod wake;

// State.
mod accept_queue;
mod afloat;
mod closing;
mod elastic_thread;
mod epoll_set;
mod group_options;
mod groups;
mod handed;
mod inherited;
mod local_pair;
mod options;
mod port;
mod ports;
mod record;
mod set_log;
mod socket;
mod state;
mod stream;
mod waiter;

// Driver.
mod cancel;
mod cycle;
#[cfg(test)]
mod cycle_tests;
mod decided;
mod dispatch;
mod emit;
mod file_flags;
mod helper;
mod in_reserve;
mod kept_numbers;
mod limited;
mod lock;
mod lost;
mod outside;
mod quiet_sets;
mod serving;
mod shared_sets;
mod shares;
mod signals;
mod testament;
mod wait;

// Calls.
mod announce;
mod cmsg;
mod custodian;
mod epoll;
#[cfg(not(test))]
mod ffi;
mod instructions;
mod ops;
mod own_calls;
mod poll;
mod process;
mod receive;
mod send;
mod send_datagram;
mod sockopt;
#[cfg(test)]
mod table;
mod thrift;
#[cfg(not(test))]
mod trap;
mod unsupported;
mod uring;
