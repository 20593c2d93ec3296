//! Options of flows and UDP sockets as typed values, and their encoding in two words of a call.
use crate::{CallError, Congestion, flow_opt};

/// An option with its value. The constants of [`flow_opt`] say what each one does, and which are
/// for UDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOption {
    /// Nagle's algorithm.
    Nagle(bool),
    /// Idle time before keepalive, seconds, up to 0x7fff; 0: none.
    KeepaliveS(u16),
    /// Longest time that data may stay unacknowledged, ms; 0: two minutes.
    UserTimeoutMs(u32),
    /// Congestion control.
    Congestion(Congestion),
    /// Differentiated services code point, up to 63.
    Dscp(u8),
    /// Hop limit, from 1 on.
    HopLimit(u8),
    /// Received bytes that may stay unread; 0: as many as the application needs.
    ReceiveBytes(u32),
    /// Seconds between keepalive probes, up to 0x7fff; 0: as configured.
    KeepaliveIntervalS(u16),
    /// Unanswered keepalive probes that end the connection, up to 127; 0: as configured.
    KeepaliveProbes(u8),
    /// Longest datagram that goes in one piece, bytes, from 68 on; 0: none goes in fragments.
    FragmentBytes(u16),
    /// Longest segment, bytes, from 88 on; 0: as it is.
    SegmentBytes(u16),
    /// The application has closed the connection, and waits only for acknowledgements.
    Closed,
    /// Highest rate of sending, bytes per second; 0: none.
    Pace(u32),
    /// How a UDP socket sends to groups.
    Multicast(MulticastOption),
    /// Flow label of IPv6 packets (RFC 6437), up to 0xfffff; 0: none. `None`: one of its own for
    /// each flow.
    FlowLabel(Option<u32>),
}

/// How a UDP socket sends to groups: [`flow_opt::MULTICAST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastOption {
    /// Datagrams come back to sockets of this host.
    pub loops: bool,
    /// Datagrams do not leave the host.
    pub stays: bool,
    /// The device that they leave by; `None`: that of the socket's address, else the first.
    pub device: Option<u8>,
}

impl Default for MulticastOption {
    fn default() -> Self {
        MulticastOption { loops: true, stays: false, device: None }
    }
}

impl MulticastOption {
    const fn word(self) -> u64 {
        let device = match self.device {
            Some(device) => 1 + device as u64,
            None => 0,
        };
        let loops = if self.loops { flow_opt::MULTICAST_LOOPS } else { 0 };
        let stays = if self.stays { flow_opt::MULTICAST_STAYS } else { 0 };
        loops | stays | device << flow_opt::MULTICAST_DEVICE_AT
    }

    const fn from_word(word: u64) -> Result<MulticastOption, CallError> {
        let device = match word >> flow_opt::MULTICAST_DEVICE_AT {
            0 => None,
            number @ 1..=0xff => Some((number - 1) as u8),
            _ => return Err(CallError::Invalid),
        };
        let flags = word & ((1 << flow_opt::MULTICAST_DEVICE_AT) - 1);
        if flags > (flow_opt::MULTICAST_LOOPS | flow_opt::MULTICAST_STAYS) {
            return Err(CallError::Invalid);
        }
        Ok(MulticastOption {
            loops: flags & flow_opt::MULTICAST_LOOPS != 0,
            stays: flags & flow_opt::MULTICAST_STAYS != 0,
            device,
        })
    }
}

impl FlowOption {
    /// Number and value. A value outside the option's range is encoded as it is, and refused where
    /// it is decoded.
    #[inline]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            FlowOption::Nagle(on) => [flow_opt::NAGLE, on as u64],
            FlowOption::KeepaliveS(seconds) => [flow_opt::KEEPALIVE_S, seconds as u64],
            FlowOption::UserTimeoutMs(ms) => [flow_opt::USER_TIMEOUT_MS, ms as u64],
            FlowOption::Congestion(algorithm) => [flow_opt::CONGESTION, algorithm.number()],
            FlowOption::Dscp(point) => [flow_opt::DSCP, point as u64],
            FlowOption::HopLimit(hops) => [flow_opt::HOP_LIMIT, hops as u64],
            FlowOption::ReceiveBytes(bytes) => [flow_opt::RECEIVE_BYTES, bytes as u64],
            FlowOption::KeepaliveIntervalS(seconds) => {
                [flow_opt::KEEPALIVE_INTERVAL_S, seconds as u64]
            }
            FlowOption::KeepaliveProbes(probes) => [flow_opt::KEEPALIVE_PROBES, probes as u64],
            FlowOption::FragmentBytes(bytes) => [flow_opt::FRAGMENT_BYTES, bytes as u64],
            FlowOption::SegmentBytes(bytes) => [flow_opt::SEGMENT_BYTES, bytes as u64],
            FlowOption::Closed => [flow_opt::CLOSED, 1],
            FlowOption::Pace(rate) => [flow_opt::PACE, rate as u64],
            FlowOption::Multicast(how) => [flow_opt::MULTICAST, how.word()],
            FlowOption::FlowLabel(Some(label)) => [flow_opt::FLOW_LABEL, label as u64],
            FlowOption::FlowLabel(None) => [flow_opt::FLOW_LABEL, flow_opt::FLOW_LABEL_AUTO],
        }
    }

    /// The option that a number and a value say, whatever they are.
    ///
    /// # Errors
    /// [`CallError::Invalid`]: there is no such option, or it has no such value.
    pub const fn decode(option: u64, value: u64) -> Result<FlowOption, CallError> {
        Ok(match (option, value) {
            (flow_opt::NAGLE, 0 | 1) => FlowOption::Nagle(value == 1),
            (flow_opt::KEEPALIVE_S, 0..=0x7fff) => FlowOption::KeepaliveS(value as u16),
            (flow_opt::USER_TIMEOUT_MS, 0..=0xffff_ffff) => FlowOption::UserTimeoutMs(value as u32),
            (flow_opt::CONGESTION, _) => match Congestion::from_number(value) {
                Some(algorithm) => FlowOption::Congestion(algorithm),
                None => return Err(CallError::Invalid),
            },
            (flow_opt::DSCP, 0..=63) => FlowOption::Dscp(value as u8),
            (flow_opt::HOP_LIMIT, 1..=255) => FlowOption::HopLimit(value as u8),
            (flow_opt::RECEIVE_BYTES, 0..=0xffff_ffff) => FlowOption::ReceiveBytes(value as u32),
            (flow_opt::KEEPALIVE_INTERVAL_S, 0..=0x7fff) => {
                FlowOption::KeepaliveIntervalS(value as u16)
            }
            (flow_opt::KEEPALIVE_PROBES, 0..=127) => FlowOption::KeepaliveProbes(value as u8),
            (flow_opt::FRAGMENT_BYTES, 0 | 68..=0xffff) => FlowOption::FragmentBytes(value as u16),
            (flow_opt::SEGMENT_BYTES, 0 | 88..=0xffff) => FlowOption::SegmentBytes(value as u16),
            (flow_opt::CLOSED, 1) => FlowOption::Closed,
            (flow_opt::PACE, 0..=0xffff_ffff) => FlowOption::Pace(value as u32),
            (flow_opt::MULTICAST, word) => match MulticastOption::from_word(word) {
                Ok(how) => FlowOption::Multicast(how),
                Err(error) => return Err(error),
            },
            (flow_opt::FLOW_LABEL, flow_opt::FLOW_LABEL_AUTO) => FlowOption::FlowLabel(None),
            (flow_opt::FLOW_LABEL, 0..=flow_opt::FLOW_LABEL_MAX) => {
                FlowOption::FlowLabel(Some(value as u32))
            }
            _ => return Err(CallError::Invalid),
        })
    }
}
