//! What breaks a rule today. The lists may only shrink: an exception that is no longer needed is a
//! finding.

use crate::rules::{circles, dependencies, paths, width};

/// Packages that use a room that they must not use.
pub const DEPENDENCIES: &[dependencies::Exception] = &[];

/// Files that include a source file of another package.
pub const PATHS: &[paths::Exception] = &[];

/// Largest number of comments that are wider than code, by room: none.
pub const WIDE_COMMENTS: &[width::Exception] = &[];

/// Modules that depend on each other in a circle, by package.
pub const CIRCLES: &[circles::Exception] = &[
    ("ix-abi", &["call", "flow_option"]),
    ("ix-attacker", &["batches", "calls", "cookies", "hold"]),
    ("ix-broker", &["control", "surveys"]),
    ("ix-ctl", &["ctl", "stats"]),
    ("ix-image", &["boot", "c_symbols", "gate", "heap", "later", "survivor", "updates", "wall"]),
    ("ix-kv", &["ascii", "binary", "session"]),
    ("ix-launch", &["launch", "load", "plant"]),
    ("ix-load", &["ix", "linux", "master", "run", "worker"]),
    ("ix-mem", &["list", "mbuf", "memory", "pool"]),
    ("ix-netdev", &["afxdp", "device", "memif", "spec", "tap"]),
    ("ix-nic", &["afxdp", "device", "error", "memif", "update"]),
    ("ix-scripts", &["calls", "run"]),
    ("ix-sim", &["orders", "plan"]),
    (
        "ix-tcp",
        &[
            "accurate",
            "ack",
            "ack_pace",
            "config",
            "connect",
            "ecn",
            "listen",
            "loss",
            "path_search",
            "tcb",
        ],
    ),
];
