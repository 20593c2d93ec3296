//! Filters as text: `rx tcp service 10.0.0.5:80,8000-8099 peer 10.0.0.0/24`.
//!
//! A direction (`rx`, `tx`), a level (`eth`, `ip`, `tcp`, `udp`), then restrictions, each at most
//! once: `service ADDRESSES[:PORTS]`, `peer ADDRESSES[:PORTS]` (Ethernet addresses for `eth`),
//! `service-mac` and `peer-mac` for the other levels, `vlan NUMBERS`, `type NUMBERS` (eth), `proto
//! NUMBERS` (ip). Lists have commas, ranges a dash, networks a slash; `*` means all.
use crate::filter::{Direction, Field, Filter, Level};
use crate::header::UNTAGGED;
use crate::ranges::{RANGES_MAX, Ranges};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// The error for an invalid filter, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    text: String,
    why: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid filter `{}`: {}; for example `rx tcp service 10.0.0.5:80 peer 10.0.0.0/24`",
            self.text.escape_debug(),
            self.why
        )
    }
}

impl std::error::Error for FilterError {}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        read(text).map_err(|why| FilterError { text: text.to_owned(), why })
    }
}

fn read(text: &str) -> Result<Filter, String> {
    let mut words = text.split_whitespace();
    let direction = match words.next() {
        Some("rx") => Direction::Receive,
        Some("tx") => Direction::Transmit,
        _ => return Err("it must begin with rx or tx".to_owned()),
    };
    let level = match words.next() {
        Some("eth") => Level::Ethernet,
        Some("ip") => Level::Ipv4,
        Some("tcp") => Level::Tcp,
        Some("udp") => Level::Udp,
        _ => return Err("the second word must be eth, ip, tcp or udp".to_owned()),
    };
    let mut filter = Filter::new(direction, level);
    let mut seen = Vec::new();
    while let Some(key) = words.next() {
        if seen.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        seen.push(key);
        let value = words.next().ok_or_else(|| format!("{key} needs a value"))?;
        filter = narrow(filter, key, value)?;
    }
    match filter.is_empty() {
        true => Err("no packet matches it".to_owned()),
        false => Ok(filter),
    }
}

/// Adds the restriction of one pair of words.
fn narrow(filter: Filter, key: &str, value: &str) -> Result<Filter, String> {
    let (level, is_service) = (filter.level(), key == "service");
    let is_ethernet = level == Level::Ethernet;
    let choose = |filter: Filter, field: Field, values: Ranges| match level.has(field) {
        true => Ok(filter.with(field, values)),
        false => Err(format!("{} filters have no {key}", level_name(level))),
    };
    let side = |service, peer| if is_service { service } else { peer };
    match key {
        "service" | "peer" if is_ethernet => {
            choose(filter, side(Field::ServiceMac, Field::PeerMac), list(value, mac)?)
        }
        "service" | "peer" => {
            let (addresses, ports) = match value.split_once(':') {
                Some((addresses, ports)) => (addresses, Some(ports)),
                None => (value, None),
            };
            let field = side(Field::ServiceAddress, Field::PeerAddress);
            let filter = choose(filter, field, list(addresses, address)?)?;
            let Some(ports) = ports else { return Ok(filter) };
            let field = side(Field::ServicePort, Field::PeerPort);
            if !level.has(field) {
                return Err("only tcp and udp filters have ports".to_owned());
            }
            choose(filter, field, list(ports, |text| small(text, field.largest()))?)
        }
        "service-mac" if !is_ethernet => choose(filter, Field::ServiceMac, list(value, mac)?),
        "peer-mac" if !is_ethernet => choose(filter, Field::PeerMac, list(value, mac)?),
        "vlan" => choose(filter, Field::Vlan, list(value, vlan)?),
        "type" => choose(filter, Field::EtherType, list(value, |t| small(t, u16::MAX.into()))?),
        "proto" => choose(filter, Field::Protocol, list(value, |t| small(t, u8::MAX.into()))?),
        _ => Err(format!("{} filters have no {key}", level_name(level))),
    }
}

/// Reads a list of values, ranges and networks.
fn list(text: &str, one: impl Fn(&str) -> Result<(u64, u64), String>) -> Result<Ranges, String> {
    if text == "*" {
        return Ok(Ranges::new([(0, u64::MAX)]));
    }
    let parts: Vec<_> = text.split(',').map(one).collect::<Result<_, _>>()?;
    if parts.len() > RANGES_MAX {
        return Err(format!("a list has at most {RANGES_MAX} parts"));
    }
    if let Some((low, high)) = parts.iter().find(|(low, high)| low > high) {
        return Err(format!("the range from {low} to {high} is empty"));
    }
    Ok(Ranges::new(parts))
}

fn pair(text: &str, one: impl Fn(&str) -> Option<u64>) -> Option<(u64, u64)> {
    match text.split_once('-') {
        Some((low, high)) => Some((one(low)?, one(high)?)),
        None => one(text).map(|value| (value, value)),
    }
}

fn small(text: &str, max: u64) -> Result<(u64, u64), String> {
    let one = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let found = pair(text, one).filter(|(low, high)| *low <= max && *high <= max);
    found.ok_or_else(|| format!("`{text}` is not a number up to {max} or a range of them"))
}

fn vlan(text: &str) -> Result<(u64, u64), String> {
    let untagged = u64::from(UNTAGGED);
    if text == "none" { Ok((untagged, untagged)) } else { small(text, untagged - 1) }
}

fn address(text: &str) -> Result<(u64, u64), String> {
    let one = |text: &str| text.parse::<Ipv4Addr>().ok().map(|ip| u64::from(u32::from(ip)));
    let network = |(ip, bits): (&str, &str)| {
        let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
        let low = one(ip)?;
        let hosts = (1u64 << (32 - bits)) - 1;
        (low & hosts == 0).then_some((low, low | hosts))
    };
    let found = match text.split_once('/') {
        Some(parts) => network(parts),
        None => pair(text, one),
    };
    found.ok_or_else(|| format!("`{text}` is not an IPv4 address, network or range"))
}

fn mac(text: &str) -> Result<(u64, u64), String> {
    let one = |text: &str| {
        let bytes: Vec<u64> = text
            .split(':')
            .map(|part| u64::from_str_radix(part, 16).ok().filter(|byte| *byte <= 255))
            .collect::<Option<_>>()?;
        (bytes.len() == 6).then(|| bytes.iter().fold(0, |mac, byte| mac << 8 | byte))
    };
    pair(text, one).ok_or_else(|| format!("`{text}` is not an Ethernet address or a range of them"))
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Ethernet => "eth",
        Level::Ipv4 => "ip",
        Level::Tcp => "tcp",
        Level::Udp => "udp",
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.direction() == Direction::Receive { "rx" } else { "tx" };
        write!(f, "{direction} {}", level_name(self.level()))?;
        let ends = [
            ("service", Field::ServiceMac, Field::ServiceAddress, Field::ServicePort),
            ("peer", Field::PeerMac, Field::PeerAddress, Field::PeerPort),
        ];
        for (name, mac, address, port) in ends {
            let (macs, addresses) = (self.field(mac), self.field(address));
            if let Some(macs) = macs {
                let ending = if self.level() == Level::Ethernet { "" } else { "-mac" };
                write!(f, " {name}{ending} {}", Text(macs, show_mac))?;
            }
            let ports = self.field(port);
            if addresses.is_some() || ports.is_some() {
                let any = Ranges::new([(0, address.largest())]);
                write!(f, " {name} {}", Text(addresses.unwrap_or(&any), show_address))?;
            }
            if let Some(ports) = ports {
                write!(f, ":{}", Text(ports, show_number))?;
            }
        }
        match self.field(Field::Vlan) {
            None => write!(f, " vlan *")?,
            Some(vlans) if vlans.as_slice() == [(UNTAGGED.into(), UNTAGGED.into())] => {}
            Some(vlans) => write!(f, " vlan {}", Text(vlans, show_vlan))?,
        }
        if let (Level::Ethernet, Some(types)) = (self.level(), self.field(Field::EtherType)) {
            write!(f, " type {}", Text(types, show_type))?;
        }
        if let (Level::Ipv4, Some(protocols)) = (self.level(), self.field(Field::Protocol)) {
            write!(f, " proto {}", Text(protocols, show_number))?;
        }
        Ok(())
    }
}

type Show = fn(u64, u64, &mut fmt::Formatter<'_>) -> fmt::Result;

/// A list as its text.
struct Text<'a>(&'a Ranges, Show);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (low, high)) in self.0.as_slice().iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            (self.1)(*low, *high, f)?;
        }
        Ok(())
    }
}

fn show_number(low: u64, high: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if low == high { write!(f, "{low}") } else { write!(f, "{low}-{high}") }
}

fn show_type(low: u64, high: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if low == high { write!(f, "{low:#06x}") } else { write!(f, "{low:#06x}-{high:#06x}") }
}

/// "No tag" is printed as an entry of its own, though its number follows the largest VLAN number.
fn show_vlan(low: u64, high: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let untagged = u64::from(UNTAGGED);
    match (low == untagged, high == untagged) {
        (true, _) => f.write_str("none"),
        (false, true) => {
            show_number(low, high - 1, f)?;
            f.write_str(",none")
        }
        (false, false) => show_number(low, high, f),
    }
}

fn show_address(low: u64, high: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ip = |value: u64| Ipv4Addr::from(value as u32);
    let hosts = high - low;
    if (low, high) == (0, u32::MAX.into()) {
        f.write_str("*")
    } else if low == high {
        write!(f, "{}", ip(low))
    } else if (hosts + 1).is_power_of_two() && low & hosts == 0 {
        write!(f, "{}/{}", ip(low), 32 - hosts.count_ones())
    } else {
        write!(f, "{}-{}", ip(low), ip(high))
    }
}

fn show_mac(low: u64, high: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let show = |value: u64, f: &mut fmt::Formatter<'_>| {
        let [_, _, a, b, c, d, e, g] = value.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    };
    show(low, f)?;
    if low == high {
        return Ok(());
    }
    f.write_str("-")?;
    show(high, f)
}
