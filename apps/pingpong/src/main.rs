//! NetPIPE-like ping-pong on the native API.
fn main() {}
