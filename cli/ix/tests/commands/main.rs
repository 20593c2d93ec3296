//! The commands that run by themselves: benchmarks, `ix echo`, the attacks, wrong input.
#[path = "../support/mod.rs"]
mod support;

mod attack;
mod bench;
mod command_line;
mod elastic;
mod link;
mod service;
