//! What Linux knows about the network of an interface whose address IX shares: next hops and the
//! default route. Linux resolves neighbours; IX asks it to, reads what comes of it, and sends no
//! ARP of its own.
use crate::netlink::{self, Message, Netlink, attributes, messages};
use ix_sys::{Error, socket};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Multicast groups of rtnetlink that `libc` lacks (linux/rtnetlink.h).
const RTMGRP_NEIGH: u32 = 4;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
/// Resolves the entry, or confirms it (linux/neighbour.h).
const NTF_USE: u8 = 1;
/// `struct ndmsg` and `struct rtmsg` have as many bytes.
const HEAD: usize = 12;
/// Next hops that are followed, at most.
const WANTED_MAX: usize = 65_536;
/// An entry in one of these states has an Ethernet address.
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// What a next hop's Ethernet address is; none: Linux has found none.
pub type Neighbour = (Ipv4Addr, Option<[u8; 6]>);

/// Next hops by one interface.
pub struct HostNet {
    index: u32,
    watch: OwnedFd,
    asks: Netlink,
    /// The default gateway as IX knows it, which keeps that name when Linux's changes.
    gateway: Option<Ipv4Addr>,
    /// Linux's default gateway now.
    through: Option<Ipv4Addr>,
    /// Next hops that IX uses, by the names that IX has for them, and what it was told.
    wanted: BTreeMap<Ipv4Addr, Option<[u8; 6]>>,
}

impl HostNet {
    /// Follows the interface of this number, in the calling thread's network namespace. `gateway`:
    /// what IX calls the default gateway already.
    pub fn new(index: u32, gateway: Option<Ipv4Addr>) -> Result<HostNet, Error> {
        let watch = netlink::open(RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE)?;
        let mut asks = Netlink::open()?;
        let through = default_gateway(&mut asks, index)?;
        let gateway = gateway.or(through);
        Ok(HostNet { index, watch, asks, gateway, through, wanted: BTreeMap::new() })
    }

    /// The default gateway by this interface.
    pub fn gateway(&self) -> Option<Ipv4Addr> {
        self.gateway
    }

    /// A descriptor that polls readable when [`HostNet::changes`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// The interface was made again and has this number: its next hops are to be asked for again.
    pub fn moved(&mut self, index: u32) {
        self.index = index;
        self.wanted.clear();
    }

    /// IX uses this next hop: Linux resolves it, or confirms what it knows. Returns what Linux
    /// knows at once.
    pub fn want(&mut self, hop: Ipv4Addr) -> Option<Neighbour> {
        if self.wanted.len() >= WANTED_MAX && !self.wanted.contains_key(&hop) {
            return None;
        }
        let asked = self.on_linux(hop);
        self.resolve(asked);
        let known = self.look_up(asked);
        self.wanted.insert(hop, known);
        known.map(|mac| (hop, Some(mac)))
    }

    /// What Linux calls the next hop that IX calls so.
    fn on_linux(&self, hop: Ipv4Addr) -> Ipv4Addr {
        if self.gateway == Some(hop) { self.through.unwrap_or(hop) } else { hop }
    }

    fn resolve(&mut self, hop: Ipv4Addr) {
        let mut head = neighbour_head(self.index);
        head[10] = NTF_USE;
        let message = Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE)
            .put(&head)
            .attr(libc::NDA_DST, &hop.octets());
        // If Linux refuses, packets to this hop wait in vain, and IX says that it is unreachable.
        let _ = self.asks.request(message, || format!("cannot resolve {hop}"));
    }

    fn look_up(&mut self, hop: Ipv4Addr) -> Option<[u8; 6]> {
        let message = Message::new(libc::RTM_GETNEIGH, 0)
            .put(&neighbour_head(self.index))
            .attr(libc::NDA_DST, &hop.octets());
        let answers = self.asks.request(message, || format!("cannot look {hop} up")).ok()?;
        answers.iter().find_map(|answer| parse(self.index, &answer.body)?.1)
    }

    /// What has changed about next hops that IX uses, since the last call; never blocks.
    pub fn changes(&mut self) -> Vec<Neighbour> {
        let mut changed = Vec::new();
        let (mut is_lost, mut has_routes) = (false, false);
        let mut buffer = vec![0u8; 32 << 10];
        loop {
            match socket::receive(self.watch.as_fd(), &mut buffer, libc::MSG_DONTWAIT) {
                Ok(0) => break,
                Ok(n) => {
                    for (kind, _, _, body) in messages(&buffer[..n]) {
                        match kind {
                            libc::RTM_NEWNEIGH => changed.extend(parse(self.index, body)),
                            libc::RTM_DELNEIGH => {
                                changed.extend(parse(self.index, body).map(|(hop, _)| (hop, None)));
                            }
                            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => has_routes = true,
                            _ => {}
                        }
                    }
                }
                // Some were lost: everything is asked for again.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => is_lost = true,
                Err(_) => break,
            }
        }
        let mut told = Vec::new();
        for (found, mac) in changed {
            let names: Vec<_> =
                self.wanted.keys().copied().filter(|hop| self.on_linux(*hop) == found).collect();
            told.extend(names.into_iter().filter_map(|name| self.note(name, mac)));
        }
        let turned = (has_routes || is_lost) && self.follow_route();
        for hop in self.wanted.keys().copied().collect::<Vec<_>>() {
            if is_lost || (turned && self.gateway == Some(hop)) {
                let asked = self.on_linux(hop);
                self.resolve(asked);
                let mac = self.look_up(asked);
                told.extend(self.note(hop, mac));
            }
        }
        told
    }

    /// Whether Linux's default gateway is another one now.
    fn follow_route(&mut self) -> bool {
        let Ok(now) = default_gateway(&mut self.asks, self.index) else { return false };
        // Without one, packets go where they went.
        now.is_some() && std::mem::replace(&mut self.through, now) != now
    }

    /// What is to be told about a hop, if it is news.
    fn note(&mut self, hop: Ipv4Addr, mac: Option<[u8; 6]>) -> Option<Neighbour> {
        let before = self.wanted.insert(hop, mac)?;
        // That a hop is still unknown is news too: Linux has given up.
        (before != mac || mac.is_none()).then_some((hop, mac))
    }
}

/// `struct ndmsg`: family, padding, index, state, flags, kind.
fn neighbour_head(index: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = libc::AF_INET as u8;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head
}

/// An entry of an interface with its Ethernet address. `None` also while Linux still asks.
fn parse(index: u32, body: &[u8]) -> Option<Neighbour> {
    let head = body.get(..HEAD)?;
    let of = u32::from_ne_bytes(head[4..8].try_into().ok()?);
    let state = u16::from_ne_bytes(head[8..10].try_into().ok()?);
    if of != index || head[0] != libc::AF_INET as u8 {
        return None;
    }
    let found = |wanted| attributes(&body[HEAD..]).find(|(kind, _)| *kind == wanted);
    let hop = <[u8; 4]>::try_from(found(libc::NDA_DST)?.1).ok()?.into();
    if state & libc::NUD_INCOMPLETE != 0 || state == libc::NUD_NONE {
        return None;
    }
    let mac = found(libc::NDA_LLADDR).and_then(|(_, mac)| mac.try_into().ok());
    Some((hop, mac.filter(|_| state & VALID != 0)))
}

/// The gateway of Linux's default route by an interface: that with the lowest metric.
fn default_gateway(asks: &mut Netlink, index: u32) -> Result<Option<Ipv4Addr>, Error> {
    let mut head = [0; HEAD];
    head[0] = libc::AF_INET as u8;
    let message = Message::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP).put(&head);
    let answers = asks.request(message, || "cannot ask for the routes".to_owned())?;
    let route = |body: &[u8]| {
        let head = body.get(..HEAD)?;
        // Of `struct rtmsg`: family, length of the destination's prefix, …, table, …, kind.
        let (prefix, table, kind) = (head[1], head[4], head[7]);
        if prefix != 0 || table != libc::RT_TABLE_MAIN || kind != libc::RTN_UNICAST {
            return None;
        }
        let found = |wanted| attributes(&body[HEAD..]).find(|(kind, _)| *kind == wanted);
        let word = |wanted| Some(u32::from_ne_bytes(found(wanted)?.1.try_into().ok()?));
        let gateway = <[u8; 4]>::try_from(found(libc::RTA_GATEWAY)?.1).ok()?;
        (word(libc::RTA_OIF) == Some(index))
            .then(|| (word(libc::RTA_PRIORITY).unwrap_or(0), Ipv4Addr::from(gateway)))
    };
    Ok(answers.iter().filter_map(|answer| route(&answer.body)).min().map(|(_, gateway)| gateway))
}
