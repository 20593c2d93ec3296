//! The groups that UDP sockets of IX listen to: the program's options as Linux reads them, with its
//! errnos, and what the dataplane is told.
use libc::{IPPROTO_IP, IPPROTO_IPV6};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Linux's numbers, which the `libc` crate lacks.
const IP_MSFILTER: i32 = 41;
const MCAST_JOIN_GROUP: i32 = 42;
const MCAST_BLOCK_SOURCE: i32 = 43;
const MCAST_UNBLOCK_SOURCE: i32 = 44;
const MCAST_LEAVE_GROUP: i32 = 45;
const MCAST_JOIN_SOURCE_GROUP: i32 = 46;
const MCAST_LEAVE_SOURCE_GROUP: i32 = 47;
const MCAST_MSFILTER: i32 = 48;
/// Most groups of a socket of `AF_INET` (`net.ipv4.igmp_max_memberships`).
const GROUPS_MAX: usize = 20;
/// Most sources of a group (`net.ipv4.igmp_max_msf`; `net.ipv6.mld_max_msf`, which the contract's
/// [`ix_abi::GROUP_SOURCES_MAX`] equals).
const SOURCES_MAX: usize = 10;

/// A group that a socket listens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: IpAddr,
    /// The interface that the program has named.
    at: At,
    /// All sources but these; else these alone.
    pub excludes: bool,
    /// In the order of the program.
    pub sources: Vec<IpAddr>,
}

/// An interface, as programs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Whichever leads there.
    Any,
    /// By an address.
    Address(IpAddr),
    /// By Linux's number.
    Number(u32),
}

impl Membership {
    fn allows(&self, source: IpAddr) -> bool {
        self.excludes != self.sources.contains(&source)
    }
}

/// Whether a socket with these groups hears what a source sends to one. `all`: `IP_MULTICAST_ALL`.
pub fn hears(groups: &[Membership], all: bool, group: IpAddr, source: IpAddr) -> bool {
    let mut its = groups.iter().filter(|one| one.group == group).peekable();
    match its.peek() {
        Some(_) => its.any(|one| one.allows(source)),
        None => all,
    }
}

/// What a port listens to for these sockets, for the dataplane: of each group whether the sources
/// are left out, and the sources. Where sockets differ it is more than each of them hears.
pub type Wanted = BTreeMap<IpAddr, (bool, Vec<IpAddr>)>;

/// Adds what one more socket listens to.
pub fn want(wanted: &mut Wanted, groups: &[Membership]) {
    for one in groups {
        let mut sources = one.sources.clone();
        sources.sort_unstable();
        let Some(both) = wanted.get_mut(&one.group) else {
            wanted.insert(one.group, (one.excludes, sources));
            continue;
        };
        if both.0 || one.excludes {
            if *both != (one.excludes, sources) {
                *both = (true, Vec::new());
            }
            continue;
        }
        both.1.extend(sources);
        both.1.sort_unstable();
        both.1.dedup();
        if both.1.len() > ix_abi::GROUP_SOURCES_MAX {
            *both = (true, Vec::new());
        }
    }
}

/// What an option does with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Join,
    Leave,
    /// With one source.
    JoinSource,
    LeaveSource,
    Block,
    Unblock,
    /// Replaces the filter.
    Set {
        excludes: bool,
    },
}

/// A request about a group.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    verb: Verb,
    /// The group.
    pub group: IpAddr,
    /// The interface.
    pub at: At,
    sources: Vec<IpAddr>,
}

/// Whether an option is about groups that a socket listens to.
pub fn is_about(level: i32, name: i32) -> bool {
    let plain = match level {
        IPPROTO_IP => matches!(name, 35..=41),
        IPPROTO_IPV6 => matches!(name, libc::IPV6_ADD_MEMBERSHIP | libc::IPV6_DROP_MEMBERSHIP),
        _ => return false,
    };
    plain || matches!(name, MCAST_JOIN_GROUP..=MCAST_MSFILTER)
}

/// Whether it says by which interface a socket sends to groups.
pub fn is_about_sending(level: i32, name: i32) -> bool {
    matches!(
        (level, name),
        (IPPROTO_IP, libc::IP_MULTICAST_IF) | (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF)
    )
}

fn word(value: &[u8], at: usize) -> Result<u32, i32> {
    let bytes = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or(libc::EINVAL)
}

fn v4(value: &[u8], at: usize) -> Result<IpAddr, i32> {
    let bytes: Option<[u8; 4]> = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(|bytes| Ipv4Addr::from(bytes).into()).ok_or(libc::EINVAL)
}

/// The address in a `sockaddr_storage`.
fn stored(value: &[u8], at: usize) -> Result<IpAddr, i32> {
    let family = value.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    match family.map(u16::from_ne_bytes).map(i32::from) {
        Some(libc::AF_INET) => v4(value, at + 4),
        Some(libc::AF_INET6) => {
            let bytes: Option<[u8; 16]> =
                value.get(at + 8..at + 24).and_then(|bytes| bytes.try_into().ok());
            bytes.map(|bytes| Ipv6Addr::from(bytes).into()).ok_or(libc::EINVAL)
        }
        Some(_) => Err(libc::EADDRNOTAVAIL),
        None => Err(libc::EINVAL),
    }
}

fn of_address(address: IpAddr) -> At {
    if address.is_unspecified() { At::Any } else { At::Address(address) }
}

fn of_number(number: u32) -> At {
    if number == 0 { At::Any } else { At::Number(number) }
}

/// Reads an option's value. Errors are Linux's.
pub fn read(level: i32, name: i32, value: &[u8]) -> Result<Request, i32> {
    /// Bytes of `struct group_req` and where its parts are; then those of `group_source_req`.
    const STORAGE: usize = 128;
    const GROUP_AT: usize = 8;
    const SOURCE_AT: usize = GROUP_AT + STORAGE;
    let none = Vec::new();
    if name >= IP_MSFILTER && is_about(level, name) {
        if (level, name) == (IPPROTO_IP, IP_MSFILTER) {
            let (group, at) = (v4(value, 0)?, of_address(v4(value, 4)?));
            let (excludes, count) = (word(value, 8)? == 0, word(value, 12)? as usize);
            let sources = (0..count).map(|n| v4(value, 16 + 4 * n)).collect::<Result<_, _>>()?;
            return Ok(Request { verb: Verb::Set { excludes }, group, at, sources });
        }
        let (at, group) = (of_number(word(value, 0)?), stored(value, GROUP_AT)?);
        if name == MCAST_MSFILTER {
            let excludes = word(value, SOURCE_AT)? == 0;
            let count = word(value, SOURCE_AT + 4)? as usize;
            let source = |n: usize| stored(value, SOURCE_AT + 8 + STORAGE * n);
            let sources = (0..count).map(source).collect::<Result<_, _>>()?;
            return Ok(Request { verb: Verb::Set { excludes }, group, at, sources });
        }
        let verb = match name {
            MCAST_JOIN_GROUP => return Ok(Request { verb: Verb::Join, group, at, sources: none }),
            MCAST_LEAVE_GROUP => {
                return Ok(Request { verb: Verb::Leave, group, at, sources: none });
            }
            MCAST_JOIN_SOURCE_GROUP => Verb::JoinSource,
            MCAST_LEAVE_SOURCE_GROUP => Verb::LeaveSource,
            MCAST_BLOCK_SOURCE => Verb::Block,
            MCAST_UNBLOCK_SOURCE => Verb::Unblock,
            _ => return Err(libc::ENOPROTOOPT),
        };
        return Ok(Request { verb, group, at, sources: vec![stored(value, SOURCE_AT)?] });
    }
    if level == IPPROTO_IPV6 {
        let group: [u8; 16] =
            value.get(..16).and_then(|bytes| bytes.try_into().ok()).ok_or(libc::EINVAL)?;
        let (group, at) = (Ipv6Addr::from(group).into(), of_number(word(value, 16)?));
        let joins = name == libc::IPV6_ADD_MEMBERSHIP;
        let verb = if joins { Verb::Join } else { Verb::Leave };
        return Ok(Request { verb, group, at, sources: none });
    }
    match name {
        libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP => {
            let joins = name == libc::IP_ADD_MEMBERSHIP;
            let verb = if joins { Verb::Join } else { Verb::Leave };
            // `ip_mreq`, or `ip_mreqn` with the number of the interface behind it.
            let (group, address) = (v4(value, 0)?, v4(value, 4)?);
            let at = match word(value, 8) {
                Ok(number) if number != 0 => At::Number(number),
                _ => of_address(address),
            };
            Ok(Request { verb, group, at, sources: none })
        }
        _ => {
            // `ip_mreq_source`: group, interface, source.
            let (group, at, source) = (v4(value, 0)?, of_address(v4(value, 4)?), v4(value, 8)?);
            let verb = match name {
                libc::IP_ADD_SOURCE_MEMBERSHIP => Verb::JoinSource,
                libc::IP_DROP_SOURCE_MEMBERSHIP => Verb::LeaveSource,
                libc::IP_BLOCK_SOURCE => Verb::Block,
                libc::IP_UNBLOCK_SOURCE => Verb::Unblock,
                _ => return Err(libc::ENOPROTOOPT),
            };
            Ok(Request { verb, group, at, sources: vec![source] })
        }
    }
}

/// Does what an option says, with the errnos of `ip_mc_join_group`, `ip_mc_leave_group`,
/// `ip_mc_source` and `ip_mc_msfilter` of Linux.
pub fn apply(groups: &mut Vec<Membership>, request: Request) -> Result<(), i32> {
    let Request { verb, group, at, sources } = request;
    if !group.is_multicast() {
        return Err(if matches!(verb, Verb::Leave) { libc::EADDRNOTAVAIL } else { libc::EINVAL });
    }
    let place = groups.iter().position(|one| one.group == group && one.at == at);
    let has_room =
        group.is_ipv6() || groups.iter().filter(|o| o.group.is_ipv4()).count() < GROUPS_MAX;
    match (verb, place) {
        (Verb::Join, Some(_)) => return Err(libc::EADDRINUSE),
        (Verb::Join | Verb::JoinSource, None) if !has_room => return Err(libc::ENOBUFS),
        (Verb::Join, None) => {
            groups.push(Membership { group, at, excludes: true, sources: Vec::new() });
        }
        (Verb::JoinSource, None) => groups.push(Membership { group, at, excludes: false, sources }),
        (Verb::Leave, None) => return Err(libc::EADDRNOTAVAIL),
        (_, None) => return Err(libc::EINVAL),
        (Verb::Leave, Some(place)) => drop(groups.remove(place)),
        (Verb::Set { excludes }, Some(place)) => match !excludes && sources.is_empty() {
            true => drop(groups.remove(place)),
            false if sources.len() > sources_max(group) => return Err(libc::ENOBUFS),
            false => groups[place] = Membership { group, at, excludes, sources },
        },
        (_, Some(place)) => {
            let one = &mut groups[place];
            let source = sources[0];
            let excludes = matches!(verb, Verb::Block | Verb::Unblock);
            if excludes != one.excludes {
                // A filter without sources may change its kind.
                if !one.sources.is_empty() {
                    return Err(libc::EINVAL);
                }
                one.excludes = excludes;
            }
            let known = one.sources.iter().position(|known| *known == source);
            let adds = matches!(verb, Verb::Block | Verb::JoinSource);
            match (adds, known) {
                (true, Some(_)) | (false, None) => return Err(libc::EADDRNOTAVAIL),
                (true, None) if one.sources.len() >= sources_max(group) => {
                    return Err(libc::ENOBUFS);
                }
                (true, None) => one.sources.push(source),
                (false, Some(known)) => drop(one.sources.remove(known)),
            }
            if !one.excludes && one.sources.is_empty() {
                groups.remove(place);
            }
        }
    }
    Ok(())
}

fn sources_max(group: IpAddr) -> usize {
    if group.is_ipv6() { ix_abi::GROUP_SOURCES_MAX } else { SOURCES_MAX }
}

/// The interface that `IP_MULTICAST_IF` or `IPV6_MULTICAST_IF` names.
pub fn interface(level: i32, value: &[u8]) -> Result<At, i32> {
    Ok(match level {
        IPPROTO_IPV6 => of_number(word(value, 0)?),
        // `ip_mreqn`, `ip_mreq` or an address.
        _ => match (value.len(), word(value, 8)) {
            (12.., Ok(number)) if number != 0 => At::Number(number),
            (8.., _) => of_address(v4(value, 4)?),
            _ => of_address(v4(value, 0)?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 1, 1, 1));

    fn ip(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    fn ask(groups: &mut Vec<Membership>, verb: Verb, sources: &[IpAddr]) -> Result<(), i32> {
        apply(groups, Request { verb, group: GROUP, at: At::Any, sources: sources.to_vec() })
    }

    /// The errnos of `net/ipv4/igmp.c`.
    #[test]
    fn groups_and_sources_have_linuxs_errnos() {
        let groups = &mut Vec::new();
        assert_eq!(ask(groups, Verb::Leave, &[]), Err(libc::EADDRNOTAVAIL));
        assert_eq!(ask(groups, Verb::LeaveSource, &[ip(1)]), Err(libc::EINVAL));
        assert_eq!(ask(groups, Verb::Block, &[ip(1)]), Err(libc::EINVAL));
        assert_eq!(ask(groups, Verb::Join, &[]), Ok(()));
        assert_eq!(ask(groups, Verb::Join, &[]), Err(libc::EADDRINUSE));
        assert_eq!(ask(groups, Verb::Block, &[ip(1)]), Ok(()));
        assert_eq!(ask(groups, Verb::Block, &[ip(1)]), Err(libc::EADDRNOTAVAIL));
        assert_eq!(ask(groups, Verb::JoinSource, &[ip(2)]), Err(libc::EINVAL));
        assert!(!hears(groups, true, GROUP, ip(1)) && hears(groups, true, GROUP, ip(2)));
        assert_eq!(ask(groups, Verb::Unblock, &[ip(1)]), Ok(()));
        assert_eq!(ask(groups, Verb::Unblock, &[ip(1)]), Err(libc::EADDRNOTAVAIL));
        assert_eq!(
            ask(groups, Verb::JoinSource, &[ip(2)]),
            Ok(()),
            "without sources it may change"
        );
        assert!(hears(groups, true, GROUP, ip(2)) && !hears(groups, true, GROUP, ip(1)));
        assert_eq!(ask(groups, Verb::LeaveSource, &[ip(3)]), Err(libc::EADDRNOTAVAIL));
        for n in 3..12 {
            assert_eq!(ask(groups, Verb::JoinSource, &[ip(n)]), Ok(()));
        }
        assert_eq!(ask(groups, Verb::JoinSource, &[ip(99)]), Err(libc::ENOBUFS));
        assert_eq!(ask(groups, Verb::Set { excludes: false }, &[ip(1)]), Ok(()));
        assert_eq!(ask(groups, Verb::LeaveSource, &[ip(1)]), Ok(()));
        assert!(groups.is_empty(), "the last source that it listened to");
        assert!(hears(groups, true, GROUP, ip(1)) && !hears(groups, false, GROUP, ip(1)));
        for n in 0..20 {
            let group = Ipv4Addr::new(224, 1, 2, n).into();
            let request = Request { verb: Verb::Join, group, at: At::Any, sources: Vec::new() };
            assert_eq!(apply(groups, request), Ok(()));
        }
        assert_eq!(ask(groups, Verb::Join, &[]), Err(libc::ENOBUFS));
    }

    #[test]
    fn a_port_listens_to_what_its_sockets_want() {
        let one = |excludes, sources: &[u8]| {
            let sources = sources.iter().map(|n| ip(*n)).collect();
            Membership { group: GROUP, at: At::Any, excludes, sources }
        };
        for (parts, expected) in [
            (vec![one(true, &[1])], (true, vec![ip(1)])),
            (vec![one(true, &[1]), one(true, &[1])], (true, vec![ip(1)])),
            (vec![one(true, &[1]), one(true, &[2])], (true, vec![])),
            (vec![one(false, &[2]), one(false, &[1])], (false, vec![ip(1), ip(2)])),
            (vec![one(false, &[2]), one(true, &[2])], (true, vec![])),
        ] {
            let mut wanted = Wanted::new();
            parts.iter().for_each(|part| want(&mut wanted, core::slice::from_ref(part)));
            assert_eq!(wanted[&GROUP], expected, "{parts:?}");
        }
    }

    #[test]
    fn options_are_read_as_linux_has_them() {
        let read = |name, value: &[u8]| read(IPPROTO_IP, name, value);
        let plain = [224, 1, 1, 1, 10, 0, 0, 2];
        let request = |verb, at, sources| Request { verb, group: GROUP, at, sources };
        let join = |at| Ok(request(Verb::Join, at, Vec::new()));
        assert_eq!(read(libc::IP_ADD_MEMBERSHIP, &plain), join(At::Address(ip(2))));
        let numbered = [&plain[..], &7u32.to_ne_bytes()].concat();
        assert_eq!(read(libc::IP_ADD_MEMBERSHIP, &numbered), join(At::Number(7)));
        assert_eq!(read(libc::IP_ADD_MEMBERSHIP, &plain[..7]), Err(libc::EINVAL));
        let mut with_source = [0u8; 264];
        with_source[..4].copy_from_slice(&7u32.to_ne_bytes());
        for (at, address) in [(8, [224, 1, 1, 1]), (136, [10, 0, 0, 9])] {
            with_source[at..at + 2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            with_source[at + 4..at + 8].copy_from_slice(&address);
        }
        let expected = request(Verb::Block, At::Number(7), vec![ip(9)]);
        assert_eq!(read(MCAST_BLOCK_SOURCE, &with_source), Ok(expected));
        let filter =
            [&plain[..], &1u32.to_ne_bytes(), &1u32.to_ne_bytes(), &[10, 0, 0, 9]].concat();
        let expected = request(Verb::Set { excludes: false }, At::Address(ip(2)), vec![ip(9)]);
        assert_eq!(read(IP_MSFILTER, &filter), Ok(expected));
        assert_eq!(read(IP_MSFILTER, &filter[..19]), Err(libc::EINVAL));
    }
}
