//! `ix sim` by itself: `cargo run --release -p ix-sim --example sim -- --help`.
use std::process::ExitCode;

fn main() -> ExitCode {
    ix_sim::cli(std::env::args_os().skip(1))
}
