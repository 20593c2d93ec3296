//! What breaks a rule today. The lists may only shrink: an exception that is no longer needed is a
//! finding.

use crate::rules::{circles, dependencies, paths, width};

/// Packages that use a room that they must not use.
pub const DEPENDENCIES: &[dependencies::Exception] = &[];

/// Files that include a source file of another package.
pub const PATHS: &[paths::Exception] = &[];

/// Largest number of comments that are wider than code, by room: none.
pub const WIDE_COMMENTS: &[width::Exception] = &[];

/// Modules that depend on each other in a circle, by package: none.
pub const CIRCLE: &[circles::Exception] = &[];
