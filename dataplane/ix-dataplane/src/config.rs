//! What a dataplane begins with: it is fixed from then on.
pub use ix_proto::config::{Addr6, AddressCheck, Config, TempAddr};

/// How much packet memory the elastic threads need together.
pub fn memory_sizes(config: &Config) -> ix_mem::Sizes {
    ix_mem::Sizes {
        rx_frames: config.rx_frames * config.cpus.len(),
        tx_frames: config.tx_frames * config.cpus.len(),
        arena_bytes: config.arena_bytes,
    }
}
