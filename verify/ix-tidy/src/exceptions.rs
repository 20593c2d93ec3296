//! What breaks a rule today. Each list only shrinks: an exception that nothing needs is a finding.

use crate::rules::{dependencies, paths, width};

/// Packages that use a room that they should not.
pub const DEPENDENCIES: &[dependencies::Exception] = &[
    ("ix-dataplane", "ix-netdev", "its tests open real devices"),
    ("ix-image", "ix-launch", "the layouts of the channel between launcher and image"),
];

/// Files that take a source file of another package.
pub const PATHS: &[paths::Exception] = &[
    ("cli/ix/build.rs", "the image is built by the command, and by tests of the launcher"),
    (
        "host/ix-launch/tests/common/mod.rs",
        "the image is built by the command, and by tests of the launcher",
    ),
];

/// Most comments that are wider than code, by room.
pub const WIDE_COMMENTS: &[width::Exception] = &[
    ("core", 46),
    ("dataplane", 66),
    ("host", 14),
    ("app", 46),
    ("programs", 10),
    ("verify", 35),
    ("cli", 84),
];

/// Modules of the dataplane that are in a circle: none.
pub const CIRCLE: &[&str] = &[];
