//! Configuration of a dataplane, and its text form: `key=value` lines, as the `ix` command sends it
//! to the image. Keys keep the names of IX's `ix.conf` where they exist.
use core::fmt;
use ix_vnic::{Filter, FilterError, Gate, Rate, RateError, Rates};
use ix_wire::{IpAddr, MacAddr};
use std::borrow::Cow;

/// Everything that is fixed when a dataplane starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our addresses with their prefix lengths; at least one.
    pub host_addrs: Vec<(IpAddr, u8)>,
    /// Default gateway.
    pub gateway_addr: Option<IpAddr>,
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
    /// Static ARP entries.
    pub arp: Vec<(IpAddr, MacAddr)>,
    /// Address conflict detection (RFC 5227).
    pub address_check: AddressCheck,
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
    /// Application timers of each elastic thread at most.
    pub timers_max: usize,
    /// Backlog of a listener that asks for the default.
    pub backlog: u32,
    /// Local ports of outgoing connections, the first and the last: below Linux' own range, which
    /// shares the address on some devices.
    pub local_ports: (u16, u16),
    /// Descriptors of the dataplane's own get numbers from here on. Not in the text form.
    pub fd_base: i32,
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
    pub gate: ix_vnic::Gate,
}

/// How much of RFC 5227 is done when the dataplane starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressCheck {
    /// Nothing.
    Off,
    /// Announce at once, and defend the address.
    Announce,
    /// Probe first (several seconds), then announce and defend.
    Probe,
}

/// A line of the text that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line.
    pub line: String,
    /// What is wrong with it.
    pub why: Cow<'static, str>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration `{}`: {}", self.line, self.why)
    }
}

impl std::error::Error for ConfigError {}

impl Default for Config {
    fn default() -> Config {
        Config {
            host_addrs: Vec::new(),
            gateway_addr: None,
            cpus: vec![0],
            batch: 64,
            flow_hash_key: [0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b],
            secret: [0; 16],
            isn_secret: [0; 16],
            arp: Vec::new(),
            address_check: AddressCheck::Announce,
            idle_spin_us: 100,
            nonresponsive_us: 10_000,
            rx_frames: 16384,
            tx_frames: 8192,
            arena_bytes: 64 << 20,
            flows_max: 1 << 20,
            timers_max: 1 << 16,
            backlog: 4096,
            local_ports: (10_000, 32_767),
            fd_base: 0,
            tcp: ix_tcp::Config::default(),
            mark_queue: 256,
            drop_queue: 0,
            ttl: ix_wire::ipv4::DEFAULT_TTL,
            gate: ix_vnic::Gate::default(),
        }
    }
}

impl Config {
    /// Reads `key=value` lines; unknown keys are errors, empty lines and `#` comments are skipped.
    /// Keys that describe devices (`nic`) are left to the caller and skipped here.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') || line.starts_with("nic=") {
                continue;
            }
            let error = |why| ConfigError { line: line.to_string(), why };
            let Some((key, value)) = line.split_once('=') else {
                return Err(error("not key=value".into()));
            };
            match key.strip_prefix("vnic_") {
                Some(key) => set_vnic(&mut config.gate, key, value).map_err(error)?,
                None => config.set(key, value).map_err(|why| error(why.into()))?,
            }
        }
        if config.host_addrs.is_empty() {
            let why = "no address was given".into();
            return Err(ConfigError { line: "host_addr".into(), why });
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "host_addr" => self.host_addrs.push(parse_cidr(value)?),
            "gateway_addr" => {
                self.gateway_addr = Some(value.parse().map_err(|_| "not an address")?);
            }
            "cpu" => {
                let cpus: Result<Vec<u32>, _> = value.split(',').map(str::parse).collect();
                self.cpus = cpus.map_err(|_| "not a list of hardware threads")?;
            }
            "batch" => self.batch = number(value, 1, 1024)? as usize,
            "flow_hash_key" => {
                let key = hex16(value)?;
                let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| key[at + i]));
                self.flow_hash_key = [half(0), half(8)];
            }
            "secret" => self.secret = hex16(value)?,
            "isn_secret" => self.isn_secret = hex16(value)?,
            "arp" => self.arp.push(parse_arp(value)?),
            "address_check" => {
                self.address_check = match value {
                    "off" => AddressCheck::Off,
                    "announce" => AddressCheck::Announce,
                    "probe" => AddressCheck::Probe,
                    _ => return Err("not one of off, announce, probe"),
                }
            }
            "nonresponsive_us" => self.nonresponsive_us = nonresponsive(value)?,
            "idle_spin_us" => self.idle_spin_us = number(value, 0, 10_000_000)?,
            "rx_frames" => self.rx_frames = number(value, 256, 1 << 22)? as usize,
            "tx_frames" => self.tx_frames = number(value, 256, 1 << 22)? as usize,
            "arena_mb" => self.arena_bytes = (number(value, 2, 1 << 16)? as usize) << 20,
            "flows_max" => self.flows_max = number(value, 1, 1 << 24)? as usize,
            "timers_max" => self.timers_max = number(value, 1, 1 << 24)? as usize,
            "mark_queue" => self.mark_queue = number(value, 0, 1 << 16)? as usize,
            "drop_queue" => self.drop_queue = number(value, 0, 1 << 16)? as usize,
            "ttl" => self.ttl = number(value, 1, 255)? as u8,
            "local_ports" => self.local_ports = port_range(value)?,
            "backlog" => self.backlog = number(value, 1, 1 << 20)? as u32,
            _ => return set_tcp(&mut self.tcp, key, value),
        }
        Ok(())
    }

    /// How much packet memory the elastic threads need together.
    pub fn memory_sizes(&self) -> ix_mem::Sizes {
        ix_mem::Sizes {
            rx_frames: self.rx_frames * self.cpus.len(),
            tx_frames: self.tx_frames * self.cpus.len(),
            arena_bytes: self.arena_bytes,
        }
    }

    /// The device that connections from this address of ours leave by, of so many: addresses and
    /// devices belong to each other in the order of the configuration, further addresses to the
    /// first device.
    pub fn device_of(&self, local: IpAddr, devices: usize) -> u8 {
        let position = self.host_addrs.iter().position(|(own, _)| *own == local);
        position.filter(|p| *p < devices).unwrap_or(0) as u8
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

    /// Our address and the next hop for packets to `remote`; `None` without a route.
    pub fn route(&self, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        let direct = self.host_addrs.iter().find(|(own, prefix)| own.same_network(remote, *prefix));
        if let Some((own, _)) = direct {
            return Some((*own, remote));
        }
        let gateway = self.gateway_addr?;
        let via = self.host_addrs.iter().find(|(own, prefix)| own.same_network(gateway, *prefix));
        via.map(|(own, _)| (*own, gateway))
    }
}

const NO_KEY: &str = "no such key";
const NO_ECN: &str = "not one of off, accept, ask, accept-accurate, ask-accurate";

/// Filters and rates: of the whole vNIC (`filters`, `tx_rate`), or of one queue of it
/// (`queue_1_filters`); or all at once as the gate's own text.
fn set_vnic(gate: &mut Gate, key: &str, value: &str) -> Result<(), Cow<'static, str>> {
    let (queue, key) = match key.strip_prefix("queue_").map(|rest| rest.split_once('_')) {
        None => (None, key),
        Some(None) => return Err(NO_KEY.into()),
        // Whether there is such a queue is asked when the elastic threads are counted.
        Some(Some((queue, key))) => match queue.parse::<usize>() {
            Ok(queue) => (Some(queue), key),
            Err(_) => return Err(format!("`{queue}` is no queue's number").into()),
        },
    };
    match (key.strip_suffix("_rate"), key, queue) {
        (Some(what), ..) => {
            let mut all = Rates { rx: gate.rx_rate, tx: gate.tx_rate, flow: gate.flow_rate };
            let rates = match queue {
                Some(queue) => gate.queue_rates.entry(queue).or_default(),
                None => &mut all,
            };
            let rate: Rate = value.parse().map_err(|e: RateError| e.to_string())?;
            *rates.place(what).ok_or(NO_KEY)? = Some(rate);
            (gate.rx_rate, gate.tx_rate, gate.flow_rate) = (all.rx, all.tx, all.flow);
        }
        (None, "filters", _) => {
            let filter: Filter = value.parse().map_err(|e: FilterError| e.to_string())?;
            match queue {
                Some(queue) => gate.assigned.push((queue, filter)),
                None => gate.filters.push(filter),
            }
            gate.check()?;
        }
        (None, "gate", None) => *gate = value.parse()?,
        _ => return Err(NO_KEY.into()),
    }
    Ok(())
}

fn set_tcp(tcp: &mut ix_tcp::Config, key: &str, value: &str) -> Result<(), &'static str> {
    match key {
        "tcp_min_rto_us" => tcp.min_rto_us = number(value, 100, 60_000_000)? as u32,
        "tcp_delack_max_us" => tcp.delack_max_us = number(value, 0, 500_000)? as u32,
        "tcp_delack_us" => tcp.delack_us = number(value, 0, 500_000)? as u32,
        "tcp_time_wait_us" => tcp.time_wait_us = number(value, 0, 240_000_000)? as u32,
        "tcp_rcv_buffers" => tcp.rcv_buffers_max = number(value, 8, 512)? as u32,
        "tcp_congestion" => {
            let kind = ix_tcp::CongestionControl::named(value);
            tcp.congestion = kind.ok_or("not one of cubic, reno, dctcp")?;
        }
        "tcp_ecn" => {
            tcp.ecn = ix_tcp::EcnMode::named(value).ok_or(NO_ECN)?;
        }
        _ => return Err(NO_KEY),
    }
    Ok(())
}

fn port_range(text: &str) -> Result<(u16, u16), &'static str> {
    const WRONG: &str = "not a range of ports, such as 10000-32767";
    let (low, high) = text.split_once('-').ok_or(WRONG)?;
    match (low.parse().map_err(|_| WRONG)?, high.parse().map_err(|_| WRONG)?) {
        (low, high) if 0 < low && low <= high => Ok((low, high)),
        _ => Err(WRONG),
    }
}

fn number(text: &str, low: u64, high: u64) -> Result<u64, &'static str> {
    match text.parse() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a number"),
    }
}

/// An idle elastic thread comes back every millisecond; who does not has something to do.
fn nonresponsive(text: &str) -> Result<u64, &'static str> {
    if text == "0" { Ok(0) } else { number(text, 1_000, 3_600_000_000) }
}

fn hex16(text: &str) -> Result<[u8; 16], &'static str> {
    let n = u128::from_str_radix(text, 16).map_err(|_| "not 32 hexadecimal digits")?;
    Ok(n.to_be_bytes())
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), &'static str> {
    let (addr, prefix) = text.split_once('/').ok_or("not ADDRESS/PREFIX")?;
    let addr: IpAddr = addr.parse().map_err(|_| "not an address")?;
    if addr.as_v4().is_none() {
        return Err("IPv6 is not built yet");
    }
    let prefix = number(prefix, 0, 32)? as u8;
    if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || addr.is_broadcast() {
        return Err("not an address of a host");
    }
    Ok((addr, prefix))
}

fn parse_arp(text: &str) -> Result<(IpAddr, MacAddr), &'static str> {
    let (ip, mac) = text.split_once(' ').ok_or("not `ADDRESS MAC`")?;
    let ip = ip.parse().map_err(|_| "not an address")?;
    let mut bytes = [0; 6];
    let mut parts = mac.trim().split(':');
    for byte in &mut bytes {
        let part = parts.next().ok_or("not a MAC address")?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| "not a MAC address")?;
    }
    if parts.next().is_some() { Err("not a MAC address") } else { Ok((ip, bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_command_writes() {
        let config = Config::parse(
            "host_addr=10.1.0.2/24\ngateway_addr=10.1.0.1\ncpu=1,3\nbatch=16\n\
             arp=10.1.0.9 02:00:00:00:00:09\n# comment\n\nnic=tap whatever\ntcp_min_rto_us=1000\n",
        )
        .unwrap();
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        assert_eq!(config.cpus, [1, 3]);
        assert_eq!(config.batch, 16);
        assert_eq!(config.arp, [(ip("10.1.0.9"), [2, 0, 0, 0, 0, 9])]);
        assert_eq!(config.route(ip("10.1.0.7")), Some((ip("10.1.0.2"), ip("10.1.0.7"))));
        assert_eq!(config.route(ip("8.8.8.8")), Some((ip("10.1.0.2"), ip("10.1.0.1"))));
        assert!(config.is_local(ip("10.1.0.2")) && !config.is_local(ip("10.1.0.1")));
    }

    #[test]
    fn a_hop_limit_is_taken() {
        let ttl = |text: &str| Config::parse(text).map(|config| config.ttl);
        assert_eq!(ttl("host_addr=10.0.0.1/24"), Ok(64));
        assert_eq!(ttl("host_addr=10.0.0.1/24\nttl=17"), Ok(17));
    }

    #[test]
    fn routes_by_mask_then_gateway() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let mut config = Config::parse("host_addr=10.1.2.3/24\nhost_addr=10.9.0.3/16").unwrap();
        let by = |own: &str, hop: &str| Some((ip(own), ip(hop)));
        assert_eq!(config.route(ip("10.1.2.200")), by("10.1.2.3", "10.1.2.200"));
        assert_eq!(config.route(ip("10.9.200.1")), by("10.9.0.3", "10.9.200.1"));
        assert_eq!(config.route(ip("10.1.3.1")), None);
        config.set("gateway_addr", "10.9.0.1").unwrap();
        assert_eq!(config.route(ip("10.1.3.1")), by("10.9.0.3", "10.9.0.1"));
    }

    #[test]
    fn queues_have_filters_and_rates_of_their_own() {
        let gate = Config::parse(
            "host_addr=10.0.0.1/24\nvnic_filters=tx udp service 10.0.0.1:53\nvnic_tx_rate=1Gbit\n\
             vnic_queue_1_filters=tx tcp service 10.0.0.1:7\nvnic_queue_1_tx_rate=20Mbit\n\
             vnic_queue_1_flow_rate=1Mbit\nvnic_queue_0_rx_rate=9kpps",
        )
        .unwrap()
        .gate;
        let same: Gate = "tx udp service 10.0.0.1:53; rate tx 1Gbit; queue 1 rate tx 20Mbit; \
                          queue 0 rate rx 9kpps; queue 1 rate flow 1Mbit; \
                          queue 1 tx tcp service 10.0.0.1:7"
            .parse()
            .unwrap();
        assert_eq!(gate, same);
        let many = |key: &str| {
            let filter = |n: usize| format!("vnic_{key}=rx udp service 10.0.0.1:{n}\n");
            (1..=33).map(filter).collect::<String>()
        };
        for (text, word) in [
            ("vnic_queue_1_tx_rate=0bit", "zero"),
            ("vnic_tx_rate=fast", "no rate"),
            ("vnic_fast_rate=1Mbit", "no such key"),
            ("vnic_queue_x_tx_rate=1Mbit", "`x` is no queue's number"),
            ("vnic_queue_-1_tx_rate=1Mbit", "`-1` is no queue's number"),
            ("vnic_queue_1=1Mbit", "no such key"),
            ("vnic_queue_1_speed=1Mbit", "no such key"),
            ("vnic_queue_1_gate=rate tx 1Mbit", "no such key"),
            ("vnic_filters=rx tcp service 10.0.0.1:9-1", "nothing in it"),
            ("vnic_queue_1_filters=rate tx 1Mbit", "rx or tx"),
            (&many("filters"), "33 rx filters are too many"),
            (&many("queue_2_filters"), "33 rx filters are too many"),
        ] {
            let refused = Config::parse(&format!("host_addr=10.0.0.1/24\n{text}"));
            let why = refused.expect_err(text).to_string();
            assert!(why.contains(word), "{text}: {why}");
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for text in [
            "",
            "host_addr=10.0.0.1",
            "host_addr=224.0.0.1/4",
            "host_addr=::1/64",
            "host_addr=10.0.0.1/33",
            "host_addr=10.0.0.1/24\nbatch=0",
            "host_addr=10.0.0.1/24\nfoo=1",
            "host_addr=10.0.0.1/24\nttl=0",
            "host_addr=10.0.0.1/24\nttl=256",
            "host_addr=255.255.255.255/24",
            "host_addr=10.0.0.1/24\ncpu=a",
            "host_addr=10.0.0.1/24\narp=10.0.0.2 1:2:3",
        ] {
            assert!(Config::parse(text).is_err(), "{text}");
        }
    }
}
