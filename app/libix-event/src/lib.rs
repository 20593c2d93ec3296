//! libevent 2.1's calls, for programs that were written for libevent: they are compiled against
//! libevent's own headers and linked with this library instead, or find it under libevent's name.
//!
//! Descriptors are what the C library's socket calls make of them. Under `ix run` those are
//! `libix-posix`'s, so that everything a libevent program does with descriptors (its own `socket`
//! and `accept4`, pipes and eventfds beside connections) works as it did; on plain Linux they are
//! Linux's. docs/guide/libevent.md says what there is and what is not.
//!
//! * `core`: events and the loop, in memory that programs own ([`event::event`]).
//! * `buffer`: evbuffers, as a queue of chunks.
//! * `bufferevent`, `listener`: connections and listeners over both.
//! * `ffi`: the calls.
#![allow(non_camel_case_types)]

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
