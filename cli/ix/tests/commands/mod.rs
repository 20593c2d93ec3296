//! The commands that run by themselves: benchmarks, `ix echo`, the attacks, wrong input.

mod attack;
mod bench;
mod command_line;
mod elastic;
mod link;
mod service;
