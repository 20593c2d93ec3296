//! What Linux knows about the network of an interface whose address IX shares: addresses, routes
//! and next hops. Linux resolves neighbours; IX asks it to, reads what comes of it, and sends
//! neither ARP nor Neighbour Discovery of its own.
use crate::host_routes;
use crate::look::usable_addresses;
use crate::netlink::{self, Message, Netlink, attribute, messages};
use crate::wanted_hops::WantedHops;
use ix_proto::routes::{Route, Via};
use ix_sys::{Error, socket};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Multicast groups of rtnetlink that `libc` lacks (linux/rtnetlink.h).
const RTMGRP_LINK: u32 = 1;
const RTMGRP_NEIGH: u32 = 4;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;
/// Resolves the entry, or confirms it (linux/neighbour.h).
const NTF_USE: u8 = 1;
/// Neighbours by this interface only (linux/neighbour.h).
const NDA_IFINDEX: u16 = 8;
/// `struct ndmsg`.
const HEAD: usize = 12;
/// What Linux knows is read again not before so many times the time that it took.
const REST: u32 = 8;
/// Datagrams of news that are read in a row, at most: others wait for the broker too.
const NEWS_IN_A_ROW: usize = 64;
/// An entry in one of these states has an Ethernet address.
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

pub use crate::wanted_hops::Neighbour;

/// Addresses of an interface, and routes as they concern it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// With their prefix lengths, in the order in which Linux prefers them as a source.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Of Linux's main table.
    pub routes: Vec<Route>,
    /// There are more routes than are followed.
    pub too_many: bool,
}

impl Network {
    /// The next hop of each family's default route by the interface: that with the lowest metric.
    pub fn gateways(&self) -> Vec<ix_wire::IpAddr> {
        let of_family = |is_v6: bool| {
            let gateway = |route: &Route| match route.via {
                Via::Gateway(hop) if route.prefix == 0 && route.to.is_v6() == is_v6 => {
                    Some((route.metric, hop))
                }
                _ => None,
            };
            self.routes.iter().filter_map(gateway).min().map(|(_, hop)| hop)
        };
        [false, true].into_iter().filter_map(of_family).collect()
    }
}

/// What has changed.
#[derive(Clone, Debug, Default)]
pub struct HostChanges {
    /// Next hops that IX uses.
    pub neighbours: Vec<Neighbour>,
    /// All of the addresses and routes, if something of them is new.
    pub network: Option<Network>,
}

/// What Linux knows by one interface.
pub struct HostNet {
    index: u32,
    watch: OwnedFd,
    asks: Netlink,
    /// Addresses and routes, as they were told.
    network: Network,
    /// Something may have changed of them.
    is_stale: bool,
    /// News of neighbours were lost.
    are_lost: bool,
    /// Nothing is read again before this time.
    read_again: Instant,
    /// Next hops that IX uses, and what it was told.
    wanted: WantedHops,
}

impl HostNet {
    /// Follows the interface of this number, in the calling thread's network namespace.
    pub fn new(index: u32) -> Result<HostNet, Error> {
        let groups = RTMGRP_LINK
            | RTMGRP_NEIGH
            | RTMGRP_IPV4_IFADDR
            | RTMGRP_IPV4_ROUTE
            | RTMGRP_IPV6_IFADDR
            | RTMGRP_IPV6_ROUTE;
        let watch = netlink::open(groups)?;
        let mut asks = Netlink::open()?;
        let network = read_network(&mut asks, index)?;
        let (read_again, wanted) = (Instant::now(), WantedHops::default());
        let (is_stale, are_lost) = (false, false);
        Ok(HostNet { index, watch, asks, network, is_stale, are_lost, read_again, wanted })
    }

    /// Addresses and routes, as they were last read.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// A descriptor that polls readable when [`HostNet::changes`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// When to call [`HostNet::changes`] though nothing is readable.
    pub fn due(&self) -> Option<Duration> {
        let reads = self.is_stale || self.are_lost;
        reads.then(|| self.read_again.saturating_duration_since(Instant::now()))
    }

    /// The interface was made again and has this number: its next hops are to be asked for again.
    pub fn moved(&mut self, index: u32) {
        self.index = index;
        self.wanted.clear();
        self.is_stale = true;
    }

    /// The interface has another Ethernet address, for which Linux has forgotten its next hops:
    /// those that IX uses are asked for again. So they hear of it, also those that send to a
    /// program which waits.
    pub fn has_other_mac(&mut self) {
        let in_use = self.wanted.in_use(Instant::now());
        in_use.into_iter().for_each(|hop| self.resolve(hop));
    }

    /// IX uses this next hop: Linux resolves it, or confirms what it knows. Returns what Linux
    /// knows at once.
    pub fn want(&mut self, hop: IpAddr) -> Option<Neighbour> {
        self.resolve(hop);
        let known = self.look_up(hop);
        self.wanted.name(hop, known, Instant::now());
        known.map(|mac| (hop, Some(mac)))
    }

    fn resolve(&mut self, hop: IpAddr) {
        let mut head = neighbour_head(self.index, hop);
        head[10] = NTF_USE;
        let message = Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE)
            .put(&head)
            .attr(libc::NDA_DST, &octets(hop));
        // If Linux refuses, packets to this hop wait in vain, and IX says that it is unreachable.
        let _ = self.asks.request(message, || format!("cannot resolve {hop}"));
    }

    fn look_up(&mut self, hop: IpAddr) -> Option<[u8; 6]> {
        let message = Message::new(libc::RTM_GETNEIGH, 0)
            .put(&neighbour_head(self.index, hop))
            .attr(libc::NDA_DST, &octets(hop));
        let answers = self.asks.request(message, || format!("cannot look {hop} up")).ok()?;
        answers.iter().find_map(|answer| parse(self.index, &answer.body)?.1)
    }

    /// What has changed since the last call, or a part of it; never blocks.
    pub fn changes(&mut self) -> HostChanges {
        let mut changed = Vec::new();
        let mut buffer = vec![0u8; 32 << 10];
        for _ in 0..NEWS_IN_A_ROW {
            match socket::receive(self.watch.as_fd(), &mut buffer, libc::MSG_DONTWAIT) {
                Ok(0) => break,
                Ok(n) => {
                    for (kind, _, _, body) in messages(&buffer[..n]) {
                        match kind {
                            libc::RTM_NEWNEIGH => changed.extend(parse(self.index, body)),
                            libc::RTM_DELNEIGH => {
                                changed.extend(parse(self.index, body).map(|(hop, _)| (hop, None)));
                            }
                            // Linux tells nobody of IPv4 routes that go with a link.
                            libc::RTM_NEWROUTE
                            | libc::RTM_DELROUTE
                            | libc::RTM_NEWADDR
                            | libc::RTM_DELADDR
                            | libc::RTM_NEWLINK
                            | libc::RTM_DELLINK => self.is_stale = true,
                            _ => {}
                        }
                    }
                }
                // Some were lost: everything is asked for again.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    (self.are_lost, self.is_stale) = (true, true);
                }
                Err(_) => break,
            }
        }
        let told = changed.into_iter().filter_map(|neighbour| self.wanted.note(neighbour));
        let mut neighbours: Vec<Neighbour> = told.collect();
        let network = self.read_again(&mut neighbours);
        HostChanges { neighbours, network }
    }

    /// Reads addresses and routes, if something may have changed of them; returns them if they are
    /// others. If news were lost, adds those of neighbours. What takes long to read is read less
    /// often.
    fn read_again(&mut self, neighbours: &mut Vec<Neighbour>) -> Option<Network> {
        let began = Instant::now();
        if !(self.is_stale || self.are_lost) || began < self.read_again {
            return None;
        }
        if self.are_lost
            && let Some(all) = self.all_neighbours()
        {
            self.are_lost = false;
            let hops = self.wanted.hops().into_iter();
            let now = hops.map(|hop| (hop, all.get(&hop).copied().flatten()));
            neighbours.extend(now.filter_map(|neighbour| self.wanted.note(neighbour)));
        }
        let read = self.is_stale.then(|| read_network(&mut self.asks, self.index));
        self.read_again = Instant::now() + began.elapsed() * REST;
        // Who cannot be asked now is asked again then.
        let network = read?.ok()?;
        self.is_stale = false;
        (self.network != network).then(|| {
            self.network = network.clone();
            network
        })
    }

    /// What Linux knows of all next hops by this interface. One that it does not know any more is
    /// asked for again by whoever uses it.
    fn all_neighbours(&mut self) -> Option<BTreeMap<IpAddr, Option<[u8; 6]>>> {
        let mut all = BTreeMap::new();
        for every in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let message = Message::new(libc::RTM_GETNEIGH, libc::NLM_F_DUMP)
                .put(&neighbour_head(0, every))
                .attr(NDA_IFINDEX, &self.index.to_ne_bytes());
            let answers = self.asks.request(message, || "cannot ask for the neighbours".to_owned());
            all.extend(answers.ok()?.iter().filter_map(|answer| parse(self.index, &answer.body)));
        }
        Some(all)
    }
}

/// `struct ndmsg`: family, padding, index, state, flags, kind.
fn neighbour_head(index: u32, hop: IpAddr) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = if hop.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head
}

fn octets(hop: IpAddr) -> Vec<u8> {
    match hop {
        IpAddr::V4(hop) => hop.octets().to_vec(),
        IpAddr::V6(hop) => hop.octets().to_vec(),
    }
}

/// An entry of an interface with its Ethernet address. `None` also while Linux still asks.
fn parse(index: u32, body: &[u8]) -> Option<Neighbour> {
    let head = body.get(..HEAD)?;
    let of = u32::from_ne_bytes(head[4..8].try_into().ok()?);
    let state = u16::from_ne_bytes(head[8..10].try_into().ok()?);
    if of != index {
        return None;
    }
    let hop = attribute(&body[HEAD..], libc::NDA_DST)?;
    let hop = match i32::from(head[0]) {
        libc::AF_INET => IpAddr::from(<[u8; 4]>::try_from(hop).ok()?),
        libc::AF_INET6 => IpAddr::from(<[u8; 16]>::try_from(hop).ok()?),
        _ => return None,
    };
    if state & libc::NUD_INCOMPLETE != 0 || state == libc::NUD_NONE {
        return None;
    }
    let mac = attribute(&body[HEAD..], libc::NDA_LLADDR).and_then(|mac| mac.try_into().ok());
    Some((hop, mac.filter(|_| state & VALID != 0)))
}

fn read_network(asks: &mut Netlink, index: u32) -> Result<Network, Error> {
    let addresses = usable_addresses(asks, index)?;
    let (routes, too_many) = host_routes::routes(asks, index)?;
    Ok(Network { addresses, routes, too_many })
}
