//! libevent 2.1's calls, for programs that were written for libevent: they are compiled against
//! libevent's own headers and linked with this library instead, or find it under libevent's name.
//!
//! This library uses descriptors by the C library's socket calls. Under `ix run` these are
//! `libix-posix`'s, so everything that a libevent program does with descriptors works as before:
//! its own `socket` and `accept4`, pipes and eventfds. On plain Linux the calls are Linux's.
//! docs/guide/libevent.md says what there is and what is missing.
//!
//! * `core`: events and the loop, in memory that programs own ([`event::event`]).
//! * `buffer`: evbuffers, as a queue of chunks.
//! * `bufferevent`, `listener`: connections and listeners over both.
//! * `ffi`: the calls.
#![allow(non_camel_case_types)]

mod assigned;
mod buffer;
mod bufferevent;
mod config;
mod core;
mod event;
mod ffi;
mod listener;
mod log;
mod poll;
mod signal;
mod util;
mod variadic;
