//! The control socket of a running dataplane: who may ask for what, and how.
//!
//! `ix run` listens at two Unix sockets: `PID.sock` for operators, and `PID.ro.sock` for clients
//! that may only read. The socket decides a client's [`Role`]; file permissions decide who may open
//! it.
//!
//! Everything is lines of JSON. The broker greets a client with
//! `{"hello":{"protocol":1,"ix":"0.1.0","role":"operator","pid":7,"program":"ix-echo"}}`. The
//! client sends one request per line, such as `{"do":"migrate","groups":"0-15","to":1}`, or only
//! the word of a request without arguments (`status`). It may send many, and gets as many answers,
//! in order: `{"ok":…}` or `{"error":{"code":"no-such-thread","why":…,"mend":…}}`. After
//! `subscribe` there are `{"snapshot":…}` lines between them. A request may name the `protocol`
//! that it was written for; one of another version is refused.
//!
//! Requests and answers are types of [`ix_proto::control`].
//!
//! * `place`: where the sockets are.
//! * `refusals`: how many requests were refused, by reason.
//! * `server`: the broker's end. It never waits for a client.
//! * `client`: the other end; `change`: the difference of two snapshots.
//! * `exposition`: the metrics, by `families` in Prometheus' formats; `scrapes`: who reads them;
//!   `pages`: how often they are made.
//! * `captures`: the running capture.
//! * `active_controller`: the controller of a dataplane, and what operators ask of it.
mod active_controller;
mod captures;
mod change;
mod client;
mod dataplane;
pub mod exposition;
mod families;
mod pages;
mod peer;
mod place;
mod poller;
mod refusals;
#[cfg(any(test, feature = "samples"))]
mod sample;
mod scrape;
mod scrapes;
mod server;
#[cfg(test)]
mod tests;

pub use active_controller::ActiveController;
pub use captures::Captures;
pub use change::{Change, Shares};
pub use client::Client;
pub use dataplane::{Answers, Dataplane};
pub use place::{
    Access, Found, all, find, folder, listed, listen_for_scrapes, read_only, scrape_address,
    sockets,
};
#[cfg(any(test, feature = "samples"))]
pub use sample::sample;
pub use scrapes::{Scrapes, Wish};
pub use server::{Backend, Name, Response, Server, Ticket};
