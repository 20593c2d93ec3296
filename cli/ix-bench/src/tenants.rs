//! Several processes of one server: on Linux each with a port, on IX each with a vNIC of a shared
//! interface, as in the Arrakis paper; and a load for each.
use crate::args::{BenchArgs, Device};
use crate::lab::{Host, Lab, Server, Spot};
use crate::plan::or;
use crate::rates::shared::Shared;
use crate::serve::Serve;
use ix_report::problem::{Problem, Result};
use std::net::Ipv4Addr;

/// More than the link ever carries, so that the interface imposes no limit.
const SPEED: &str = "100Gbit";
/// Port of the first process.
const PORT: u16 = 7;
/// Address of the first vNIC; the others follow.
const FIRST: [u8; 4] = [10, 66, 0, 20];

/// Numbers of processes to measure; empty: one, alone on the link.
pub fn numbers(lab: &Lab, args: &BenchArgs) -> Result<Vec<usize>> {
    if lab.device() == Device::Afxdp {
        let usual: &[usize] = if args.quick { &[1] } else { &[1, 2] };
        return Ok(or(&args.processes, usual));
    }
    if args.processes.is_empty() {
        return Ok(Vec::new());
    }
    let why = "sharing an interface needs XDP programs";
    Err(Problem::new("cannot give each process a vNIC", why).mend("use --device afxdp"))
}

/// A note for the reader of such figures.
pub fn note(lab: &Lab, processes: &[usize]) -> Option<String> {
    let most = *processes.iter().max()?;
    let (servers, clients) = (lab.server_cpus.len(), lab.client_cpus.len());
    let shared = match most > servers {
        true => format!(
            "; this machine has {servers} hardware thread(s) for servers and {clients} for the load, so \
             more processes share them, and the figure shows no gain beyond that"
        ),
        false => String::new(),
    };
    Some(format!(
        "processes: each with a port on Linux, with a vNIC of `ix share` on IX, and with a load of its \
         own{shared}"
    ))
}

/// Running servers, and the shared interface below them.
pub struct Tenants<'a> {
    /// In the order of their ports and addresses.
    pub servers: Vec<Server>,
    shared: Option<Shared<'a>>,
}

impl<'a> Tenants<'a> {
    /// Starts `count` processes; `serve` is called for each with its port. 0: one, alone on the
    /// link.
    pub fn start(
        lab: &'a Lab,
        host: Host,
        count: usize,
        serve: impl Fn(u16) -> Serve,
    ) -> Result<Tenants<'a>> {
        if count == 0 {
            return Ok(Tenants { servers: vec![lab.start(host, &serve(PORT))?], shared: None });
        }
        let shared = (host.is_ix()).then(|| Shared::start(lab, SPEED)).transpose()?;
        let cpus = lab.cpus_for(count);
        let mut servers = Vec::new();
        for (number, cpu) in cpus.into_iter().enumerate() {
            let [a, b, c, d] = FIRST;
            let ip = Ipv4Addr::new(a, b, c, d + number as u8);
            let vnic = |shared: &Shared<'_>| {
                shared.vnic(&format!("p{number}"), ip, None).map(|(device, _)| device)
            };
            let device = shared.as_ref().map(vnic).transpose()?;
            let port = if device.is_some() { PORT } else { PORT + number as u16 };
            let spot = Spot { cpu, port, vnic: device.map(|device| (device, ip)) };
            servers.push(lab.start_at(host, &serve(port), Some(&spot))?);
        }
        Ok(Tenants { servers, shared })
    }

    /// Stops all; returns how many calls of unmodified programs on IX were forwarded to Linux.
    pub fn stop(self) -> Option<u64> {
        let said: Vec<_> = self.servers.into_iter().filter_map(Server::stop).collect();
        self.shared.into_iter().for_each(Shared::stop);
        (!said.is_empty()).then(|| said.iter().sum())
    }
}

/// Combines the figures of several loads: rates and errors add up; of latencies, the median over
/// the loads and the worst 99th percentile are reported.
pub fn merge(loads: &[Vec<(&'static str, f64)>]) -> Vec<(&'static str, f64)> {
    let Some(first) = loads.first() else { return Vec::new() };
    let all = |key: &str| -> Vec<f64> {
        let values = loads.iter().flatten().filter(|(name, _)| *name == key);
        values.map(|(_, value)| *value).collect()
    };
    let merged = first.iter().map(|&(key, _)| {
        let values = all(key);
        let value = match key {
            "msgs_per_s" | "errors" => values.iter().sum(),
            "p99_us" => values.iter().copied().fold(0.0, f64::max),
            _ => ix_report::report::median(&values).unwrap_or(0.0),
        };
        (key, value)
    });
    merged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_and_the_worst_tail_is_told() {
        let load = |rate, p50, p99| vec![("msgs_per_s", rate), ("p50_us", p50), ("p99_us", p99)];
        let merged = merge(&[load(10.0, 4.0, 90.0), load(20.0, 6.0, 50.0)]);
        assert_eq!(merged, [("msgs_per_s", 30.0), ("p50_us", 5.0), ("p99_us", 90.0)]);
        assert_eq!(merge(&[]), []);
    }
}
