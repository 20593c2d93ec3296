//! One elastic thread in virtual time, small enough to be filled; the fuzz target is its
//! application.
use ix_abi::{CallSlot, EVENTS_MAX, EventSlot};
use ix_dataplane::Config;
use ix_dataplane::config::AddressCheck;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::IpAddr;

const FRAMES: usize = 128;
const ARENA_BYTES: usize = 4 << 20;

pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const OWN: [u8; 4] = [10, 0, 0, 1];
pub const PEER: [u8; 4] = [10, 0, 0, 2];

/// Counters that must be zero when nothing is left, and those that always are. (Entries of the
/// wheel may stay: nothing removes one, and an application sets timers of years.)
const GAUGES: [&str; 6] =
    ["flows", "half_open", "time_wait", "rx_frames_in_use", "tx_frames_in_use", "misrouted"];

/// The thread and its surroundings.
pub struct Rig {
    rig: BareRig,
    pub device: SimDevice,
    pub clock: VirtualClock,
    /// Transmit memory: first address and bytes.
    pub arena: (u64, u64),
}

impl Rig {
    pub fn new() -> Rig {
        let clock = VirtualClock::new(1_000_000);
        let config = Config {
            host_addrs: vec![(IpAddr::v4(OWN), 24)],
            arp: vec![(IpAddr::v4(PEER), PEER_MAC)],
            address_check: AddressCheck::Off,
            flows_max: 64,
            timers_max: 64,
            backlog: 16,
            ..Config::default()
        };
        let options = SimOptions { mac: OWN_MAC, ring: 64, ..SimOptions::default() };
        let device = SimDevice::new(options, &clock);
        let sizes = Sizes { rx_frames: FRAMES, tx_frames: FRAMES, arena_bytes: ARENA_BYTES };
        let options = RigOptions { config, sizes: Some(sizes), clock: clock.clone() };
        let rig = BareRig::new(options, device.nics());
        let arena = rig.transmit_memory();
        Rig { rig, device, clock, arena }
    }

    /// One cycle with these calls: their return codes, and the events.
    pub fn cycle(&mut self, calls: &[CallSlot]) -> (Vec<i64>, Vec<EventSlot>) {
        let (codes, events) = self.rig.run(0, calls, self.clock.now_us());
        assert!(events.len() <= EVENTS_MAX);
        (codes, events)
    }

    /// Writes words into transmit memory.
    pub fn write(&mut self, at: u64, words: [u64; 2]) {
        self.rig.write(at, &words);
    }

    /// Counters that should be zero and are not.
    pub fn left(&self) -> Vec<(&'static str, u64)> {
        let metrics = self.rig.metrics();
        let totals = GAUGES.iter().map(|name| (*name, metrics.total(name).unwrap_or(u64::MAX)));
        totals.filter(|(_, value)| *value != 0).collect()
    }
}
