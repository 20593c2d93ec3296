//! The `ix` command, run to its end, and what it needs.
use ix_skip::{Need, skip};
use ix_testbed::Namespace;
use std::process::{Command, Output};

/// Runs the `ix` command.
pub fn ix(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ix")).args(args).output().expect("the command starts")
}

/// What the command said on standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A network namespace; `None`, said loudly, where this process may not make any.
pub fn namespace(test: &str) -> Option<Namespace> {
    match Namespace::new() {
        Ok(namespace) => Some(namespace),
        Err(e) => {
            skip(test, Need::Root, e);
            None
        }
    }
}

/// Whether this process may make links; says so, loudly, when not.
pub fn may_make_links(test: &str) -> bool {
    namespace(test).is_some()
}
