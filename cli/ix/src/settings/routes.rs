//! Routes of the configuration: which of the dataplane's addresses each has as its source, and so
//! which device it leaves by.
use ix_netdev::DeviceSpec;
use ix_proto::Config;
use ix_proto::config::is_on_link;
use ix_proto::routes::{Route, RouteTable, Via};
use ix_report::problem::{Problem, Result};
use ix_wire::IpAddr;

/// A route as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of its line, from 1.
    pub line: usize,
    /// The network that it leads to.
    pub to: IpAddr,
    /// The length of its prefix.
    pub prefix: u8,
    /// The router that has its packets; none: the hosts are on the link.
    pub gateway: Option<IpAddr>,
    /// The device that they leave by.
    pub device: Option<String>,
    /// The address that they come from.
    pub source: Option<IpAddr>,
    /// Of routes to the same network the least counts.
    pub metric: u32,
}

/// Why a route cannot be used, and what to do.
type Refusal = (String, String);

/// The routes, each with its source. `file`: where they are named.
pub fn resolve(
    wanted: &[Wanted],
    (devices, config): (&[String], &Config),
    file: &str,
) -> Result<RouteTable> {
    let mut routes: Vec<Route> = Vec::new();
    for one in wanted {
        let route = one.resolve(devices, config).and_then(|route| {
            let same = |other: &&Route| {
                (other.to, other.prefix, other.metric) == (route.to, route.prefix, route.metric)
            };
            match routes.iter().find(same) {
                None => Ok(route),
                Some(_) => Err((
                    format!("another route there has the metric {} too", route.metric),
                    "give one of the two a larger `metric`".to_owned(),
                )),
            }
        });
        routes.push(route.map_err(|(why, mend)| one.refused(file, why).mend(mend))?);
    }
    Ok(RouteTable::new(routes))
}

/// Refuses all routes where an address is shared with Linux, whose own hold there.
pub fn refuse_shared(wanted: &[Wanted], interface: &str, file: &str) -> Result<()> {
    let Some(first) = wanted.first() else { return Ok(()) };
    let why = format!(
        "IX shares the address of Linux on {interface}, where the routes of Linux hold for both"
    );
    let way = match (first.gateway, &first.device) {
        (Some(gateway), _) => format!("via {gateway}"),
        (None, _) => format!("dev {interface}"),
    };
    let mend = format!(
        "give it to Linux (ip route add {}/{} {way}), or give IX an address of its own with --addr",
        first.to, first.prefix
    );
    Err(first.refused(file, why).mend(mend))
}

impl Wanted {
    fn refused(&self, file: &str, why: String) -> Problem {
        let Wanted { to, prefix, line, .. } = self;
        Problem::new(format!("cannot use the route to {to}/{prefix} ({file}, line {line})"), why)
    }

    /// Chooses its source.
    fn resolve(&self, devices: &[String], config: &Config) -> std::result::Result<Route, Refusal> {
        let is_v6 = self.to.is_v6();
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        let of_family = || config.host_addrs.iter().filter(|(own, _)| own.is_v6() == is_v6);
        let list = |all: Vec<String>| all.join(", ");
        let own = || list(of_family().map(|(own, prefix)| format!("{own}/{prefix}")).collect());
        if of_family().next().is_none() {
            let mend = "give it one with --addr or `host_addr`".to_owned();
            return Err((format!("the dataplane has no address of {family}"), mend));
        }
        if of_family().any(|(own, bits)| *bits == self.prefix && own.same_network(self.to, *bits)) {
            let why =
                "it is the network of an address of the dataplane, whose hosts are on the link";
            return Err((why.to_owned(), "leave it out".to_owned()));
        }
        let device = self.device_number(devices)?;
        if self.gateway.is_none() && device.is_none() {
            let why = "it names neither `gateway` nor `device`".to_owned();
            return Err((why, "name the router that has its packets".to_owned()));
        }
        if let Some(gateway) = self.gateway.filter(|gateway| gateway.is_v6() != is_v6) {
            let mend = format!("name a gateway of {family}");
            return Err((format!("its gateway {gateway} is of the other family"), mend));
        }
        if let Some(gateway) = self.gateway.filter(|gateway| config.is_local(*gateway)) {
            let why = format!("its gateway {gateway} is an address of the dataplane itself");
            return Err((why, "name the router that has its packets".to_owned()));
        }
        let of = |own: IpAddr| config.device_of(own, devices.len());
        let by_device = |own: IpAddr| device.is_none_or(|device| of(own) == device);
        if let Some(source) = self.source {
            let ours = of_family().any(|(own, _)| *own == source);
            if !(ours && by_device(source)) {
                let place = if ours { " on that device" } else { "" };
                let why = format!("its source {source} is no address of the dataplane{place}");
                return Err((why, format!("the dataplane has {}", own())));
            }
        }
        let is_near = |(own, bits): &&(IpAddr, u8)| {
            by_device(*own)
                && self.source.is_none_or(|source| of(source) == of(*own))
                && self.gateway.is_none_or(|gateway| is_on_link(*own, *bits, gateway))
        };
        let mut near = of_family().filter(is_near).map(|(own, _)| *own);
        let Some(first) = near.next() else {
            return Err(match self.gateway {
                Some(gateway) => (
                    format!("its gateway {gateway} is on none of the dataplane's networks there"),
                    format!("name one on the network of {}", own()),
                ),
                None => (
                    format!("the device has no address of {family}"),
                    "give it one with --addr or `host_addr`".to_owned(),
                ),
            });
        };
        let is_of_link = self.gateway.is_some_and(IpAddr::is_link_local_v6);
        if is_of_link && self.source.is_none() && near.any(|own| of(own) != of(first)) {
            let why = "a link-local gateway may be on the link of any device".to_owned();
            return Err((why, "name the `device`".to_owned()));
        }
        let via = self.gateway.map_or(Via::Link, Via::Gateway);
        let (to, prefix, metric) = (self.to, self.prefix, self.metric);
        let source = Some(self.source.unwrap_or(first));
        Ok(Route { to, prefix, via, source, mtu: 0, metric })
    }

    /// The number of its device, if it names one.
    fn device_number(&self, devices: &[String]) -> std::result::Result<Option<u8>, Refusal> {
        let Some(wanted) = &self.device else { return Ok(None) };
        let names: Vec<String> = devices.iter().map(|device| name_of(device)).collect();
        match names.iter().position(|name| name == wanted) {
            Some(number) => Ok(Some(number as u8)),
            None => {
                let mend = format!("the devices are {}", names.join(", "));
                Err((format!("there is no device `{wanted}`"), mend))
            }
        }
    }
}

/// The interface of a device, or the path of its memif. What cannot be read stays as it is: it is
/// refused when the device is opened.
fn name_of(device: &str) -> String {
    match device.parse() {
        Ok(DeviceSpec::Tap { name, .. }) => name,
        Ok(DeviceSpec::Afxdp { ifname, .. }) => ifname,
        Ok(DeviceSpec::Memif(spec)) => spec.path,
        Err(_) => device.to_owned(),
    }
}
