//! libix for C: the raw contract with the dataplane, and the event loop, as `libix.so`, `libix.a`
//! and the header `include/ix.h`.
//!
//! `tests/header.rs` makes the header and the man pages from the sources of this crate and of
//! `ix-abi` (`IX_BLESS=1` writes them), so C programmers read the comments of this crate. Functions
//! return 0 or more, or minus an `ix_abi::error`.
//!
//! A connection is a number that is never reused: a stale number is an error, not a crash.
#![allow(non_camel_case_types)]

pub mod buffer;
pub mod connection;
pub mod control;
pub mod endpoint;
pub mod error;
pub mod event_loop;
pub mod io;
pub mod packet;
pub mod process;
pub mod types;
