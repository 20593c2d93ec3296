//! Packet scripts: what goes over the wire and what a program does, with times, as packetdrill's
//! language writes it. They run against a whole elastic thread (`ix_dataplane::ElasticThread`: the
//! code that runs in production) in virtual time, in milliseconds.
//!
//! [`parse`] reads a script ([`script`]), [`run`] plays it: [`stack`] is the elastic thread with
//! its device and clock, [`sockets`] puts a program's sockets on top of its batched calls. Packets
//! are written and read by [`wire`], on purpose not by the stack's own code, and compared by
//! [`expect`]. [`settings`] turns `sysctl` lines into the stack's configuration, [`assertion`]
//! evaluates what stands in `%{ }%`.
//!
//! Every payload octet is a function of its place in the stream; that of all segments and of what a
//! program reads is checked.
#![forbid(unsafe_code)]

pub mod assertion;
mod calls;
mod cli;
pub mod expect;
pub mod parse;
mod readme;
pub mod requirements;
pub mod run;
mod scan;
pub mod script;
pub mod settings;
pub mod sockets;
pub mod stack;
mod values;
pub mod wire;

pub use cli::cli;
pub use parse::parse;
pub use readme::{Row, rows, table};
pub use run::{Failure, Options, run};

/// What the stack tells of itself, for assertions.
pub mod tcp {
    pub use ix_tcp::{LossInfo, TcbInfo};
}
