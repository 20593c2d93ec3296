//! Ports for programs that name none: Linux's, so that they are set in one place.
use std::fs;

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// Linux's default.
const RANGE_DEFAULT: (u16, u16) = (32768, 60999);

/// Ports that Linux gives to sockets which name none.
pub struct EphemeralPorts {
    range: (u16, u16),
    /// First and last port of each part of it that is left out.
    reserved: Vec<(u16, u16)>,
}

impl EphemeralPorts {
    /// Those of a system that was not changed.
    pub const fn new() -> EphemeralPorts {
        EphemeralPorts { range: RANGE_DEFAULT, reserved: Vec::new() }
    }

    /// Linux's.
    pub fn of_linux() -> EphemeralPorts {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        EphemeralPorts::parse(&read(RANGE), &read(RESERVED))
    }

    fn parse(range: &str, reserved: &str) -> EphemeralPorts {
        let mut ports = range.split_whitespace().map_while(|port| port.parse().ok());
        let range = match (ports.next(), ports.next()) {
            (Some(first), Some(last)) if 0 < first && first <= last => (first, last),
            _ => RANGE_DEFAULT,
        };
        let part = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        EphemeralPorts { range, reserved: reserved.trim().split(',').filter_map(part).collect() }
    }

    /// First and last port; some between them may be left out.
    pub fn range(&self) -> (u16, u16) {
        self.range
    }

    /// Whether Linux may give this port to a socket that names none.
    pub fn has(&self, port: u16) -> bool {
        let is_in = |(first, last): &(u16, u16)| (*first..=*last).contains(&port);
        is_in(&self.range) && !self.reserved.iter().any(is_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_left_out() {
        let ports = EphemeralPorts::parse("10000\t20000\n", "80,9990-10009,15000\n");
        let has = [9999, 10_000, 10_009, 10_010, 14_999, 15_000, 20_000, 20_001];
        let has = has.map(|port| ports.has(port));
        assert_eq!(has, [false, false, false, true, true, false, true, false]);
        let ports = EphemeralPorts::parse("", "\n");
        assert!(ports.has(32_768) && ports.has(60_999) && !ports.has(61_000));
    }
}
