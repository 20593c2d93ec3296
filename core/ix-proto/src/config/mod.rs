//! Everything that is fixed when a dataplane starts. The `ix` command makes it of flags and file,
//! the broker sends it, the dataplane keeps it. Names are those of IX's `ix.conf` where it has
//! them.
pub mod bounds;
mod start;
mod ways;

pub use bounds::{Bounds, OutOfRange};
pub use start::{DEVICES_MAX, Place, Start, StartError, WallPart, queues_max};
pub use ways::is_on_link;

use crate::codec::{codec_enum, codec_struct};
use crate::routes::{Route, RouteTable, Via};
use core::fmt;
use ix_wire::{IpAddr, MacAddr};

/// Everything that is fixed when a dataplane starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Our addresses with their prefix lengths; at least one.
    pub host_addrs: Vec<(IpAddr, u8)>,
    /// Default gateways. The first one serves connections that we open; packets of a device that
    /// has one on a network of its own leave by that.
    pub gateway_addrs: Vec<IpAddr>,
    /// Routes beside those to the networks of our addresses and by [`Self::gateway_addrs`]. Each
    /// names one of our addresses as its source, and leaves by the device of that.
    pub routes: RouteTable,
    /// Hardware threads, one for each elastic thread.
    pub cpus: Vec<u32>,
    /// Batch bound B.
    pub batch: usize,
    /// Key of our flow hash.
    pub flow_hash_key: [u64; 2],
    /// Secret of cookies, ports and challenges: another one each time.
    pub secret: [u8; 16],
    /// Secret of sequence numbers and timestamps: the same one while the host is up, so that those
    /// of a dataplane go on where an earlier one's stopped (RFC 6528 section 3, RFC 6191).
    pub isn_secret: [u8; 16],
    /// Static next hops of both families.
    pub arp: Vec<(IpAddr, MacAddr)>,
    /// Address conflict detection (RFC 5227, RFC 4862 section 5.4).
    pub address_check: AddressCheck,
    /// Where addresses of IPv6 come from beside [`Self::host_addrs`].
    pub addr6: Addr6,
    /// The secret of which the identifiers in these addresses are made (RFC 7217); none: they are
    /// made of the Ethernet address.
    pub addr6_secret: Option<[u8; 16]>,
    /// Temporary addresses beside these (RFC 8981).
    pub use_tempaddr: TempAddr,
    /// Time without work before an elastic thread sleeps, µs.
    pub idle_spin_us: u64,
    /// So long may an application keep an elastic thread before the guard serves the network in its
    /// place; 0: for ever.
    pub nonresponsive_us: u64,
    /// Receive frames of each elastic thread.
    pub rx_frames: usize,
    /// Frames for built packets of each elastic thread.
    pub tx_frames: usize,
    /// Transmit memory of the application, bytes.
    pub arena_bytes: usize,
    /// Flows of each elastic thread at most.
    pub flows_max: usize,
    /// Of these, flows that the application has closed and that have not ended yet.
    pub orphans_max: usize,
    /// Application timers of each elastic thread at most.
    pub timers_max: usize,
    /// Backlog of a listener that asks for the default.
    pub backlog: u32,
    /// Local ports of outgoing connections, the first and the last: below Linux' own range, which
    /// shares the address on some devices.
    pub local_ports: (u16, u16),
    /// The addresses are those of Linux, which has all ports but those that the broker has claimed
    /// for IX, and all neighbours.
    pub shares_address: bool,
    /// TCP's own.
    pub tcp: ix_tcp::Config,
    /// Packets that wait in a thread's receive queue from which on ECN-capable ones count as
    /// marked, and from which on some payload of others is dropped; 0: never.
    pub mark_queue: usize,
    /// See [`Self::mark_queue`].
    pub drop_queue: usize,
    /// Hop limit of packets, unless a flow has its own (RFC 1122 section 3.2.1.7).
    pub ttl: u8,
    /// What may be sent and received at the start.
    pub vnic_rules: ix_vnic::VnicRules,
}

codec_struct!(Config {
    host_addrs,
    gateway_addrs,
    routes,
    cpus,
    batch,
    flow_hash_key,
    secret,
    isn_secret,
    arp,
    address_check,
    addr6,
    addr6_secret,
    use_tempaddr,
    idle_spin_us,
    nonresponsive_us,
    rx_frames,
    tx_frames,
    arena_bytes,
    flows_max,
    orphans_max,
    timers_max,
    backlog,
    local_ports,
    shares_address,
    tcp,
    mark_queue,
    drop_queue,
    ttl,
    vnic_rules,
} if check);

/// How much of RFC 5227 is done when the dataplane starts. An IPv6 address is always probed for a
/// second (RFC 4862 section 5.4), unless nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressCheck {
    /// Nothing.
    Off,
    /// Announce at once, and defend the address.
    Announce,
    /// Probe first (several seconds), then announce and defend.
    Probe,
}

codec_enum!(AddressCheck { 0 = Off, 1 = Announce, 2 = Probe });

impl AddressCheck {
    /// Every choice, by name.
    pub const ALL: [(&str, AddressCheck); 3] = [
        ("off", AddressCheck::Off),
        ("announce", AddressCheck::Announce),
        ("probe", AddressCheck::Probe),
    ];
}

/// Where addresses of IPv6 come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr6 {
    /// From the configuration alone; routers are not heard.
    Off,
    /// Also from the prefixes that routers of the first device's link tell (RFC 4862); so do
    /// default routers.
    Auto,
}

codec_enum!(Addr6 { 0 = Off, 1 = Auto });

/// Temporary addresses (RFC 8981), with the numbers of Linux's `use_tempaddr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TempAddr {
    /// 0: none.
    Off,
    /// 1: there are some, for those who choose them.
    Made,
    /// 2: connections are opened from them.
    Preferred,
}

codec_enum!(TempAddr { 0 = Off, 1 = Made, 2 = Preferred });

impl TempAddr {
    /// Every choice: the place is its number.
    pub const ALL: [TempAddr; 3] = [TempAddr::Off, TempAddr::Made, TempAddr::Preferred];

    /// That of a number.
    pub fn numbered(number: u8) -> Option<TempAddr> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Of what the identifiers in addresses are made that routers give a prefix for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr6Identifier {
    /// Of a secret: another one for each network, and always the same one there (RFC 7217).
    Stable,
    /// Of the device's Ethernet address (RFC 4291).
    Eui64,
}

impl Addr6Identifier {
    /// Every choice, by name.
    pub const ALL: [(&str, Addr6Identifier); 2] =
        [("stable", Addr6Identifier::Stable), ("eui64", Addr6Identifier::Eui64)];
}

impl Addr6 {
    /// Every choice, by name.
    pub const ALL: [(&str, Addr6); 2] = [("off", Addr6::Off), ("auto", Addr6::Auto)];
}

/// An address and a prefix length that no host can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// The address is IPv6 and link-local: the same one is another host on each link.
    LinkLocal,
    /// The prefix length.
    Prefix(OutOfRange),
    /// The address is that of a group, of this host itself, or of none.
    NoHost,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::LinkLocal => f.write_str(
                "a link-local address is not supported yet; give a global or unique local one",
            ),
            HostError::Prefix(e) => write!(f, "the prefix length {e}"),
            HostError::NoHost => f.write_str("not an address of a host"),
        }
    }
}

impl std::error::Error for HostError {}

/// Refuses an address that a dataplane cannot have.
pub fn check_host(addr: IpAddr, prefix: u8) -> Result<(), HostError> {
    let prefixes = if addr.is_v6() { bounds::PREFIX_V6 } else { bounds::PREFIX };
    prefixes.check(prefix.into()).map_err(HostError::Prefix)?;
    if addr.is_link_local_v6() {
        return Err(HostError::LinkLocal);
    }
    if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || addr.is_broadcast() {
        return Err(HostError::NoHost);
    }
    Ok(())
}

/// Why a dataplane cannot have a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The number of this name is beyond its bounds. Of lists it is their length.
    Number(&'static str, OutOfRange),
    /// One of our addresses.
    Address(IpAddr, HostError),
    /// The first port is 0, or behind the last.
    LocalPorts,
    /// Transmit memory is no whole number of MB.
    Arena,
    /// The route to this network has no source of ours, or leads to no neighbour of its family.
    Route(IpAddr, u8),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Number(name, e) => write!(f, "`{name}`: {e}"),
            ConfigError::Address(addr, e) => write!(f, "`{addr}`: {e}"),
            ConfigError::LocalPorts => {
                f.write_str("`local_ports`: not a range of ports, such as 10000-32767")
            }
            ConfigError::Arena => f.write_str("`arena_mb`: not a number of MB"),
            ConfigError::Route(to, prefix) => write!(
                f,
                "`route` to {to}/{prefix}: its source is no address of the dataplane, or its \
                 gateway no neighbour"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Default for Config {
    fn default() -> Config {
        Config {
            host_addrs: Vec::new(),
            gateway_addrs: Vec::new(),
            routes: RouteTable::default(),
            cpus: vec![0],
            batch: 64,
            flow_hash_key: [0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b],
            secret: [0; 16],
            isn_secret: [0; 16],
            arp: Vec::new(),
            address_check: AddressCheck::Announce,
            addr6: Addr6::Off,
            addr6_secret: None,
            use_tempaddr: TempAddr::Off,
            idle_spin_us: 100,
            nonresponsive_us: 10_000,
            rx_frames: 16384,
            tx_frames: 8192,
            arena_bytes: 64 << 20,
            flows_max: 1 << 20,
            orphans_max: 1 << 18,
            timers_max: 1 << 16,
            backlog: 4096,
            local_ports: (10_000, 32_767),
            shares_address: false,
            tcp: ix_tcp::Config::default(),
            mark_queue: 256,
            drop_queue: 0,
            ttl: ix_wire::ipv4::DEFAULT_TTL,
            vnic_rules: ix_vnic::VnicRules::default(),
        }
    }
}

impl Config {
    /// The usual one, with this address and prefix length.
    pub fn with_address(addr: IpAddr, prefix: u8) -> Config {
        Config { host_addrs: vec![(addr, prefix)], ..Config::default() }
    }

    /// Refuses what a dataplane cannot have.
    pub fn check(&self) -> Result<(), ConfigError> {
        let tcp = &self.tcp;
        let numbers = [
            ("host_addr", bounds::ADDRESSES, self.host_addrs.len() as u64),
            ("cpu", bounds::THREADS, self.cpus.len() as u64),
            ("arp", bounds::ARP_ENTRIES, self.arp.len() as u64),
            ("route", bounds::ROUTES, self.routes.iter().count() as u64),
            ("batch", bounds::BATCH, self.batch as u64),
            ("idle_spin_us", bounds::IDLE_SPIN_US, self.idle_spin_us),
            ("nonresponsive_us", bounds::NONRESPONSIVE_US, self.nonresponsive_us),
            ("rx_frames", bounds::FRAMES, self.rx_frames as u64),
            ("tx_frames", bounds::FRAMES, self.tx_frames as u64),
            ("arena_mb", bounds::ARENA_MB, (self.arena_bytes >> 20) as u64),
            ("flows_max", bounds::FLOWS, self.flows_max as u64),
            ("orphans_max", bounds::ORPHANS, self.orphans_max as u64),
            ("timers_max", bounds::TIMERS, self.timers_max as u64),
            ("backlog", bounds::BACKLOG, self.backlog.into()),
            ("mark_queue", bounds::QUEUE, self.mark_queue as u64),
            ("drop_queue", bounds::QUEUE, self.drop_queue as u64),
            ("ttl", bounds::TTL, self.ttl.into()),
            ("min_rto_us", bounds::MIN_RTO_US, tcp.min_rto_us.into()),
            ("delack_us", bounds::DELACK_US, tcp.delack_us.into()),
            ("delack_max_us", bounds::DELACK_US, tcp.delack_max_us.into()),
            ("time_wait_us", bounds::TIME_WAIT_US, tcp.time_wait_us.into()),
            ("rcv_buffers", bounds::RCV_BUFFERS, tcp.rcv_buffers_max.into()),
        ];
        for (name, bounds, number) in numbers {
            bounds.check(number).map_err(|e| ConfigError::Number(name, e))?;
        }
        for (addr, prefix) in &self.host_addrs {
            check_host(*addr, *prefix).map_err(|e| ConfigError::Address(*addr, e))?;
        }
        if self.local_ports.0 == 0 || self.local_ports.0 > self.local_ports.1 {
            return Err(ConfigError::LocalPorts);
        }
        if !self.arena_bytes.is_multiple_of(1 << 20) {
            return Err(ConfigError::Arena);
        }
        let is_used = |route: &&Route| {
            let is_v6 = route.to.is_v6();
            let prefixes = if is_v6 { bounds::PREFIX_V6 } else { bounds::PREFIX };
            let has_hop = match route.via {
                Via::Link => true,
                Via::Gateway(hop) => hop.is_v6() == is_v6 && !self.is_local(hop),
                Via::Elsewhere | Via::Nowhere => false,
            };
            let is_ours = |own: IpAddr| own.is_v6() == is_v6 && self.is_local(own);
            prefixes.check(route.prefix.into()).is_ok()
                && has_hop
                && route.source.is_some_and(is_ours)
        };
        match self.routes.iter().find(|route| !is_used(route)) {
            Some(route) => Err(ConfigError::Route(route.to, route.prefix)),
            None => Ok(()),
        }
    }

    /// The device that connections from this address of ours leave by, of so many: addresses of a
    /// family and devices belong to each other in the order of the configuration, further addresses
    /// to the first device.
    pub fn device_of(&self, local: IpAddr, devices: usize) -> u8 {
        let mut family = self.host_addrs.iter().filter(|(own, _)| own.is_v6() == local.is_v6());
        let position = family.position(|(own, _)| *own == local);
        position.filter(|p| *p < devices).unwrap_or(0) as u8
    }

    /// How many closed flows may be ending: never more than half of all.
    pub fn orphans_max(&self) -> usize {
        self.orphans_max.min(self.flows_max / 2).max(1)
    }

    /// Whether an address is one of ours.
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.host_addrs.iter().any(|(own, _)| *own == addr)
    }

    /// Whether an address names more than one host: multicast, or a broadcast, also of a network of
    /// ours. Nobody connects to one (RFC 9293 section 3.9.1.1, MUST-46).
    pub fn is_group(&self, addr: IpAddr) -> bool {
        let broadcast =
            |(own, prefix): &(IpAddr, u8)| *own != addr && addr.is_broadcast_of(*own, *prefix);
        addr.is_multicast() || addr.is_broadcast() || self.host_addrs.iter().any(broadcast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::{harmless, survives};
    use crate::codec::{Codec, DecodeError};
    use crate::device::tests::any_info_with;
    use ix_tcp::{CongestionControl, EcnMode};
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn any_host() -> impl Strategy<Value = (IpAddr, u8)> {
        let octets = (1..=126u8, any::<[u8; 3]>());
        (octets, 0..=32u8).prop_map(|((a, [b, c, d]), prefix)| (IpAddr::v4([a, b, c, d]), prefix))
    }

    fn any_host_v6() -> impl Strategy<Value = (IpAddr, u8)> {
        let octets = (0x20..=0x3fu8, any::<[u8; 15]>());
        (octets, 0..=128u8).prop_map(|((first, rest), prefix)| {
            let mut address = [first; 16];
            address[1..].copy_from_slice(&rest);
            (IpAddr(address), prefix)
        })
    }

    fn any_lists() -> impl Strategy<Value = Config> {
        let arp = (any_host(), any::<MacAddr>()).prop_map(|((addr, _), mac)| (addr, mac));
        (
            prop::collection::vec(prop_oneof![any_host(), any_host_v6()], 1..4),
            prop::collection::vec(prop_oneof![any_host(), any_host_v6()], 0..3),
            prop::collection::vec(any::<u32>(), 1..6),
            any::<([u64; 2], [u8; 16], [u8; 16])>(),
            prop::collection::vec(arp, 0..4),
            prop::collection::vec((0..4usize, 0..=128u8, any::<bool>()), 0..4),
        )
            .prop_map(|(host_addrs, gateways, cpus, keys, arp, routes)| Config {
                routes: RouteTable::new(routes.into_iter().map(|(own, prefix, is_near)| {
                    let (own, _) = host_addrs[own % host_addrs.len()];
                    let mut hop = own;
                    hop.0[15] ^= 0x55;
                    let is_near = is_near || host_addrs.iter().any(|(own, _)| *own == hop);
                    let via = if is_near { Via::Link } else { Via::Gateway(hop) };
                    let prefix = prefix.min(if own.is_v6() { 128 } else { 32 });
                    let metric = u32::from(prefix) % 3;
                    Route { to: own, prefix, via, source: Some(own), mtu: 0, metric }
                })),
                host_addrs,
                gateway_addrs: gateways.into_iter().map(|(addr, _)| addr).collect(),
                cpus,
                flow_hash_key: keys.0,
                secret: keys.1,
                isn_secret: keys.2,
                arp,
                ..Config::default()
            })
    }

    fn any_number(bounds: Bounds) -> impl Strategy<Value = u64> {
        bounds.least..=bounds.most
    }

    fn any_tcp() -> impl Strategy<Value = ix_tcp::Config> {
        let choices = (0..CongestionControl::ALL.len(), 0..EcnMode::ALL.len(), any::<[bool; 5]>());
        let times = (
            any_number(bounds::MIN_RTO_US),
            any_number(bounds::DELACK_US),
            any_number(bounds::DELACK_US),
            any_number(bounds::TIME_WAIT_US),
            any_number(bounds::RCV_BUFFERS),
        );
        (choices, times, any::<[u32; 13]>(), any::<([u8; 7], [u16; 2])>()).prop_map(
            |((congestion, ecn, flags), times, words, (bytes, halves))| ix_tcp::Config {
                mss: halves[0],
                rcv_buf_bytes: words[0],
                rcv_buf_max_bytes: words[10],
                rcv_buffers_max: times.4 as u32,
                rcv_share: words[12],
                snd_buf_bytes: words[1],
                snd_buf_max_bytes: words[11],
                min_rto_us: times.0 as u32,
                max_rto_us: words[2],
                initial_rto_us: words[3],
                rto_jitter_percent: bytes[0],
                min_pto_us: words[4],
                delayed_ack_allowance_us: words[5],
                max_ack_delay_us: words[6],
                delack_us: times.1 as u32,
                delack_max_us: times.2 as u32,
                quick_acks: bytes[1],
                max_stretch_segments: bytes[2],
                time_wait_us: times.3 as u32,
                fin_wait2_us: words[7],
                keepalive_idle_s: halves[1],
                keepalive_interval_us: words[8],
                keepalive_probes: bytes[3],
                syn_retries: bytes[4],
                syn_ack_retries: bytes[5],
                r2_us: words[9],
                sack: flags[0],
                timestamps: flags[1],
                window_scaling: flags[2],
                window_shift_min: bytes[6],
                congestion: CongestionControl::ALL[congestion].1,
                ecn: EcnMode::ALL[ecn].1,
                path_search: flags[3],
                initial_window_segments: words[0],
                nagle: flags[4],
            },
        )
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let sizes = (
            any_number(bounds::FRAMES),
            any_number(bounds::FRAMES),
            any_number(bounds::ARENA_MB),
            any_number(bounds::FLOWS),
            any_number(bounds::TIMERS),
            any_number(bounds::BACKLOG),
        );
        let numbers = (
            any_number(bounds::BATCH),
            any_number(bounds::IDLE_SPIN_US),
            prop_oneof![Just(0), any_number(bounds::NONRESPONSIVE_US)],
            any_number(bounds::QUEUE),
            any_number(bounds::QUEUE),
            any_number(bounds::TTL),
        );
        let choices = (0..AddressCheck::ALL.len(), (1..=u16::MAX, any::<u16>()));
        (any_lists(), sizes, numbers, choices, any_tcp()).prop_map(
            |(config, sizes, numbers, (address_check, ports), tcp)| Config {
                batch: numbers.0 as usize,
                address_check: AddressCheck::ALL[address_check].1,
                addr6: Addr6::ALL[usize::from(ports.1 % 2)].1,
                use_tempaddr: TempAddr::ALL[usize::from(ports.0 % 3)],
                addr6_secret: (ports.0 % 2 == 0).then_some([ports.1 as u8; 16]),
                idle_spin_us: numbers.1,
                nonresponsive_us: numbers.2,
                rx_frames: sizes.0 as usize,
                tx_frames: sizes.1 as usize,
                arena_bytes: (sizes.2 as usize) << 20,
                flows_max: sizes.3 as usize,
                orphans_max: sizes.3 as usize,
                timers_max: sizes.4 as usize,
                backlog: sizes.5 as u32,
                local_ports: (ports.0.min(ports.1.max(1)), ports.0.max(ports.1)),
                shares_address: ports.0.is_multiple_of(2),
                tcp,
                mark_queue: numbers.3 as usize,
                drop_queue: numbers.4 as usize,
                ttl: numbers.5 as u8,
                vnic_rules: "rx tcp service 10.0.0.5:80; queue 1 rate tx 1Mbit"
                    .parse()
                    .expect("rules"),
                ..config
            },
        )
    }

    proptest! {
        #[test]
        fn what_a_dataplane_begins_with_survives(
            config in any_config(),
            devices in prop::collection::vec(any_info_with(1..=16, 16), 0..4),
            parts in prop::collection::vec(0..4usize, 0..4),
        ) {
            prop_assert_eq!(config.check(), Ok(()));
            let without: Vec<_> = parts.into_iter().map(|part| WallPart::ALL[part]).collect();
            for place in [Place::Within, Place::Apart] {
                for given_bytes in [0, u64::MAX] {
                    let (config, devices) = (config.clone(), devices.clone());
                    let without = without.clone();
                    survives(&Start { config, devices, without, place, given_bytes });
                }
            }
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            harmless::<Config>(&bytes);
            harmless::<Start>(&bytes);
        }

        /// A byte that changes on the way makes another configuration that can be, or none.
        #[test]
        fn no_changed_byte_harms(config in any_config(), at in any::<usize>(), to in any::<u8>()) {
            let mut bytes = config.encode();
            let at = at % bytes.len();
            bytes[at] = to;
            harmless::<Config>(&bytes);
            if let Ok(read) = Config::decode(&bytes) {
                prop_assert_eq!(read.check(), Ok(()));
            }
        }
    }

    fn usual() -> Config {
        Config::with_address(ip("10.1.2.3"), 24)
    }

    fn any_route() -> Route {
        let (to, via) = (ip("10.9.0.0"), Via::Gateway(ip("10.1.2.9")));
        Route { to, prefix: 16, via, source: Some(ip("10.1.2.3")), mtu: 0, metric: 0 }
    }

    fn route_by(change: fn(&mut Route)) -> RouteTable {
        let mut route = any_route();
        change(&mut route);
        RouteTable::new([route])
    }

    #[test]
    fn the_usual_configuration_can_be() {
        assert_eq!(usual().check(), Ok(()));
        assert_eq!(usual().ttl, 64);
    }

    #[test]
    fn what_cannot_be_is_neither_accepted_nor_read() {
        let with = |change: fn(&mut Config)| {
            let mut config = usual();
            change(&mut config);
            config
        };
        for (config, says) in [
            (Config::default(), "`host_addr`: 0 is out of range: 1 to 256"),
            (with(|c| c.host_addrs[0].0 = ip("224.0.0.1")), "not an address of a host"),
            (with(|c| c.host_addrs[0].0 = ip("255.255.255.255")), "not an address of a host"),
            (with(|c| c.host_addrs[0].0 = ip("::1")), "not an address of a host"),
            (with(|c| c.host_addrs[0].0 = ip("fe80::1")), "link-local"),
            (with(|c| c.host_addrs[0] = (ip("2001:db8::1"), 129)), "0 to 128"),
            (with(|c| c.host_addrs[0].1 = 33), "33 is out of range: 0 to 32"),
            (with(|c| c.host_addrs = vec![c.host_addrs[0]; 257]), "1 to 256"),
            (with(|c| c.cpus.clear()), "`cpu`"),
            (with(|c| c.cpus = vec![0; 254]), "`cpu`: 254 is out of range: 1 to 253"),
            (with(|c| c.arp = vec![(ip("10.1.2.9"), [2; 6]); 513]), "`arp`"),
            (with(|c| c.routes = route_by(|r| r.source = None)), "`route` to 10.9.0.0/16"),
            (with(|c| c.routes = route_by(|r| r.source = Some(ip("10.1.2.4")))), "`route` to"),
            (with(|c| c.routes = route_by(|r| r.via = Via::Nowhere)), "no neighbour"),
            (with(|c| c.routes = route_by(|r| r.prefix = 33)), "`route` to"),
            (with(|c| c.routes = RouteTable::new(vec![any_route(); 257])), "`route`: 257 is"),
            (with(|c| c.batch = 0), "`batch`: 0 is out of range: 1 to 1024"),
            (with(|c| c.ttl = 0), "`ttl`"),
            (with(|c| c.nonresponsive_us = 999), "0, or 1000 to"),
            (with(|c| c.arena_bytes = 1 << 20), "2 to 65536"),
            (with(|c| c.arena_bytes += 1), "MB"),
            (with(|c| c.local_ports = (0, 9)), "range of ports"),
            (with(|c| c.local_ports = (9, 8)), "range of ports"),
            (with(|c| c.tcp.rcv_buffers_max = 7), "`rcv_buffers`"),
        ] {
            let why = config.check().expect_err(says).to_string();
            assert!(why.contains(says), "{why}");
            assert_eq!(Config::decode(&config.encode()), Err(DecodeError::Value), "{why}");
        }
        let start = |count, cpus: usize, name: &str| {
            let info = crate::device::NicInfo {
                kind: crate::device::NicKind::Tap,
                name: name.to_owned(),
                mode: String::new(),
                queues: cpus,
                mac: [2; 6],
                mtu: 1500,
                steering: crate::device::Steering::Software,
                partial_checksums: false,
                shared_frames: false,
                vlan: None,
                table_fd: false,
            };
            let config = Config { cpus: vec![0; cpus], ..usual() };
            let devices = vec![info; count];
            Start { config, devices, without: Vec::new(), place: Place::Within, given_bytes: 0 }
        };
        survives(&start(0, 1, ""));
        // What one message carries: in devices, in descriptors, in bytes.
        for (most, beyond, why) in [
            (
                start(DEVICES_MAX, 1, "tap0"),
                start(DEVICES_MAX + 1, 1, "tap0"),
                "65 devices, at most 64",
            ),
            (start(2, 126, "tap0"), start(2, 127, "tap0"), "255 descriptors of queues and memory"),
            (start(64, 1, &"n".repeat(900)), start(64, 1, &"n".repeat(1100)), "at most 65536"),
        ] {
            assert!(most.check().is_ok() && Start::decode(&most.encode()).is_ok(), "{why}");
            assert!(beyond.check().is_err_and(|e| e.to_string().contains(why)), "{why}");
            assert_eq!(Start::decode(&beyond.encode()), Err(DecodeError::Value), "{why}");
        }
        assert_eq!(queues_max(2) / 2, 123, "with packet memory and two tables");
    }
}
