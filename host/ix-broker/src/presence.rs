//! Before the first dataplane begins: neighbours learn where its addresses are.
//!
//! A dataplane begins when its program first waits for connections. On Linux a program is reached
//! from `listen` on, whatever it does then. Without an answer to ARP, who connects too early is
//! told after three seconds that there is no such host. So the addresses are announced from the
//! start: a peer that asks learns them, its SYN is sent, and sent again until somebody answers.
use ix_netdev::OpenedDevice;
use ix_proto::config::{AddressCheck, Config};
use ix_wire::{ArpOperation, ArpPacket, ethernet};
use std::time::{Duration, Instant};

/// A neighbour asks three times, with a second between, before it gives up.
const SPACING: Duration = Duration::from_millis(900);
/// A program that takes longer to begin is none that anybody waits for.
const LONGEST: Duration = Duration::from_secs(120);

/// Announces addresses until a dataplane does.
pub(crate) struct Presence {
    due: Instant,
    end: Instant,
}

impl Presence {
    /// From now on.
    pub fn new(now: Instant) -> Presence {
        Presence { due: now, end: now + LONGEST }
    }

    /// When to call [`Self::announce`], while no dataplane has begun with this configuration.
    pub fn due(&self, config: &Config) -> Option<Instant> {
        // What must be probed first is not ours yet (RFC 5227 section 2.1).
        let announces = config.address_check == AddressCheck::Announce && self.due < self.end;
        announces.then_some(self.due)
    }

    /// Announces the addresses, if it is time.
    pub fn announce(&mut self, config: &Config, devices: &[OpenedDevice], now: Instant) {
        if self.due(config).is_none_or(|due| due > now) {
            return;
        }
        self.due = now + SPACING;
        for (own, _) in &config.host_addrs {
            let device = devices.get(usize::from(config.device_of(*own, devices.len())));
            let Some((device, ip)) = device.zip(own.as_v4()) else { continue };
            let announcement = ArpPacket {
                operation: ArpOperation::Request,
                sender_mac: device.info.mac,
                sender_ip: ip,
                target_mac: [0; 6],
                target_ip: ip,
            };
            let mut frame = [0; ethernet::FRAME_BYTES_MIN];
            announcement.emit_frame(&mut frame);
            // A link that is down has no neighbours yet.
            let _ = device.send_early(&frame);
        }
    }
}
