//! What a run does: the checked command line with the distributions of its workload.
use crate::args::{BackEndsAt, LoadArgs, PopularityName, ProtocolName, WorkloadName};
use crate::engine::{ClassSetup, Open, Setup};
use crate::protocol::Popularity;
use crate::records::Records;
use anyhow::{Context, Result, anyhow, bail};
use ix_httpd::site::Site;
use ix_random::mix;
use ix_workload::arrivals::Arrival;
use ix_workload::law::{FB_KEY, Law, Zipf};
use ix_workload::pattern::Rate;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Most requests that may be overdue on one thread: 16 MB.
const OVERDUE_MOST: usize = 1 << 20;
/// How long the generator waits for replies after the end.
const DRAIN_NS: u64 = 1_000_000_000;
/// Connections and depth of a thread that stores the records.
const PRELOAD: ClassSetup = ClassSetup { connections: 8, depth: 16 };
/// Most bytes of all pages of the back ends.
const PAGES_MOST_BYTES: u64 = 1 << 30;
/// Most requests under way on one connection.
const DEPTH_MOST: u32 = 1 << 14;

/// A checked run.
#[derive(Clone)]
pub struct Plan {
    /// The arguments.
    pub args: LoadArgs,
    /// Servers; each connection has one.
    pub targets: Vec<SocketAddr>,
    /// Rate of the load; `None`: closed loop.
    pub rate: Option<Rate>,
    /// Distribution of its gaps.
    pub arrival: Arrival,
    /// Connections of the load.
    pub connections: u32,
    /// Connections of the measuring client.
    pub measure_connections: u32,
    /// Records, for memcached.
    pub records: Option<Arc<Records>>,
    /// Pages to serve beside the load.
    pub pages: Option<Arc<Site>>,
    /// Share of requests that store.
    pub update: f64,
    /// Load before the measured time, s.
    pub warmup_s: f64,
    /// Number of this machine's part, and number of parts.
    pub part: (u32, u32),
}

impl Plan {
    /// Checks a command line.
    pub fn new(args: LoadArgs) -> Result<Plan> {
        check(&args)?;
        let targets = targets(&args.target, args.ipv6)?;
        let rate = args.pattern.clone().or(args.rate.map(Rate::Constant));
        let (mut keys, mut values) = (Law::Fixed(30.0), Law::Fixed(200.0));
        let (mut update, mut arrival) = (0.0, Arrival::Poisson);
        match args.workload {
            Some(WorkloadName::Etc) => {
                (keys, values, update, arrival) = (FB_KEY, Law::FbValue, 0.033, Arrival::Fb);
            }
            Some(WorkloadName::Usr) => {
                (keys, values, update) = (Law::Fixed(19.0), Law::Fixed(2.0), 0.002);
            }
            None => {}
        }
        let keys = args.key_size.clone().unwrap_or(keys);
        let values = args.value_size.clone().unwrap_or(values);
        let memcached =
            matches!(args.protocol, ProtocolName::Memcached | ProtocolName::MemcachedBinary);
        let records = memcached.then(|| Arc::new(Records::new(args.records, &keys, values)));
        let measure = if args.agents.is_empty() { 0 } else { 32 };
        Ok(Plan {
            targets,
            rate,
            arrival: args.arrival.unwrap_or(arrival),
            connections: if args.agents.is_empty() { args.connections } else { 0 },
            measure_connections: args.measure_connections.unwrap_or(measure),
            records,
            pages: args.back_ends.as_ref().map(pages).transpose()?,
            update: args.update.unwrap_or(update),
            warmup_s: args.warmup.unwrap_or((args.seconds / 10.0).min(1.0)),
            part: (0, 1),
            args,
        })
    }

    /// The part of one of several agents, without the measuring client.
    pub fn part(mut self, index: u32, of: u32) -> Plan {
        self.part = (index, of);
        self.connections = share(self.args.connections, of, index);
        self.measure_connections = 0;
        self
    }

    /// Whether records are stored first.
    pub fn preloads(&self) -> bool {
        // Each agent stores its own part.
        self.records.is_some() && !self.args.no_preload && self.args.agents.is_empty()
    }

    /// Number of threads that have a connection, at most `most`.
    pub fn threads(&self, most: u32) -> u32 {
        most.min(self.connections.max(self.measure_connections)).max(1)
    }

    /// Records that thread `index` of `threads` stores.
    pub fn preload_range(&self, index: u32, threads: u32) -> std::ops::Range<u32> {
        let (part, parts) = self.part;
        let at = |nth: u32| {
            let (nth, of) = (u64::from(part * threads + nth), u64::from(parts * threads));
            (u64::from(self.args.records) * nth / of) as u32
        };
        at(index)..at(index + 1)
    }

    /// How requests are spread over records.
    pub fn popularity(&self) -> Popularity {
        match self.args.popularity {
            PopularityName::Uniform => Popularity::Uniform,
            PopularityName::Zipf(s) => Popularity::Zipf(Zipf::new(self.args.records.into(), s)),
        }
    }

    /// A seed of thread `index`.
    pub fn seed(&self, index: u32) -> u64 {
        mix(self.args.seed.wrapping_add(u64::from(self.part.0) << 32 | u64::from(index)))
    }

    /// The engine of thread `index` of `threads`.
    pub fn setup(&self, index: u32, threads: u32) -> Setup {
        let class = |connections, depth| ClassSetup {
            connections: share(connections, threads, index),
            depth,
        };
        let classes = [
            class(self.connections, self.args.depth),
            class(self.measure_connections, self.args.measure_depth),
        ];
        // A thread's share of the rate is its share of the connections; each thread has some.
        let share_of =
            |class: usize, all: u32| f64::from(classes[class].connections) / f64::from(all.max(1));
        let parts = f64::from(self.part.1);
        let load = self.rate.clone().map(|rate| Open {
            arrival: self.arrival,
            rate,
            share: share_of(0, self.connections) / parts,
        });
        let measure = Open {
            arrival: Arrival::Poisson,
            rate: Rate::Constant(self.args.measure_rate),
            share: share_of(1, self.measure_connections),
        };
        Setup {
            classes,
            open: [load, Some(measure)],
            messages_per_connection: self.args.messages_per_connection.unwrap_or(u64::MAX),
            timeout_ns: self.timeout_ns(self.args.udp),
            drain_ns: DRAIN_NS,
            overdue_most: OVERDUE_MOST,
            seed: self.seed(index),
            noise_seed: self.args.seed,
            udp: self.args.udp,
        }
    }

    /// The engine that stores the records, always over TCP.
    pub fn preload_setup(&self, index: u32) -> Setup {
        Setup {
            classes: [PRELOAD, ClassSetup::default()],
            open: [None, None],
            messages_per_connection: u64::MAX,
            timeout_ns: self.timeout_ns(false),
            drain_ns: 0,
            overdue_most: 0,
            seed: self.seed(index),
            noise_seed: 0,
            udp: false,
        }
    }

    fn timeout_ns(&self, udp: bool) -> u64 {
        let seconds = self.args.timeout.unwrap_or(if udp { 1.0 } else { 5.0 });
        (seconds * 1e9) as u64
    }
}

/// Part `index` of `total`, divided among `of`.
pub fn share(total: u32, of: u32, index: u32) -> u32 {
    total / of + u32::from(index < total % of)
}

fn check(args: &LoadArgs) -> Result<()> {
    let positive = |value: f64| value > 0.0 && value.is_finite();
    let echo = args.protocol == ProtocolName::Echo;
    if args.connections == 0 || args.depth == 0 || args.threads == Some(0) {
        bail!("--connections, --depth and --threads must be at least 1");
    }
    if args.depth > DEPTH_MOST || args.measure_depth > DEPTH_MOST || args.measure_depth == 0 {
        bail!("--depth and --measure-depth must be 1 to {DEPTH_MOST}");
    }
    if !positive(args.seconds) || !args.rate.is_none_or(positive) || !positive(args.measure_rate) {
        bail!("--seconds and rates must be above 0");
    }
    if !args.timeout.is_none_or(positive) || args.warmup.is_some_and(|w| !(0.0..1e6).contains(&w)) {
        bail!("--timeout must be above 0, --warmup at least 0");
    }
    if echo && (args.size == 0 || (args.udp && !(4..=65_507).contains(&args.size))) {
        bail!(
            "--size must be at least 1; with --udp 4 to 65507, because a message carries its number"
        );
    }
    if args.records == 0 || args.update.is_some_and(|f| !(0.0..=1.0).contains(&f)) {
        bail!("--records must be at least 1, --update 0 to 1");
    }
    if args.udp && args.protocol == ProtocolName::Http {
        bail!("HTTP does not run over UDP; remove --udp or --protocol http");
    }
    if args.udp && args.messages_per_connection.is_some() {
        bail!("--udp has no connections to reopen; remove --messages-per-connection");
    }
    if args.back_ends.is_some() && !args.agents.is_empty() {
        bail!("--back-ends are served on this machine only; remove --agents");
    }
    if args.messages_per_connection == Some(0) {
        bail!("--messages-per-connection must be at least 1");
    }
    Ok(())
}

/// Reads the pages that the back ends serve.
fn pages(at: &BackEndsAt) -> Result<Arc<Site>> {
    let mut site = Site::new(PAGES_MOST_BYTES);
    site.add_folder(&at.folder).context("cannot serve the pages")?;
    Ok(Arc::new(site))
}

/// Parses `HOST:PORT[,HOST:PORT|,PORT|…]`; a port may be a range, `FIRST-LAST`. `ipv6`: other
/// addresses of hosts do not count.
fn targets(text: &str, ipv6: bool) -> Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    let mut host = None;
    for part in text.split(',') {
        let ports = match part.rsplit_once(':') {
            Some((name, ports)) => {
                host = Some(name);
                ports
            }
            None => part,
        };
        let wrong =
            || anyhow!("`{part}` in `{text}` is not a target; write HOST:PORT, such as 10.0.0.1:7");
        let host = host.ok_or_else(wrong)?;
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let first: u16 = first.parse().map_err(|_| wrong())?;
        let last: u16 = last.parse().map_err(|_| wrong())?;
        for port in first..=last {
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let mut found = (name, port)
                .to_socket_addrs()
                .map_err(|e| anyhow!("cannot find the host `{host}`: {e}; check the name"))?;
            let first = found.find(|address| !ipv6 || address.is_ipv6());
            all.push(first.ok_or_else(|| anyhow!("`{host}` has no IPv6 address; leave out -6"))?);
        }
    }
    if all.is_empty() {
        bail!("`{text}` has no port; write HOST:PORT, such as 10.0.0.1:7")
    } else {
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn plan(line: &str) -> Result<Plan> {
        Plan::new(LoadArgs::try_parse_from(line.split_whitespace())?)
    }

    #[test]
    fn targets_of_all_forms() {
        let text = |t: &str, v6: bool| -> Result<Vec<String>> {
            Ok(targets(t, v6)?.iter().map(ToString::to_string).collect())
        };
        assert_eq!(text("127.0.0.1:7", false).unwrap(), ["127.0.0.1:7"]);
        assert_eq!(text("[::1]:7,8", true).unwrap(), ["[::1]:7", "[::1]:8"]);
        let wrong = text("127.0.0.1:7", true).unwrap_err().to_string();
        assert_eq!(wrong, "`127.0.0.1` has no IPv6 address; leave out -6");
        assert_eq!(
            text("10.0.0.1:7,9,10.0.0.2:5-6", false).unwrap(),
            ["10.0.0.1:7", "10.0.0.1:9", "10.0.0.2:5", "10.0.0.2:6"]
        );
        for wrong in ["", "7", "host", "127.0.0.1:x", "127.0.0.1:9-7", "127.0.0.1:99999"] {
            assert!(text(wrong, false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn workloads_are_the_papers_and_flags_override_them() {
        let usr = plan("load 127.0.0.1:1 --protocol memcached --workload usr").unwrap();
        let records = usr.records.unwrap();
        assert_eq!((records.key_len(5), records.value_len(5, 0)), (19, 2));
        assert_eq!((usr.update, usr.arrival), (0.002, Arrival::Poisson));
        let etc = "load 127.0.0.1:1 --protocol memcached-binary --workload etc";
        let etc_plan = plan(etc).unwrap();
        assert_eq!((etc_plan.update, etc_plan.arrival), (0.033, Arrival::Fb));
        let other = plan(&format!("{etc} --update 0 --arrival uniform")).unwrap();
        assert_eq!((other.update, other.arrival), (0.0, Arrival::Uniform));
    }

    #[test]
    fn parts_add_up() {
        let plan = plan("load 127.0.0.1:1 --protocol memcached -c 10 --rate 900 --records 1000");
        let plan = plan.unwrap();
        let parts: Vec<Plan> = (0..3).map(|i| plan.clone().part(i, 3)).collect();
        assert_eq!(parts.iter().map(|p| p.connections).sum::<u32>(), 10);
        let mut covered = Vec::new();
        let mut rate = 0.0;
        for part in &parts {
            for thread in 0..2 {
                covered.extend(part.preload_range(thread, 2));
                rate += part.setup(thread, 2).open[0].as_ref().unwrap().share * 900.0;
            }
        }
        assert_eq!(covered, (0..1000).collect::<Vec<_>>());
        assert!((rate - 900.0).abs() < 1e-9);
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in [
            "-c 0",
            "--depth 0",
            "--seconds 0",
            "--rate 0",
            "--rate -1",
            "--size 0",
            "--udp --size 3",
            "--udp --protocol http",
            "--update 2",
            "--popularity zipf:-1",
            "--stop-latency 99",
            "--rate 5 --pattern triangle:0:1:1:0",
            "--messages-per-connection 0",
            "--udp --messages-per-connection 5",
            "--key-size gev:1",
        ] {
            assert!(plan(&format!("load 127.0.0.1:1 {wrong}")).is_err(), "{wrong}");
        }
    }
}
