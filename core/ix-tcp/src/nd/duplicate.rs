//! The check that nobody else has an address of ours (RFC 4862 section 5.4).
use super::{NdOutput, advertisement, solicitation};
use crate::arp::GuardMode;
use ix_wire::{IpAddr, MacAddr, NdKind, NdPacket};

/// RetransTimer (RFC 4861 section 10): so long others may object.
const WAIT_US: u64 = 1_000_000;
/// MAX_RTR_SOLICITATION_DELAY: hosts that start together do not ask together (section 5.4.2).
const DELAY_US_MAX: u64 = 1_000_000;

/// What has come of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DuplicateEvent {
    /// Nobody objected: the address is ours.
    Usable,
    /// Another host has the address, or wants it too. It is not used.
    Taken {
        /// That host.
        mac: MacAddr,
    },
    /// Another host says that it has the address, which is in use here (RFC 4862 section 5.4.5: the
    /// check cannot find out everything).
    Conflict {
        /// That host.
        mac: MacAddr,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It is asked whether somebody has the address.
    Tentative {
        asked: bool,
    },
    Usable,
    Taken,
}

/// The check of one address.
#[derive(Clone, Debug)]
pub struct DuplicateCheck {
    address: IpAddr,
    phase: Phase,
    due_us: u64,
}

impl DuplicateCheck {
    /// A check of `address`, which is IPv6. `random` spreads the questions of hosts that start
    /// together, if the mode is [`GuardMode::Probe`]. With [`GuardMode::Off`] the address is usable
    /// from the start, without an event. Call [`Self::tick`] next.
    pub fn new(address: IpAddr, mode: GuardMode, now_us: u64, random: u64) -> Self {
        let (phase, due_us) = match mode {
            GuardMode::Off => (Phase::Usable, u64::MAX),
            GuardMode::Announce => (Phase::Tentative { asked: false }, now_us),
            GuardMode::Probe => (Phase::Tentative { asked: false }, now_us + random % DELAY_US_MAX),
        };
        Self { address, phase, due_us }
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the address may be used.
    pub fn is_usable(&self) -> bool {
        self.phase == Phase::Usable
    }

    /// When [`Self::tick`] has something to do next; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        self.due_us
    }

    /// Sends what is due.
    pub fn tick(&mut self, now_us: u64, out: &mut impl NdOutput) -> Option<DuplicateEvent> {
        if now_us < self.due_us {
            return None;
        }
        match self.phase {
            Phase::Tentative { asked: false } => {
                out.send_nd(solicitation(IpAddr::UNSPECIFIED_V6, self.address, None));
                self.phase = Phase::Tentative { asked: true };
                self.due_us = now_us + WAIT_US;
                None
            }
            Phase::Tentative { asked: true } => {
                // RFC 9131: neighbours that knew another host at this address learn of us.
                out.send_nd(advertisement(self.address, None));
                (self.phase, self.due_us) = (Phase::Usable, u64::MAX);
                Some(DuplicateEvent::Usable)
            }
            Phase::Usable | Phase::Taken => {
                self.due_us = u64::MAX;
                None
            }
        }
    }

    /// Checks a message that another host has sent.
    pub fn on_packet(&mut self, packet: &NdPacket) -> Option<DuplicateEvent> {
        if packet.target != self.address {
            return None;
        }
        let mac = packet.eth_src;
        let claims = matches!(packet.kind, NdKind::Advertisement { .. });
        match self.phase {
            // Section 5.4.3: who asks for the address by an address of its own does not want it.
            Phase::Tentative { .. } if claims || packet.src.is_unspecified() => {
                (self.phase, self.due_us) = (Phase::Taken, u64::MAX);
                Some(DuplicateEvent::Taken { mac })
            }
            Phase::Usable if claims => Some(DuplicateEvent::Conflict { mac }),
            Phase::Tentative { .. } | Phase::Usable | Phase::Taken => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nd::NdOut;

    const PEER: MacAddr = [2, 0, 0, 0, 0, 1];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn ours() -> IpAddr {
        ip("2001:db8::2")
    }

    fn packet(kind: NdKind, src: &str) -> NdPacket {
        let (src, dst) = (ip(src), ip("ff02::1:ff00:2"));
        NdPacket { kind, src, dst, eth_src: PEER, target: ours(), link: None }
    }

    fn advertised() -> NdPacket {
        let kind = NdKind::Advertisement { router: false, solicited: false, overrides: true };
        packet(kind, "2001:db8::2")
    }

    /// Asks; the address is tentative then.
    fn asked() -> DuplicateCheck {
        let mut check = DuplicateCheck::new(ours(), GuardMode::Announce, 0, 7);
        assert_eq!(check.tick(0, &mut Vec::new()), None);
        assert!(!check.is_usable());
        check
    }

    /// RFC 4862 sections 5.4.2 and 5.4.5.
    #[test]
    fn an_address_that_nobody_has_is_ours_after_a_second() {
        let mut out: Vec<NdOut> = Vec::new();
        let mut check = DuplicateCheck::new(ours(), GuardMode::Announce, 5, 7);
        assert_eq!((check.deadline(), check.tick(5, &mut out)), (5, None));
        let question = (NdKind::Solicitation, ip("::"), ip("ff02::1:ff00:2"), ours());
        assert_eq!(out[0].message(), question);
        assert_eq!(out[0].from(PEER).link, None, "no option while the source is unspecified");
        assert_eq!(check.tick(1_000_004, &mut out), None);
        assert!(!check.is_usable());
        assert_eq!(check.tick(1_000_005, &mut out), Some(DuplicateEvent::Usable));
        assert!(check.is_usable());
        let (kind, src, dst, target) = out[1].message();
        assert_eq!((src, dst, target), (ours(), ip("ff02::1"), ours()));
        let told = NdKind::Advertisement { router: false, solicited: false, overrides: true };
        assert_eq!((kind, out[1].from(PEER).link), (told, Some(PEER)));
        assert_eq!((out.len(), check.deadline()), (2, u64::MAX));
    }

    #[test]
    fn who_has_it_or_wants_it_too_keeps_it() {
        for objection in [advertised(), packet(NdKind::Solicitation, "::")] {
            let mut check = asked();
            let taken = Some(DuplicateEvent::Taken { mac: PEER });
            assert_eq!(check.on_packet(&objection), taken);
            assert_eq!(check.tick(10_000_000, &mut Vec::new()), None);
            assert!(!check.is_usable() && check.deadline() == u64::MAX);
            assert_eq!(check.on_packet(&objection), None, "said once");
        }
    }

    #[test]
    fn who_asks_for_it_does_not_want_it() {
        let mut check = asked();
        assert_eq!(check.on_packet(&packet(NdKind::Solicitation, "2001:db8::1")), None);
        let other = NdPacket { target: ip("2001:db8::3"), ..advertised() };
        assert_eq!(check.on_packet(&other), None);
        assert_eq!(check.tick(1_000_000, &mut Vec::new()), Some(DuplicateEvent::Usable));
        assert_eq!(check.on_packet(&packet(NdKind::Solicitation, "::")), None);
        let conflict = Some(DuplicateEvent::Conflict { mac: PEER });
        assert_eq!(check.on_packet(&advertised()), conflict);
        assert!(check.is_usable());
    }

    #[test]
    fn modes() {
        let off = DuplicateCheck::new(ours(), GuardMode::Off, 0, 7);
        assert!(off.is_usable() && off.deadline() == u64::MAX);
        for random in [0, 999_999, 1_000_000, u64::MAX] {
            let probe = DuplicateCheck::new(ours(), GuardMode::Probe, 50, random);
            assert!(!probe.is_usable() && (50..1_000_050).contains(&probe.deadline()));
        }
    }
}
