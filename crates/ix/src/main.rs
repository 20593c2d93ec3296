//! The ix command.
fn main() {}
