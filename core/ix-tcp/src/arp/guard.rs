//! The guard of one of our addresses: IPv4 address conflict detection (RFC 5227).
use super::ArpOutput;
use ix_wire::{ArpOperation, ArpPacket, MacAddr};

const PROBE_WAIT_US: u64 = 1_000_000;
const PROBE_NUM: u8 = 3;
const PROBE_MIN_US: u64 = 1_000_000;
const PROBE_MAX_US: u64 = 2_000_000;
const ANNOUNCE_WAIT_US: u64 = 2_000_000;
const ANNOUNCE_NUM: u8 = 2;
const ANNOUNCE_INTERVAL_US: u64 = 2_000_000;
const DEFEND_INTERVAL_US: u64 = 10_000_000;

/// How much of RFC 5227 is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardMode {
    /// Nothing: the address is used without probe, announcement and defence.
    Off,
    /// The address is used and announced at once, and defended.
    Announce,
    /// The address is probed for several seconds before it is used, then as
    /// [`GuardMode::Announce`].
    Probe,
}

/// What has happened to the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardEvent {
    /// The address may be used from now on, and the ARP cache may reply for it.
    Usable,
    /// Another host already has it; it was never ours. The guard does nothing more.
    Taken {
        /// The other host.
        mac: MacAddr,
    },
    /// Another host claimed it, and we announced it again.
    Defended {
        /// The other host.
        mac: MacAddr,
    },
    /// Another host claimed it again within [ten
    /// seconds](https://www.rfc-editor.org/rfc/rfc5227#section-2.4): by section 2.4 (b) it must not
    /// be used any more. The guard does nothing more.
    Lost {
        /// The other host.
        mac: MacAddr,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Probing {
        sent: u8,
    },
    Announcing {
        sent: u8,
    },
    Watching,
    /// The mode is off, or the address is given up.
    Idle,
}

/// The guard of one address.
#[derive(Clone, Debug)]
pub struct AddressGuard {
    ip: [u8; 4],
    mac: MacAddr,
    phase: Phase,
    due_us: u64,
    random: u64,
    last_conflict_us: Option<u64>,
}

impl AddressGuard {
    /// A guard for `ip` on the device with address `mac`. `random` spreads the probes of hosts that
    /// start together (section 2.1.1). Call [`Self::tick`] next.
    pub fn new(ip: [u8; 4], mac: MacAddr, mode: GuardMode, now_us: u64, random: u64) -> Self {
        let mut guard =
            Self { ip, mac, phase: Phase::Idle, due_us: u64::MAX, random, last_conflict_us: None };
        match mode {
            GuardMode::Off => {}
            GuardMode::Announce => {
                guard.phase = Phase::Announcing { sent: 0 };
                guard.due_us = now_us;
            }
            GuardMode::Probe => {
                guard.phase = Phase::Probing { sent: 0 };
                guard.due_us = now_us + guard.random_below(PROBE_WAIT_US);
            }
        }
        guard
    }

    /// The guarded address.
    pub fn ip(&self) -> [u8; 4] {
        self.ip
    }

    /// When [`Self::tick`] has something to do next; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        self.due_us
    }

    /// Sends what is due. With [`GuardMode::Off`] the address may be used from the start, without
    /// an event.
    pub fn tick(&mut self, now_us: u64, out: &mut impl ArpOutput) -> Option<GuardEvent> {
        if now_us < self.due_us {
            return None;
        }
        match self.phase {
            Phase::Probing { sent } if sent < PROBE_NUM => {
                out.send(self.packet([0; 4]));
                self.phase = Phase::Probing { sent: sent + 1 };
                let last = sent + 1 == PROBE_NUM;
                let spread = PROBE_MAX_US - PROBE_MIN_US;
                let wait_us =
                    if last { ANNOUNCE_WAIT_US } else { PROBE_MIN_US + self.random_below(spread) };
                self.due_us = now_us + wait_us;
                None
            }
            Phase::Probing { .. } => self.announce(0, now_us, out),
            Phase::Announcing { sent } => self.announce(sent, now_us, out),
            Phase::Watching | Phase::Idle => {
                self.due_us = u64::MAX;
                None
            }
        }
    }

    fn announce(&mut self, sent: u8, now_us: u64, out: &mut impl ArpOutput) -> Option<GuardEvent> {
        out.send(self.packet(self.ip));
        if sent + 1 < ANNOUNCE_NUM {
            self.phase = Phase::Announcing { sent: sent + 1 };
            self.due_us = now_us + ANNOUNCE_INTERVAL_US;
        } else {
            self.phase = Phase::Watching;
            self.due_us = u64::MAX;
        }
        (sent == 0).then_some(GuardEvent::Usable)
    }

    /// Checks a received packet for a conflict.
    pub fn on_packet(
        &mut self,
        packet: &ArpPacket,
        now_us: u64,
        out: &mut impl ArpOutput,
    ) -> Option<GuardEvent> {
        let mac = packet.sender_mac;
        if mac == self.mac {
            return None;
        }
        let claims = packet.sender_ip == self.ip;
        match self.phase {
            Phase::Idle => None,
            Phase::Probing { .. } => {
                // Section 2.1.1: a probe of another host for the same address counts too.
                let probes = packet.operation == ArpOperation::Request
                    && packet.sender_ip == [0; 4]
                    && packet.target_ip == self.ip;
                (claims || probes).then(|| {
                    self.give_up();
                    GuardEvent::Taken { mac }
                })
            }
            Phase::Announcing { .. } | Phase::Watching => {
                claims.then(|| self.defend(mac, now_us, out))
            }
        }
    }

    /// Section 2.4 (b): after the first conflict we announce the address once. A second one soon
    /// after ends its use; otherwise two hosts would fight forever.
    fn defend(&mut self, mac: MacAddr, now_us: u64, out: &mut impl ArpOutput) -> GuardEvent {
        let before = self.last_conflict_us.replace(now_us);
        if before.is_some_and(|then| now_us.saturating_sub(then) < DEFEND_INTERVAL_US) {
            self.give_up();
            return GuardEvent::Lost { mac };
        }
        out.send(self.packet(self.ip));
        GuardEvent::Defended { mac }
    }

    fn give_up(&mut self) {
        self.phase = Phase::Idle;
        self.due_us = u64::MAX;
    }

    /// A probe with sender 0.0.0.0, an announcement with the address itself (section 1.1).
    fn packet(&self, sender_ip: [u8; 4]) -> ArpPacket {
        ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: self.mac,
            sender_ip,
            target_mac: [0; 6],
            target_ip: self.ip,
        }
    }

    /// One step of xorshift64* for each number: good enough to spread a few packets.
    fn random_below(&mut self, bound: u64) -> u64 {
        let mut x = self.random | 1;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random = x;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: MacAddr = [2, 0, 0, 0, 0, 2];
    const PEER: MacAddr = [2, 0, 0, 0, 0, 1];
    const IP: [u8; 4] = [10, 0, 0, 2];
    const SECOND: u64 = 1_000_000;

    fn guard(mode: GuardMode) -> AddressGuard {
        AddressGuard::new(IP, OURS, mode, 0, 42)
    }

    fn claim(sender_ip: [u8; 4]) -> ArpPacket {
        ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: PEER,
            sender_ip,
            target_mac: [0; 6],
            target_ip: IP,
        }
    }

    /// Runs the guard; returns what it sent and reported, with the times.
    fn run(guard: &mut AddressGuard, until_us: u64) -> Vec<(u64, [u8; 4], Option<GuardEvent>)> {
        let mut log = Vec::new();
        while guard.deadline() < until_us {
            let now_us = guard.deadline();
            let mut out = Vec::new();
            let event = guard.tick(now_us, &mut out);
            assert_eq!(out.len(), 1);
            assert_eq!((out[0].target_ip, out[0].target_mac), (IP, [0; 6]));
            log.push((now_us, out[0].sender_ip, event));
        }
        log
    }

    #[test]
    fn rfc5227_2_1_1_probes_then_2_3_announces() {
        for seed in 0..100 {
            let mut guard = AddressGuard::new(IP, OURS, GuardMode::Probe, 0, seed);
            let log = run(&mut guard, 60 * SECOND);
            let senders: Vec<_> = log.iter().map(|entry| entry.1).collect();
            assert_eq!(senders, [[0; 4], [0; 4], [0; 4], IP, IP]);
            let gap = |i: usize| log[i].0 - log[i - 1].0;
            assert!(log[0].0 <= PROBE_WAIT_US);
            assert!((1..=2).all(|i| (PROBE_MIN_US..=PROBE_MAX_US).contains(&gap(i))));
            assert_eq!((gap(3), gap(4)), (ANNOUNCE_WAIT_US, ANNOUNCE_INTERVAL_US));
            let events: Vec<_> = log.iter().filter_map(|entry| entry.2).collect();
            assert_eq!(events, [GuardEvent::Usable]);
            assert_eq!(log[3].2, Some(GuardEvent::Usable));
        }
    }

    #[test]
    fn announces_at_once_without_probing() {
        let log = run(&mut guard(GuardMode::Announce), 60 * SECOND);
        assert_eq!(log, [(0, IP, Some(GuardEvent::Usable)), (2 * SECOND, IP, None)]);
    }

    #[test]
    fn off_is_silent() {
        let mut guard = guard(GuardMode::Off);
        assert_eq!(run(&mut guard, u64::MAX), []);
        assert_eq!(guard.on_packet(&claim(IP), 0, &mut Vec::new()), None);
    }

    #[test]
    fn a_conflict_while_probing_means_taken() {
        for conflict in [claim(IP), claim([0; 4])] {
            let mut guard = guard(GuardMode::Probe);
            run(&mut guard, SECOND);
            let event = guard.on_packet(&conflict, SECOND, &mut Vec::new());
            assert_eq!(event, Some(GuardEvent::Taken { mac: PEER }));
            assert_eq!(run(&mut guard, u64::MAX), []);
        }
        // Ordinary traffic and our own probes are not conflicts.
        let mut guard = guard(GuardMode::Probe);
        let own = ArpPacket { sender_mac: OURS, ..claim([0; 4]) };
        assert_eq!(guard.on_packet(&own, 0, &mut Vec::new()), None);
        assert_eq!(guard.on_packet(&claim([10, 0, 0, 1]), 0, &mut Vec::new()), None);
    }

    #[test]
    fn rfc5227_2_4_b_defends_once_in_ten_seconds() {
        let mut guard = guard(GuardMode::Announce);
        run(&mut guard, 5 * SECOND);
        let mut conflict_at = |now_us| {
            let mut out = Vec::new();
            let event = guard.on_packet(&claim(IP), now_us, &mut out);
            (event, out.len())
        };
        let defended = (Some(GuardEvent::Defended { mac: PEER }), 1);
        assert_eq!(conflict_at(10 * SECOND), defended);
        assert_eq!(conflict_at(20 * SECOND), defended);
        assert_eq!(conflict_at(29 * SECOND), (Some(GuardEvent::Lost { mac: PEER }), 0));
        assert_eq!(conflict_at(30 * SECOND), (None, 0));
    }

    #[test]
    fn another_hosts_probe_is_no_conflict_once_the_address_is_ours() {
        // The ARP cache replies, so the other host learns of the conflict.
        let mut guard = guard(GuardMode::Announce);
        run(&mut guard, 5 * SECOND);
        assert_eq!(guard.on_packet(&claim([0; 4]), 6 * SECOND, &mut Vec::new()), None);
    }
}
