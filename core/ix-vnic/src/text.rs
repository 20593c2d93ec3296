//! Filters as text: `rx tcp service 10.0.0.5:80,8000-8099 peer 10.0.0.0/24`.
//!
//! A direction (`rx`, `tx`), a level (`eth`, `ip`, `tcp`, `udp`, `ip6`, `tcp6`, `udp6`), then
//! restrictions, each at most once: `service ADDRESSES[:PORTS]`, `peer ADDRESSES[:PORTS]` (Ethernet
//! addresses for `eth`), `service-mac` and `peer-mac` for the other levels, `vlan NUMBERS`, `type
//! NUMBERS` (eth), `proto NUMBERS` (ip, ip6). Lists have commas, ranges a dash, networks a slash;
//! `*` means all. IPv6 addresses before ports stand in brackets: `[2001:db8::5,2001:db8::7]:80`.
//! Where a filter names IPv6 addresses, `ip`, `tcp` and `udp` mean those of IPv6.
use crate::filter::{Direction, Field, Filter, Level};
use crate::header::UNTAGGED;
use crate::ranges::{RANGES_MAX, Ranges};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
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
        Some("ip6") => Level::Ipv6,
        Some("tcp6") => Level::Tcp6,
        Some("udp6") => Level::Udp6,
        _ => return Err("the second word must be eth, ip, tcp, udp, ip6, tcp6 or udp6".to_owned()),
    };
    let mut pairs = text.split_whitespace().zip(text.split_whitespace().skip(1));
    let names_v6 = |(key, value): (&str, &str)| {
        matches!(key, "service" | "peer") && split_ports(value).0.contains(':')
    };
    let says_v6 = pairs.any(names_v6);
    let level = match level {
        Level::Ipv4 | Level::Tcp | Level::Udp if says_v6 => level.other_family(),
        level => level,
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
            let (addresses, ports) = split_ports(value);
            let field = side(Field::ServiceAddress, Field::PeerAddress);
            let addresses = match level.is_v6() {
                true => list(addresses, address_v6)?,
                false => list(addresses, address)?,
            };
            let filter = choose(filter, field, addresses)?;
            let Some(ports) = ports else { return Ok(filter) };
            let field = side(Field::ServicePort, Field::PeerPort);
            if !level.has(field) {
                return Err("only tcp and udp filters have ports".to_owned());
            }
            choose(filter, field, list(ports, |text| small(text, field.largest(level)))?)
        }
        "service-mac" if !is_ethernet => choose(filter, Field::ServiceMac, list(value, mac)?),
        "peer-mac" if !is_ethernet => choose(filter, Field::PeerMac, list(value, mac)?),
        "vlan" => choose(filter, Field::Vlan, list(value, vlan)?),
        "type" => choose(filter, Field::EtherType, list(value, |t| small(t, u16::MAX.into()))?),
        "proto" => choose(filter, Field::Protocol, list(value, |t| small(t, u8::MAX.into()))?),
        _ => Err(format!("{} filters have no {key}", level_name(level))),
    }
}

/// Splits the ports off. Addresses of IPv6 before them stand in brackets, and may without ports.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    if let Some((addresses, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        match rest.strip_prefix(':') {
            Some(ports) => return (addresses, Some(ports)),
            None if rest.is_empty() => return (addresses, None),
            None => return (text, None),
        }
    }
    match text.split_once(':') {
        Some((addresses, ports)) if !ports.contains(':') => (addresses, Some(ports)),
        _ => (text, None),
    }
}

/// Reads a list of values, ranges and networks.
fn list(text: &str, one: impl Fn(&str) -> Result<(u128, u128), String>) -> Result<Ranges, String> {
    if text == "*" {
        return Ok(Ranges::new([(0, u128::MAX)]));
    }
    let parts: Vec<_> = text.split(',').map(one).collect::<Result<_, _>>()?;
    if parts.len() > RANGES_MAX {
        return Err(format!("a list has at most {RANGES_MAX} parts"));
    }
    if parts.iter().any(|(low, high)| low > high) {
        return Err(format!("a range in `{text}` is empty: its ends are in the wrong order"));
    }
    Ok(Ranges::new(parts))
}

fn pair(text: &str, one: impl Fn(&str) -> Option<u128>) -> Option<(u128, u128)> {
    match text.split_once('-') {
        Some((low, high)) => Some((one(low)?, one(high)?)),
        None => one(text).map(|value| (value, value)),
    }
}

fn small(text: &str, max: u128) -> Result<(u128, u128), String> {
    let one = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let found = pair(text, one).filter(|(low, high)| *low <= max && *high <= max);
    found.ok_or_else(|| format!("`{text}` is not a number up to {max} or a range of them"))
}

fn vlan(text: &str) -> Result<(u128, u128), String> {
    let untagged = u128::from(UNTAGGED);
    if text == "none" { Ok((untagged, untagged)) } else { small(text, untagged - 1) }
}

fn address(text: &str) -> Result<(u128, u128), String> {
    let one = |text: &str| text.parse::<Ipv4Addr>().ok().map(|ip| u32::from(ip).into());
    address_of(text, 32, one)
        .ok_or_else(|| format!("`{text}` is not an IPv4 address, network or range"))
}

/// IPv4 addresses are none of IPv6, mapped ones neither: no packet has one.
fn address_v6(text: &str) -> Result<(u128, u128), String> {
    let unmapped = |ip: &Ipv6Addr| ip.to_ipv4_mapped().is_none();
    let one = |text: &str| text.parse().ok().filter(unmapped).map(u128::from);
    address_of(text, 128, one).ok_or_else(|| {
        format!(
            "`{text}` is not an IPv6 address, network or range (`[ADDRESSES]:PORTS` with ports)"
        )
    })
}

fn address_of(text: &str, width: u32, one: impl Fn(&str) -> Option<u128>) -> Option<(u128, u128)> {
    let network = |(ip, bits): (&str, &str)| {
        let bits: u32 = bits.parse().ok().filter(|bits| *bits <= width)?;
        let low = one(ip)?;
        let hosts = u128::MAX.checked_shr(128 - width + bits).unwrap_or(0);
        (low & hosts == 0).then_some((low, low | hosts))
    };
    match text.split_once('/') {
        Some(parts) => network(parts),
        None => pair(text, one),
    }
}

fn mac(text: &str) -> Result<(u128, u128), String> {
    let one = |text: &str| {
        let bytes: Vec<u128> = text
            .split(':')
            .map(|part| u128::from_str_radix(part, 16).ok().filter(|byte| *byte <= 255))
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
        Level::Ipv6 => "ip6",
        Level::Tcp6 => "tcp6",
        Level::Udp6 => "udp6",
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
                let any = Ranges::new([(0, address.largest(self.level()))]);
                let shown = addresses.unwrap_or(&any);
                match (self.level().is_v6(), ports.is_some() && addresses.is_some()) {
                    (false, _) => write!(f, " {name} {}", Text(shown, show_address))?,
                    (true, false) => write!(f, " {name} {}", Text(shown, show_address_v6))?,
                    (true, true) => write!(f, " {name} [{}]", Text(shown, show_address_v6))?,
                }
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
        if let (Level::Ipv4 | Level::Ipv6, Some(protocols)) =
            (self.level(), self.field(Field::Protocol))
        {
            write!(f, " proto {}", Text(protocols, show_number))?;
        }
        Ok(())
    }
}

type Show = fn(u128, u128, &mut fmt::Formatter<'_>) -> fmt::Result;

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

fn show_number(low: u128, high: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if low == high { write!(f, "{low}") } else { write!(f, "{low}-{high}") }
}

fn show_type(low: u128, high: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if low == high { write!(f, "{low:#06x}") } else { write!(f, "{low:#06x}-{high:#06x}") }
}

/// "No tag" is printed as an entry of its own, though its number follows the largest VLAN number.
fn show_vlan(low: u128, high: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let untagged = u128::from(UNTAGGED);
    match (low == untagged, high == untagged) {
        (true, _) => f.write_str("none"),
        (false, true) => {
            show_number(low, high - 1, f)?;
            f.write_str(",none")
        }
        (false, false) => show_number(low, high, f),
    }
}

fn show_address(low: u128, high: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    show_ip((low, high), 32, |value| Ipv4Addr::from(value as u32), f)
}

fn show_address_v6(low: u128, high: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    show_ip((low, high), 128, Ipv6Addr::from, f)
}

fn show_ip<T: fmt::Display>(
    (low, high): (u128, u128),
    width: u32,
    ip: impl Fn(u128) -> T,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let hosts = high - low;
    if hosts == u128::MAX >> (128 - width) {
        f.write_str("*")
    } else if low == high {
        write!(f, "{}", ip(low))
    } else if (hosts + 1).is_power_of_two() && low & hosts == 0 {
        write!(f, "{}/{}", ip(low), width - hosts.count_ones())
    } else {
        write!(f, "{}-{}", ip(low), ip(high))
    }
}

fn show_mac(low: u128, high: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let show = |value: u128, f: &mut fmt::Formatter<'_>| {
        let [_, _, a, b, c, d, e, g] = (value as u64).to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    };
    show(low, f)?;
    if low == high {
        return Ok(());
    }
    f.write_str("-")?;
    show(high, f)
}
