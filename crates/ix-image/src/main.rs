//! The dataplane image: a static position-independent executable planted into the program.
fn main() {}
