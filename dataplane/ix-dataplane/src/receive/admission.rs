//! What the control plane lets this vNIC receive: filters, a rate, and which queue is to have what
//! no flow has. Asked behind the parser. A dataplane without them pays one look at an empty place
//! for each packet.
use crate::observe::metrics::LocalDrop;
use ix_vnic::{ArpHeader, Direction, Filter, FilterSet, Gate, Header, IpHeader, Shaper, UNTAGGED};
use ix_wire::{IpAddr, IpMeta, Parsed};

/// The receive side of one elastic thread's gate.
#[derive(Default)]
pub(crate) struct Admission {
    /// None: everything is heard.
    checks: Option<Box<Checks>>,
}

/// Filters and the rate at work.
pub(crate) struct Checks {
    rx: Option<FilterSet>,
    /// Which queue is to have the received packets that no flow has.
    steering: Vec<(usize, Filter)>,
    policer: Option<Shaper>,
}

impl Admission {
    /// What `gate` says of one of `queues` queues.
    pub fn new(gate: &Gate, queue: usize, queues: usize, now_ns: u64) -> Admission {
        let (rx, steering) = (gate.set(Direction::Receive), gate.steering());
        let policer = gate.rates_of(queue, queues).rx.map(|rate| Shaper::new(rate, now_ns));
        if rx.is_none() && steering.is_empty() && policer.is_none() {
            return Admission::default();
        }
        Admission { checks: Some(Box::new(Checks { rx, steering, policer })) }
    }

    /// What is to be asked of received packets, if anything.
    #[inline]
    pub fn checks(&mut self) -> Option<&mut Checks> {
        self.checks.as_deref_mut()
    }

    /// Whether filters say what is heard.
    pub fn is_filtered(&self) -> bool {
        self.checks.as_deref().is_some_and(|checks| checks.rx.is_some())
    }

    /// Whether a receive filter asks for frames of this type by name.
    pub fn names_ethertype(&self, ethertype: u16) -> bool {
        let rx = self.checks.as_deref().and_then(|checks| checks.rx.as_ref());
        rx.is_some_and(|rx| rx.names_ethertype(ethertype))
    }

    /// Whether receive filters are assigned to queues.
    pub fn steers(&self) -> bool {
        self.checks.as_deref().is_some_and(|checks| !checks.steering.is_empty())
    }

    /// The queue that a receive filter gives a packet to, if one does.
    pub fn queue_of(&self, header: &Header) -> Option<usize> {
        let steering = &self.checks.as_deref()?.steering;
        steering.iter().find(|(_, filter)| filter.matches(header)).map(|(queue, _)| *queue)
    }
}

impl Checks {
    /// Whether a received packet may be heard.
    pub fn hears(&mut self, parsed: &Parsed, bytes: usize, now_us: u64) -> Result<(), LocalDrop> {
        self.hears_header(&header_of(parsed), bytes, now_us)
    }

    /// The same of one that the parser does not know. The caller looks at whom the frame is for.
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

/// Where a packet lies that was parsed. Not from its bytes: the peer may still change them.
fn header_of(parsed: &Parsed) -> Header {
    let v4 = |ip: IpAddr| ip.as_v4().map_or(0, u32::from_be_bytes);
    let ip = |ip: &IpMeta, protocol, ports| Header {
        eth_src: ip.eth_src,
        eth_dst: ip.eth_dst,
        vlan: UNTAGGED,
        ethertype: 0x0800,
        ip: Some(IpHeader { src: v4(ip.src), dst: v4(ip.dst), protocol, ports }),
        arp: None,
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
        Parsed::Icmp(p) => ip(&p.ip, 1, None),
        Parsed::Arp(p) => Header {
            eth_src: p.sender_mac,
            eth_dst: p.target_mac,
            vlan: UNTAGGED,
            ethertype: 0x0806,
            ip: None,
            arp: Some(ArpHeader {
                sender_mac: p.sender_mac,
                sender: u32::from_be_bytes(p.sender_ip),
                target: u32::from_be_bytes(p.target_ip),
            }),
        },
    }
}
