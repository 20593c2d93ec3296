//! The configuration file: each key is a field here, and its documentation is the reference's
//! (`docs/reference/configuration.md`, which `cargo test -p ix-docs` makes of it). The last
//! paragraph says what a value is and what stands for a key that is missing.
use super::of_own_address::{OfOwnAddress, Subject};
use super::routes::Wanted;
use super::values::{
    Address, Cpus, Destination, List, Mac, Metrics, Mode, Network, Ports, Text, Word, within,
};
use ix_broker::control::Access;
use ix_proto::Config;
use ix_proto::config::{Addr6, Addr6Identifier, AddressCheck, TempAddr};
use ix_sys::say;
use ix_tcp::{CongestionControl, EcnMode};
use ix_vnic::{Filter, Rate, Rates, VnicRules};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Devices, as for `--nic`: `afxdp:IFNAME`, `tap:NAME`, `memif:PATH`. With `host_addr` they are
    /// required.
    ///
    /// Value: list of device specifications. Default: the interface of Linux's default route.
    pub devices: Option<List<String>>,
    /// The dataplane's addresses, in the order of the devices; further ones belong to the first
    /// device.
    ///
    /// Value: list of `ADDRESS/PREFIX`. Default: those of Linux on the interface, shared by port.
    pub host_addr: Option<List<Text<Network>>>,
    /// Default gateways, for addresses of IX's own; each must be on one of the networks. The first
    /// one serves connections that the program opens. What comes in by a device is answered by the
    /// gateway on its own network.
    ///
    /// Value: list of addresses. Default: none.
    pub gateway_addr: Option<Spanned<List<Text<Address>>>>,
    /// Routes to networks beyond the link, by gateways of their own; see below.
    ///
    /// Value: list of `{ to, gateway, device, source, metric }`. Default: none.
    pub route: Option<List<Route>>,
    /// One elastic thread for each, such as `[2, 3]` or `"2,4-7"`.
    ///
    /// Value: list of hardware threads. Default: the first that may be used.
    pub cpu: Option<List<Cpus>>,
    /// Batch bound B: most packets of one cycle.
    ///
    /// Value: 1 to 1024. Default: 64.
    pub batch: Option<within!(BATCH)>,
    /// Static ARP entries.
    ///
    /// Value: list of `{ ip, mac }`. Default: none.
    pub arp: Option<List<Arp>>,
    /// How much of RFC 5227 runs at start for an address of IX's own: nothing; announce and defend;
    /// probe for some seconds first.
    ///
    /// Value: `off`, `announce`, `probe`. Default: `announce`.
    pub address_check: Option<Spanned<Text<Word<AddressCheck>>>>,
    /// Where addresses of IPv6 come from beside `host_addr`: from nowhere, or from routers (RFC
    /// 4862), as default routers do then. Not on a device that is also Linux's.
    ///
    /// Value: `off`, `auto`. Default: `off`.
    pub addr6: Option<Spanned<Text<Word<Addr6>>>>,
    /// Of what the lower half of an address is made whose prefix a router gives: of a secret, so
    /// that each network sees another one, and always the same one (RFC 7217); or of the device's
    /// Ethernet address. The secret is made of `/etc/machine-id` and the device's name.
    ///
    /// Value: `stable`, `eui64`. Default: `stable`, or `eui64` where there is no `/etc/machine-id`.
    pub addr6_identifier: Option<Spanned<Text<Word<Addr6Identifier>>>>,
    /// Temporary addresses beside these (RFC 8981): each for a day, of a random identifier, so that
    /// what the program opens does not tell on later days that it is the same host. As Linux's
    /// `use_tempaddr`: 0 for none, 1 for some that a program uses if it names them, 2 for some from
    /// which connections are opened.
    ///
    /// Value: 0 to 2. Default: 0.
    pub use_tempaddr: Option<Spanned<within!(USE_TEMPADDR)>>,
    /// Local ports of outgoing connections from an address of IX's own, below Linux's own range.
    ///
    /// Value: `FIRST-LAST`. Default: `10000-32767`.
    pub local_ports: Option<Spanned<Text<Ports>>>,
    /// Hop limit of packets, unless a flow has its own.
    ///
    /// Value: 1 to 255. Default: 64.
    pub ttl: Option<within!(TTL)>,
    /// Connections that wait in a listener which asks for the default backlog.
    ///
    /// Value: 1 to 1,048,576. Default: 4096.
    pub backlog: Option<within!(BACKLOG)>,
    /// Most flows of each elastic thread.
    ///
    /// Value: 1 to 16,777,216. Default: 1,048,576.
    pub flows_max: Option<within!(FLOWS)>,
    /// Most connections of each elastic thread that the program has closed and that have not ended
    /// yet; further ones are reset, as by `tcp_max_orphans` of Linux. Never more than half of
    /// `flows_max`.
    ///
    /// Value: 1 to 16,777,216. Default: 262,144.
    pub orphans_max: Option<within!(ORPHANS)>,
    /// Most application timers of each elastic thread.
    ///
    /// Value: 1 to 16,777,216. Default: 65,536.
    pub timers_max: Option<within!(TIMERS)>,
    /// Receive frames of each elastic thread, at most: those beyond 3072 exist once they are
    /// needed.
    ///
    /// Value: 256 to 4,194,304. Default: 16,384.
    pub rx_frames: Option<within!(FRAMES)>,
    /// Frames for built packets of each elastic thread, at most: those beyond 2048 exist once they
    /// are needed.
    ///
    /// Value: 256 to 4,194,304. Default: 8192.
    pub tx_frames: Option<within!(FRAMES)>,
    /// Transmit memory of the application. `ix-kv` sends long values from there without a copy when
    /// it has some MB more than `-m` says.
    ///
    /// Value: 2 to 65,536 MB. Default: 64.
    pub arena_mb: Option<within!(ARENA_MB)>,
    /// Time without work before an elastic thread sleeps.
    ///
    /// Value: 0 to 10,000,000 µs. Default: 100.
    pub idle_spin_us: Option<within!(IDLE_SPIN_US)>,
    /// How long an application may stay away before the guard serves the network in its place; 0:
    /// never.
    ///
    /// Value: 0, or 1000 to 3,600,000,000 µs. Default: 10,000.
    pub nonresponsive_us: Option<within!(NONRESPONSIVE_US)>,
    /// Queue length above which the dataplane signals congestion to ECN-capable senders; 0: never.
    ///
    /// Value: 0 to 65,536 packets. Default: 256.
    pub mark_queue: Option<within!(QUEUE)>,
    /// Queue length above which the dataplane drops payload of other senders early; 0: never.
    ///
    /// Value: 0 to 65,536 packets. Default: 0.
    pub drop_queue: Option<within!(QUEUE)>,
    /// Accepted for old files and not used: programs keep their own loader.
    pub loader_path: Option<IgnoredAny>,
    /// TCP's own.
    pub tcp: Tcp,
    /// What the dataplane may receive and send.
    pub vnic: Vnic,
    /// Who may ask it.
    pub control: Control,
}

/// `[[route]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ to = …, gateway = … }")]
pub struct Route {
    /// The network that it leads to; `0.0.0.0/0` and `::/0` are all others.
    ///
    /// Value: `ADDRESS/PREFIX`. Default: required.
    to: Spanned<Text<Destination>>,
    /// The router that has its packets, on a network of the dataplane. Without one the hosts are on
    /// the link of `device`.
    ///
    /// Value: address. Default: none.
    gateway: Option<Text<Address>>,
    /// The device that packets leave by, by the name of its interface or the path of its memif.
    ///
    /// Value: name. Default: that of the gateway's network.
    device: Option<String>,
    /// The address of the dataplane that connections and datagrams come from, one of the device's.
    ///
    /// Value: address. Default: the first on the gateway's network.
    source: Option<Text<Address>>,
    /// Of routes to the same network the one with the least metric counts.
    ///
    /// Value: 0 to 4,294,967,295. Default: 0.
    metric: Option<within!(METRIC)>,
    /// Number of its line, from 1.
    #[serde(skip)]
    line: usize,
}

/// A static ARP entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ ip = …, mac = … }")]
pub struct Arp {
    /// The neighbour's IP address.
    ip: Text<Address>,
    /// Its Ethernet address.
    mac: Text<Mac>,
}

/// `[tcp]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "the part [tcp]")]
pub struct Tcp {
    /// Congestion control of new connections.
    ///
    /// Value: `cubic`, `reno`, `dctcp`, `bbr`. Default: `cubic`.
    pub congestion: Option<Text<Word<CongestionControl>>>,
    /// Explicit congestion notification; the last two are RFC 9768.
    ///
    /// Value: `off`, `accept`, `ask`, `accept-accurate`, `ask-accurate`. Default: `accept`.
    pub ecn: Option<Text<Word<EcnMode>>>,
    /// Lower bound of what the retransmission timeout is longer than the round-trip time.
    ///
    /// Value: 100 to 60,000,000 µs. Default: 5000.
    pub min_rto_us: Option<within!(MIN_RTO_US)>,
    /// Delay of an acknowledgement that no data carries.
    ///
    /// Value: 0 to 500,000 µs. Default: 1000.
    pub delack_us: Option<within!(DELACK_US)>,
    /// Longest such delay, where our own data followed soon after a shorter one.
    ///
    /// Value: 0 to 500,000 µs. Default: 8000.
    pub delack_max_us: Option<within!(DELACK_US)>,
    /// TIME-WAIT.
    ///
    /// Value: 0 to 240,000,000 µs. Default: 60,000,000.
    pub time_wait_us: Option<within!(TIME_WAIT_US)>,
    /// Most buffers that a flow may hold, received and not returned, before its window grows.
    ///
    /// Value: 8 to 512. Default: 384.
    pub rcv_buffers: Option<within!(RCV_BUFFERS)>,
}

/// `[vnic]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "the part [vnic]")]
pub struct Vnic {
    /// What may be received and sent, as `ix ctl filter create` takes it. An operator writes the
    /// file, so a filter may name an address that Linux has as well.
    ///
    /// Value: list of filters. Default: none, everything passes.
    pub filters: Option<Spanned<List<Text<Filter>>>>,
    /// Limit of what is received: `100Mbit`, `20kpps`, `1Gbit,50kpps,burst=64k`.
    ///
    /// Value: rate. Default: none.
    pub rx_rate: Option<Text<Rate>>,
    /// Limit of what is sent; packets wait for their turn.
    ///
    /// Value: rate. Default: none.
    pub tx_rate: Option<Text<Rate>>,
    /// Limit of each TCP and UDP flow by itself.
    ///
    /// Value: rate. Default: none.
    pub flow_rate: Option<Text<Rate>>,
    /// What single queues have.
    pub queue: Queues,
}

/// `[vnic.queue.N]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a part, for example [vnic.queue.0]")]
pub struct Queue {
    /// Filters that the queue holds alone.
    ///
    /// Value: list of filters. Default: none.
    pub filters: Option<Spanned<List<Text<Filter>>>>,
    /// Limit of what the queue receives.
    ///
    /// Value: rate. Default: none.
    pub rx_rate: Option<Text<Rate>>,
    /// Limit of what the queue sends.
    ///
    /// Value: rate. Default: none.
    pub tx_rate: Option<Text<Rate>>,
    /// Limit of each TCP and UDP flow of the queue by itself.
    ///
    /// Value: rate. Default: none.
    pub flow_rate: Option<Text<Rate>>,
}

/// `[control]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "the part [control]")]
pub struct Control {
    /// Mode of the operators' socket.
    ///
    /// Value: octal mode. Default: `0600`.
    pub mode: Option<Text<Mode>>,
    /// Its group.
    ///
    /// Value: name or number. Default: the user's.
    pub group: Option<String>,
    /// Mode of the read-only socket.
    ///
    /// Value: octal mode. Default: `0660`.
    pub read_only_mode: Option<Text<Mode>>,
    /// Its group.
    ///
    /// Value: name or number. Default: the user's.
    pub read_only_group: Option<String>,
    /// Where metrics are served; a port alone is of the loopback address.
    ///
    /// Value: `ADDRESS:PORT` or port. Default: none.
    pub metrics: Option<Text<Metrics>>,
}

/// What single queues have, by their numbers.
#[derive(Debug, Default)]
pub struct Queues(BTreeMap<usize, Queue>);

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Queues, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Queues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a part for each queue, for example [vnic.queue.0]")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Queues, A::Error> {
                let mut queues = BTreeMap::new();
                while let Some(QueueNumber(number)) = parts.next_key()? {
                    queues.insert(number, parts.next_value()?);
                }
                Ok(Queues(queues))
            }
        }
        from.deserialize_any(Reader)
    }
}

/// The number of a queue. Whether there is such a queue is asked when the elastic threads are
/// counted.
struct QueueNumber(usize);

impl<'de> Deserialize<'de> for QueueNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<QueueNumber, D::Error> {
        let text = String::deserialize(from)?;
        let none = || {
            format!(
                "`{text}` is no queue's number; what one queue has stands below, for example, \
                 [vnic.queue.0]"
            )
        };
        // Only one text for a number: of two parts of a queue one would be lost.
        let number = text.parse().ok().filter(|number: &usize| number.to_string() == text);
        number.map(QueueNumber).ok_or_else(|| D::Error::custom(none()))
    }
}

/// What cannot be used of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What stands there.
    pub words: String,
    /// What is wrong with it.
    pub why: String,
}

/// Most characters of a line that a message repeats.
const WORDS_MAX: usize = 80;

/// The number of the line of a place in a text, from 1.
fn line_of(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// The words of a line.
fn words_of(text: &str, line: usize) -> String {
    let whole = text.lines().nth(line - 1).unwrap_or_default().trim();
    let mut words: String = whole.chars().take(WORDS_MAX).collect();
    if words.len() < whole.len() {
        words.push('…');
    }
    words
}

impl File {
    /// Reads a file's text.
    pub fn read(text: &str) -> Result<File, FileError> {
        let file = toml::from_str(text).map(|mut file: File| {
            let routes = file.route.iter_mut().flat_map(|List(routes)| routes);
            routes.for_each(|route| route.line = line_of(text, route.to.span().start));
            file
        });
        file.map_err(|e| {
            let line = line_of(text, e.span().map_or(0, |span| span.start));
            FileError { line, words: words_of(text, line), why: plain(e.message()) }
        })
    }

    /// The settings that an address of IX's own has, as they stand in the file's text. `file`: its
    /// name.
    pub fn of_own_address(&self, text: &str, file: &str) -> Vec<OfOwnAddress> {
        fn start<T>(value: &Option<Spanned<T>>) -> Option<usize> {
            value.as_ref().map(|value| value.span().start)
        }
        let of_queues = self.vnic.queue.0.values().map(|queue| &queue.filters);
        let filters = std::iter::once(&self.vnic.filters).chain(of_queues).find_map(start);
        let found = [
            (Subject::Gateway, start(&self.gateway_addr)),
            (Subject::Check, start(&self.address_check)),
            (
                Subject::Addr6,
                start(&self.addr6).or(start(&self.addr6_identifier)).or(start(&self.use_tempaddr)),
            ),
            (Subject::Ports, start(&self.local_ports)),
            (Subject::Filters, filters),
        ];
        let settings = found.into_iter().filter_map(|(subject, at)| {
            let line = line_of(text, at?);
            let typed = format!("`{}` ({file}, line {line})", words_of(text, line));
            Some(OfOwnAddress { subject, typed })
        });
        settings.collect()
    }

    /// The routes that it names. Whether they can be used is asked when addresses and devices are
    /// known.
    pub fn routes(&mut self) -> Vec<Wanted> {
        let all = self.route.take().into_iter().flat_map(|List(routes)| routes);
        let address = |text: Option<Text<Address>>| text.map(|Text(Address(address))| address);
        let wanted = |Route { to, gateway, device, source, metric, line }: Route| {
            let Text(Destination(to, prefix)) = to.into_inner();
            let (gateway, source) = (address(gateway), address(source));
            Wanted {
                line,
                to,
                prefix,
                gateway,
                device,
                source,
                metric: metric.map_or(0, |n| n.get()),
            }
        };
        all.map(wanted).collect()
    }

    /// Puts what else the file says over what is there.
    pub fn apply(self, devices: &mut Vec<String>, access: &mut Access, config: &mut Config) {
        if self.loader_path.is_some() {
            say!("loader_path is not used: programs keep their own loader");
        }
        put(self.devices, |List(texts)| *devices = texts);
        put(self.host_addr, |List(networks)| {
            let network = |Text(Network(addr, prefix))| (addr, prefix);
            config.host_addrs = networks.into_iter().map(network).collect();
        });
        put(self.gateway_addr, |gateways| {
            let (List(gateways), gateway) = (gateways.into_inner(), |Text(Address(addr))| addr);
            config.gateway_addrs = gateways.into_iter().map(gateway).collect();
        });
        put(self.cpu, |List(lists)| {
            config.cpus = lists.into_iter().flat_map(|Cpus(cpus)| cpus).collect();
        });
        put(self.arp, |List(entries)| {
            let entry = |Arp { ip: Text(ip), mac: Text(mac) }| (ip.0, mac.0);
            config.arp = entries.into_iter().map(entry).collect();
        });
        put(self.address_check, |word| {
            let Text(Word(check)) = word.into_inner();
            config.address_check = check;
        });
        put(self.addr6, |word| {
            let Text(Word(addr6)) = word.into_inner();
            config.addr6 = addr6;
        });
        put(self.use_tempaddr, |n| {
            config.use_tempaddr = TempAddr::numbered(n.into_inner().get()).unwrap_or(TempAddr::Off);
        });
        put(self.local_ports, |ports| {
            let Text(Ports(first, last)) = ports.into_inner();
            config.local_ports = (first, last);
        });
        put(self.batch, |n| config.batch = n.get());
        put(self.ttl, |n| config.ttl = n.get());
        put(self.backlog, |n| config.backlog = n.get());
        put(self.flows_max, |n| config.flows_max = n.get());
        put(self.orphans_max, |n| config.orphans_max = n.get());
        put(self.timers_max, |n| config.timers_max = n.get());
        put(self.rx_frames, |n| config.rx_frames = n.get());
        put(self.tx_frames, |n| config.tx_frames = n.get());
        put(self.arena_mb, |n| config.arena_bytes = n.get::<usize>() << 20);
        put(self.idle_spin_us, |n| config.idle_spin_us = n.get());
        put(self.nonresponsive_us, |n| config.nonresponsive_us = n.get());
        put(self.mark_queue, |n| config.mark_queue = n.get());
        put(self.drop_queue, |n| config.drop_queue = n.get());
        self.tcp.apply(&mut config.tcp);
        self.vnic.apply(&mut config.vnic_rules);
        self.control.apply(access);
    }
}

/// Does something with a value that is there.
fn put<T>(value: Option<T>, set: impl FnOnce(T)) {
    if let Some(value) = value {
        set(value);
    }
}

impl Tcp {
    fn apply(self, tcp: &mut ix_tcp::Config) {
        put(self.congestion, |Text(Word(kind))| tcp.congestion = kind);
        put(self.ecn, |Text(Word(mode))| tcp.ecn = mode);
        put(self.min_rto_us, |n| tcp.min_rto_us = n.get());
        put(self.delack_us, |n| tcp.delack_us = n.get());
        put(self.delack_max_us, |n| tcp.delack_max_us = n.get());
        put(self.time_wait_us, |n| tcp.time_wait_us = n.get());
        put(self.rcv_buffers, |n| tcp.rcv_buffers_max = n.get());
    }
}

impl Vnic {
    fn apply(self, rules: &mut VnicRules) {
        rules.filters.extend(filters(self.filters));
        let rate = |text: Option<Text<Rate>>| text.map(|Text(rate)| rate);
        rules.rx_rate = rate(self.rx_rate);
        rules.tx_rate = rate(self.tx_rate);
        rules.flow_rate = rate(self.flow_rate);
        for (number, queue) in self.queue.0 {
            rules.assigned.extend(filters(queue.filters).map(|filter| (number, filter)));
            let (rx, tx) = (rate(queue.rx_rate), rate(queue.tx_rate));
            let rates = Rates { rx, tx, flow: rate(queue.flow_rate) };
            if !rates.is_empty() {
                rules.queue_rates.insert(number, rates);
            }
        }
    }
}

fn filters(list: Option<Spanned<List<Text<Filter>>>>) -> impl Iterator<Item = Filter> {
    let texts = list.map(Spanned::into_inner).into_iter().flat_map(|List(texts)| texts);
    texts.map(|Text(filter)| filter)
}

impl Control {
    fn apply(self, access: &mut Access) {
        put(self.mode, |Text(Mode(mode))| access.mode = mode);
        put(self.group, |group| access.group = Some(group));
        put(self.read_only_mode, |Text(Mode(mode))| access.read_only_mode = mode);
        put(self.read_only_group, |group| access.read_only_group = Some(group));
        put(self.metrics, |Text(Metrics(address))| access.metrics = Some(address));
    }
}

/// The words of the TOML library as ours.
fn plain(message: &str) -> String {
    match message.strip_prefix("unknown field ").and_then(|rest| rest.split_once(", expected ")) {
        Some((key, known)) => {
            let known = known.strip_prefix("one of ").unwrap_or(known);
            format!("no such key: {key}; there are {known}")
        }
        None => message.to_owned(),
    }
}
