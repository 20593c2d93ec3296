//! Makes `ix.h` and the man pages of our sources.
pub mod ixh;
pub mod layout;
pub mod man;
pub mod names;
pub mod parse;

use parse::Part;

/// The contract's declarations.
pub fn contract() -> Vec<Part> {
    parse::parse(include_str!("../../../../core/ix-abi/src/lib.rs"))
}

/// The library's, in the order in which a reader wants them.
pub fn library() -> Vec<Part> {
    [
        include_str!("../../src/types.rs"),
        include_str!("../../src/event_loop/callbacks.rs"),
        include_str!("../../src/event_loop/mod.rs"),
        include_str!("../../src/io.rs"),
        include_str!("../../src/connection.rs"),
        include_str!("../../src/buffer.rs"),
        include_str!("../../src/packet.rs"),
        include_str!("../../src/control.rs"),
        include_str!("../../src/endpoint.rs"),
        include_str!("../../src/error.rs"),
        include_str!("../../src/process.rs"),
    ]
    .into_iter()
    .map(|source| parse::parse(source).swap_remove(0))
    .collect()
}
