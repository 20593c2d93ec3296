//! The rules, one a file.
pub mod circles;
pub mod dependencies;
pub mod front_page;
pub mod paths;
pub mod targets;
pub mod typed_words;
pub mod unsafe_code;
pub mod width;
