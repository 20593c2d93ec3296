//! What this vNIC may receive: filters, a rate, and the queue of packets that belong to no flow.
//! Checked after parsing. A dataplane without these rules has one test for each packet.
use crate::observe::metrics::LocalDrop;
use ix_vnic::{
    ArpHeader, Direction, Filter, FilterSet, Header, IpHeader, NdHeader, Saying, Shaper, UNTAGGED,
    VnicRules,
};
use ix_wire::{IpAddr, IpMeta, NdKind, Parsed, ethernet};

/// The receive side of the vNIC's rules in one elastic thread.
#[derive(Default)]
pub(crate) struct Admission {
    /// `None`: everything may be received.
    checks: Option<Box<Checks>>,
}

/// Filters and rate in force.
pub(crate) struct Checks {
    rx: Option<FilterSet>,
    /// The queue of received packets that belong to no flow.
    steering: Vec<(usize, Filter)>,
    policer: Option<Shaper>,
}

impl Admission {
    /// The rules for one of `queues` queues.
    pub fn new(rules: &VnicRules, queue: usize, queues: usize, now_ns: u64) -> Admission {
        let (rx, steering) = (rules.set(Direction::Receive), rules.steering());
        let policer = rules.rates_of(queue, queues).rx.map(|rate| Shaper::new(rate, now_ns));
        if rx.is_none() && steering.is_empty() && policer.is_none() {
            return Admission::default();
        }
        Admission { checks: Some(Box::new(Checks { rx, steering, policer })) }
    }

    /// The checks for received packets, if there are any.
    #[inline]
    pub fn checks(&mut self) -> Option<&mut Checks> {
        self.checks.as_deref_mut()
    }

    /// Whether there are receive filters.
    pub fn is_filtered(&self) -> bool {
        self.checks.as_deref().is_some_and(|checks| checks.rx.is_some())
    }

    /// Whether a receive filter names frames of this type.
    pub fn names_ethertype(&self, ethertype: u16) -> bool {
        let rx = self.checks.as_deref().and_then(|checks| checks.rx.as_ref());
        rx.is_some_and(|rx| rx.names_ethertype(ethertype))
    }

    /// Whether receive filters are assigned to queues.
    pub fn steers(&self) -> bool {
        self.checks.as_deref().is_some_and(|checks| !checks.steering.is_empty())
    }

    /// The queue to which a receive filter steers a packet, if one does.
    pub fn queue_of(&self, header: &Header) -> Option<usize> {
        let steering = &self.checks.as_deref()?.steering;
        steering.iter().find(|(_, filter)| filter.matches(header)).map(|(queue, _)| *queue)
    }
}

impl Checks {
    /// Whether a received packet may be processed.
    pub fn hears(&mut self, parsed: &Parsed, bytes: usize, now_us: u64) -> Result<(), LocalDrop> {
        self.hears_header(&header_of(parsed), bytes, now_us)
    }

    /// The same for a packet that the parser does not know. The caller checks its destination.
    pub fn hears_header(
        &mut self,
        header: &Header,
        bytes: usize,
        now_us: u64,
    ) -> Result<(), LocalDrop> {
        if let Some(rx) = &self.rx {
            rx.admits(header, header.eth_dst).map_err(|_| LocalDrop::RxFiltered)?;
        }
        let policed = self.policer.as_mut().is_none_or(|p| p.police(now_us * 1000, bytes));
        if policed { Ok(()) } else { Err(LocalDrop::RxRate) }
    }
}

/// The header fields of a parsed packet. They are not read from its bytes again, because the peer
/// may still change these.
fn header_of(parsed: &Parsed) -> Header {
    let bare = |eth_src, eth_dst, ethertype| {
        let (vlan, ip, arp, nd) = (UNTAGGED, None, None, None);
        Header { eth_src, eth_dst, vlan, ethertype, ip, arp, nd }
    };
    let ip = |ip: &IpMeta, protocol, ports| {
        let ethertype = match ip.dst.is_v6() {
            true => ethernet::TYPE_IPV6,
            false => ethernet::TYPE_IPV4,
        };
        let header = IpHeader { src: number(ip.src), dst: number(ip.dst), protocol, ports };
        Header { ip: Some(header), ..bare(ip.eth_src, ip.eth_dst, ethertype) }
    };
    match parsed {
        Parsed::Tcp(p) => {
            let tuple = p.tuple();
            ip(&p.ip, 6, Some((tuple.remote_port, tuple.local_port)))
        }
        Parsed::Udp(p) => {
            let tuple = p.tuple();
            ip(&p.ip, 17, Some((tuple.remote_port, tuple.local_port)))
        }
        Parsed::Icmp(p) => ip(&p.ip, if p.ip.dst.is_v6() { 58 } else { 1 }, None),
        Parsed::Nd(p) => {
            let saying = match p.kind {
                NdKind::Solicitation => Saying::Solicitation,
                NdKind::Advertisement { .. } => Saying::Advertisement,
            };
            let (src, dst, target) = (number(p.src), number(p.dst), number(p.target));
            let nd = Some(NdHeader { saying, src, dst, target, mac: p.link });
            Header { nd, ..bare(p.eth_src, ix_wire::ipv6::group_mac(p.dst), ethernet::TYPE_IPV6) }
        }
        Parsed::Arp(p) => {
            let arp = Some(ArpHeader {
                sender_mac: p.sender_mac,
                sender: u32::from_be_bytes(p.sender_ip),
                target: u32::from_be_bytes(p.target_ip),
            });
            Header { arp, ..bare(p.sender_mac, p.target_mac, ethernet::TYPE_ARP) }
        }
    }
}

/// An address as filters have it.
fn number(ip: IpAddr) -> u128 {
    match ip.as_v4() {
        Some(v4) => u32::from_be_bytes(v4).into(),
        None => u128::from_be_bytes(ip.0),
    }
}
