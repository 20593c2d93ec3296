//! The load generator on its own; `ix load` is the same and can start its own dataplane.
#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    match ix_load::parse(std::env::args_os()) {
        ix_load::Command::Load(args) => ix_load::load(*args, &|| serde_json::Value::Null),
        ix_load::Command::Agent(args) => ix_load::agent(&args),
        ix_load::Command::OnDataplane(_) => {
            eprintln!("ix-load: only `ix load` can start a dataplane; use `ix load` instead");
            ExitCode::from(2)
        }
    }
}
