//! Checks that the documents are true: `cargo test -p ix-docs`.
//!
//! * [`tree`]: the files of the repository.
//! * [`markdown`]: links, headings and names in code of one document.
//! * [`rust_items`]: documented enums and structs of a Rust source, for the reference pages.
//!
//! The tests check that every link has a target, that every page is in the book, that every file
//! that a document names exists, and that the pages of `docs/reference` agree with the code.
#![forbid(unsafe_code)]

pub mod markdown;
pub mod rust_items;
pub mod tree;

#[cfg(test)]
mod documents_tests;
#[cfg(test)]
mod reference_tests;
