//! What a dataplane without devices begins with, in tests and in `examples/plant.rs`.
use ix_proto::config::Place;
use ix_proto::{Config, Start};
use ix_wire::IpAddr;

/// Two elastic threads, little memory.
pub fn begin() -> Start {
    let config = Config {
        cpus: vec![0, 1],
        rx_frames: 256,
        tx_frames: 256,
        arena_bytes: 2 << 20,
        flows_max: 64,
        ..Config::with_address(IpAddr::v4([10, 9, 0, 2]), 24)
    };
    Start { config, devices: Vec::new(), without: Vec::new(), place: Place::Within, given_bytes: 0 }
}
