//! What breaks a rule today. The lists may only shrink: an exception that is no longer needed is a
//! finding.

use crate::rules::{dependencies, paths, width};

/// Packages that use a room that they must not use.
pub const DEPENDENCIES: &[dependencies::Exception] = &[];

/// Files that include a source file of another package.
pub const PATHS: &[paths::Exception] = &[];

/// Largest number of comments that are wider than code, by room.
pub const WIDE_COMMENTS: &[width::Exception] = &[("app", 17)];

/// Modules of the dataplane that depend on each other in a circle: none.
pub const CIRCLE: &[&str] = &[];
