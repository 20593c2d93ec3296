//! The control socket of a running dataplane: who may ask what, and how.
//!
//! `ix run` listens at two Unix sockets: `PID.sock` for operators, and `PID.ro.sock` for those who
//! may only look. Which one a client has opened is its [`Role`]; file permissions say who may.
//!
//! Everything is lines of JSON. A client is greeted with
//! `{"hello":{"protocol":1,"ix":"0.1.0","role":"operator","pid":7,"program":"ix-echo"}}`. It sends
//! one request a line, such as `{"do":"migrate","groups":"0-15","to":1}`, or just the word where
//! there are no arguments (`status`); it may send many, and gets as many answers, in order:
//! `{"ok":…}` or `{"error":{"code":"no-such-thread","why":…,"mend":…}}`. After `subscribe`,
//! `{"snapshot":…}` lines stand between them. A request may name the `protocol` it was written for;
//! one of another version is refused.
//!
//! The words, with their JSON, are types of [`ix_proto::control`].
//!
//! * `place`: where the sockets are.
//! * `refusals`: how many requests were refused, and why.
//! * `server`: the broker's end. It never waits for a client.
//! * `client`: the other end; `change`: what happened between two looks.
//! * `captures`: the capture that it writes, if there is one.
//! * `charge`: the controller of a dataplane, if it has one, and what it shall do.
mod captures;
mod change;
mod charge;
mod client;
mod dataplane;
pub mod exposition;
mod peer;
mod place;
mod poller;
mod refusals;
#[cfg(any(test, feature = "samples"))]
mod sample;
mod scrape;
mod server;
#[cfg(test)]
mod tests;

pub use captures::Captures;
pub use change::{Change, Shares};
pub use charge::Charge;
pub use client::Client;
pub use dataplane::{Answers, Dataplane};
pub use place::{Access, Found, all, find, folder, read_only};
#[cfg(any(test, feature = "samples"))]
pub use sample::sample;
pub use server::{Backend, Name, Response, Server, Ticket};
