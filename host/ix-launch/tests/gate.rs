//! The gate, called by a C program as any program calls it.
use crate::common::{compile, run};
use ix_launch::Exit;

#[test]
fn threads_enter_and_keep_their_own() {
    assert_eq!(run(compile("gate", &[]), &[]), Exit::Status(0));
}

#[test]
fn a_static_program_may_enter_as_well() {
    assert_eq!(run(compile("gate", &["-static"]), &[]), Exit::Status(0));
}

/// Prints the cost; the bound only catches a gate that has become a system call.
#[test]
fn a_crossing_is_cheap() {
    assert_eq!(run(compile("gate", &[]), &["cycles"]), Exit::Status(0));
}
