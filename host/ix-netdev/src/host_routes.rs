//! Linux's table of routes, as it concerns one interface.
use crate::netlink::{Message, Netlink, attribute, number};
use ix_proto::routes::{Route, Via};
use ix_sys::Error;
use ix_wire::IpAddr;

/// `struct rtmsg`.
const HEAD: usize = 12;
/// `struct rtnexthop`: length, flags, hops, interface.
const HOP_HEAD: usize = 8;
/// Of a next hop that cannot be used, or whose link has no carrier (linux/rtnetlink.h).
const UNUSABLE: u32 = 1 | 16;
/// Attributes that `libc` lacks: a next hop of another family; in the metrics, the MTU.
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
/// Routes that are followed, at most.
const ROUTES_MAX: usize = 16_384;

/// The routes of both families of Linux's main table, and whether there are more than are followed.
pub(crate) fn routes(asks: &mut Netlink, index: u32) -> Result<(Vec<Route>, bool), Error> {
    let mut routes = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        routes.extend(dump(asks, family)?.iter().filter_map(|body| parse(index, body)));
    }
    let too_many = routes.len() > ROUTES_MAX;
    // Without those for most destinations packets would go astray; the longest are for few.
    if too_many {
        routes.sort_by_key(|route| route.prefix);
        routes.truncate(ROUTES_MAX);
    }
    Ok((routes, too_many))
}

/// A default route of Linux's main table, by one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DefaultRoute {
    /// Linux takes IPv4's before IPv6's, and of one family that with the lowest metric.
    pub is_v6: bool,
    pub metric: u32,
    /// Number of the interface.
    pub index: u32,
}

/// The default routes of both families that can be used.
pub(crate) fn default_routes(asks: &mut Netlink) -> Result<Vec<DefaultRoute>, Error> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for body in dump(asks, family)? {
            // By no interface: what is found is where packets go, whichever that is.
            let Some(route) = parse(0, &body).filter(|route| route.prefix == 0) else { continue };
            if route.via == Via::Nowhere {
                continue;
            }
            let said = &body[HEAD..];
            let one = attribute(said, libc::RTA_OIF).and_then(number);
            let hops = attribute(said, libc::RTA_MULTIPATH).map(interfaces).unwrap_or_default();
            let is_v6 = family == libc::AF_INET6;
            let of = |index| DefaultRoute { is_v6, metric: route.metric, index };
            found.extend(one.into_iter().chain(hops).map(of));
        }
    }
    Ok(found)
}

/// By what Linux sends packets to an address: the best of its routes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The interface's number.
    pub index: u32,
    /// The length of the route's prefix.
    pub prefix: u8,
    /// The address is Linux's own.
    pub is_own: bool,
}

/// By what Linux sends packets to an address; `None`: it has no route there.
pub(crate) fn way_to(asks: &mut Netlink, to: std::net::IpAddr) -> Result<Option<Way>, Error> {
    /// The answer is the route, and not the destination's own (linux/rtnetlink.h).
    const RTM_F_FIB_MATCH: u32 = 0x2000;
    let (family, bytes) = match to {
        std::net::IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        std::net::IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut head = [0; HEAD];
    (head[0], head[1]) = (family as u8, bytes.len() as u8 * 8);
    head[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
    let message = Message::new(libc::RTM_GETROUTE, 0).put(&head).attr(libc::RTA_DST, &bytes);
    let answers = match asks.request(message, || format!("cannot ask for the route to {to}")) {
        Ok(answers) => answers,
        // None, or one that forbids packets: unreachable, prohibit, blackhole.
        Err(e) => match e.errno() {
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL => {
                return Ok(None);
            }
            _ => return Err(e),
        },
    };
    let way = |body: &[u8]| {
        let head = body.get(..HEAD)?;
        let index = attribute(&body[HEAD..], libc::RTA_OIF).and_then(number)?;
        Some(Way { index, prefix: head[1], is_own: head[7] == libc::RTN_LOCAL })
    };
    Ok(answers.iter().find_map(|answer| way(&answer.body)))
}

/// The interfaces of several next hops that can be used.
fn interfaces(mut hops: &[u8]) -> Vec<u32> {
    let mut all = Vec::new();
    while let Some(head) = hops.get(..HOP_HEAD) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        if u32::from(head[2]) & UNUSABLE == 0 {
            all.extend(number(&head[4..8]));
        }
        hops = hops.get(len.next_multiple_of(4).max(HOP_HEAD)..).unwrap_or_default();
    }
    all
}

/// All routes of a family.
fn dump(asks: &mut Netlink, family: i32) -> Result<Vec<Vec<u8>>, Error> {
    let mut head = [0; HEAD];
    head[0] = family as u8;
    let message = Message::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP).put(&head);
    let answers = asks.request(message, || "cannot ask for the routes".to_owned())?;
    Ok(answers.into_iter().map(|answer| answer.body).collect())
}

/// A route of the main table that can be used. `None`: it is of no concern.
fn parse(index: u32, body: &[u8]) -> Option<Route> {
    let head = body.get(..HEAD)?;
    // Family, length of the destination's prefix, of the source's, type of service, table,
    // protocol, scope, kind, flags.
    let (prefix, source_prefix, tos, table, kind) = (head[1], head[2], head[3], head[4], head[7]);
    let flags = u32::from_ne_bytes(head[8..12].try_into().ok()?);
    let family = i32::from(head[0]);
    if ![libc::AF_INET, libc::AF_INET6].contains(&family) || source_prefix != 0 || tos != 0 {
        return None;
    }
    let found = |wanted| attribute(&body[HEAD..], wanted);
    let word = |wanted| found(wanted).and_then(number);
    if word(libc::RTA_TABLE).unwrap_or(table.into()) != u32::from(libc::RT_TABLE_MAIN) {
        return None;
    }
    let every = if family == libc::AF_INET { IpAddr::v4([0; 4]) } else { IpAddr([0; 16]) };
    let to = found(libc::RTA_DST).map_or(Some(every), address)?;
    let via = match kind {
        libc::RTN_BLACKHOLE | libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT => Via::Nowhere,
        libc::RTN_UNICAST => match found(libc::RTA_MULTIPATH) {
            Some(hops) => of_several(index, hops)?,
            None if flags & UNUSABLE != 0 => return None,
            None => way(index, word(libc::RTA_OIF), &body[HEAD..]),
        },
        _ => Via::Elsewhere,
    };
    let metrics = found(libc::RTA_METRICS).unwrap_or_default();
    let mtu = attribute(metrics, RTAX_MTU).and_then(number);
    let source = found(libc::RTA_PREFSRC).and_then(address);
    Some(Route {
        to,
        prefix,
        via,
        source,
        mtu: mtu.unwrap_or(0),
        metric: word(libc::RTA_PRIORITY).unwrap_or(0),
    })
}

/// An address of either family.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::v4(bytes.try_into().ok()?)),
        _ => Some(IpAddr(bytes.try_into().ok()?)),
    }
}

/// Where packets go by this interface and these attributes.
fn way(index: u32, by: Option<u32>, said: &[u8]) -> Via {
    // An IPv6 next hop of IPv4 packets stays Linux's.
    if by != Some(index) || attribute(said, RTA_VIA).is_some() {
        return Via::Elsewhere;
    }
    let gateway = attribute(said, libc::RTA_GATEWAY).and_then(address);
    gateway.map_or(Via::Link, Via::Gateway)
}

/// Of several next hops the first usable one by this interface, else another interface. `None`:
/// none can be used.
fn of_several(index: u32, mut hops: &[u8]) -> Option<Via> {
    let mut best = None;
    while let Some(head) = hops.get(..HOP_HEAD) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let said = hops.get(HOP_HEAD..len)?;
        let by = u32::from_ne_bytes(head[4..8].try_into().ok()?);
        if u32::from(head[2]) & UNUSABLE == 0 {
            let via = way(index, Some(by), said);
            if via != Via::Elsewhere {
                return Some(via);
            }
            best = Some(via);
        }
        hops = hops.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    best
}
