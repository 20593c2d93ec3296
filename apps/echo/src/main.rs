//! Echo server and client on the native API.
fn main() {}
