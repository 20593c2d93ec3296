//! What breaks a rule today. Each list only shrinks: an exception that nothing needs is a finding.

use crate::rules::{dependencies, paths, width};

/// Packages that use a room that they should not.
pub const DEPENDENCIES: &[dependencies::Exception] = &[
    ("ix-dataplane", "ix-netdev", "its tests open real devices"),
    ("ix-image", "ix-launch", "the layouts of the channel between launcher and image"),
    ("ix-model", "ix-load", "the arrival processes and histograms of the load generator"),
];

/// Files that take a source file of another package.
pub const PATHS: &[paths::Exception] = &[
    ("cli/ix-load/tests/support/mod.rs", "a helper of tests that is no library yet"),
    ("cli/ix/build.rs", "the image is built by the command, and by tests of the launcher"),
    ("host/ix-broker/src/control/exposition.rs", "a helper of tests that is no library yet"),
    (
        "host/ix-launch/tests/common/mod.rs",
        "the image is built by the command, and by tests of the launcher",
    ),
    ("programs/echo/tests/linux.rs", "a helper of tests that is no library yet"),
    ("programs/httpd/tests/linux.rs", "a helper of tests that is no library yet"),
    ("programs/kv/tests/memcached.rs", "a helper of tests that is no library yet"),
    ("programs/pingpong/tests/linux.rs", "a helper of tests that is no library yet"),
    ("verify/ix-attacker/tests/clean.rs", "a helper of tests that is no library yet"),
    ("verify/ix-fuzz/src/targets/tcp.rs", "a helper of tests that is no library yet"),
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
