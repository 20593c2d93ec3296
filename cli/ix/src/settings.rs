//! What `ix run` shall do: configuration file and flags, merged and checked.
//!
//! The result is the text that the dataplane reads: `key=value` lines with the keys of
//! `ix_dataplane::Config`.
use crate::args::RunArgs;
use ix_broker::control::Access;
use ix_broker::vnic::Vnic;
use ix_dataplane::Config;
use ix_netdev::DeviceSpec;
use ix_report::problem::{Problem, Result};
use ix_sys::cpu;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;

/// A checked configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Device specifications.
    pub devices: Vec<String>,
    /// Who may open the control socket, and where metrics are.
    pub access: Access,
    /// The dataplane's keys, in the order of first mention; a key may stand several times.
    entries: Vec<(String, String)>,
}

impl Settings {
    /// Reads the file that the flags name, and puts the flags over it.
    pub fn from_args(args: &RunArgs) -> Result<Settings> {
        let mut settings = match &args.config {
            Some(path) => Settings::from_file(path)?,
            None => Settings::default(),
        };
        if !args.nic.is_empty() {
            settings.devices = args.nic.clone();
        }
        if args.metrics.is_some() {
            settings.access.metrics.clone_from(&args.metrics);
        }
        let flags = [
            ("host_addr", args.addr.clone()),
            ("gateway_addr", args.gateway.clone()),
            ("cpu", args.cpus.clone()),
            ("batch", args.batch.map(|b| b.to_string())),
            ("tcp_congestion", args.congestion.clone()),
            ("tcp_ecn", args.ecn.clone()),
        ];
        for (key, value) in flags {
            if let Some(value) = value {
                settings.replace(key, value);
            }
        }
        settings.check()?;
        Ok(settings)
    }

    fn from_file(path: &Path) -> Result<Settings> {
        let what = || format!("cannot use the configuration {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|e| Problem::new(what(), e).mend("give an existing file with -c"))?;
        let table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| Problem::new(what(), e))?;
        Settings::from_table(table)
            .map_err(|why| Problem::new(what(), why).mend("see `ix run --help` for an example"))
    }

    fn from_table(table: toml::Table) -> std::result::Result<Settings, String> {
        let mut settings = Settings::default();
        for (key, value) in table {
            match (key.as_str(), value) {
                ("devices", value) => {
                    for device in each(value) {
                        settings.devices.push(scalar("devices", &device)?);
                    }
                }
                ("loader_path", _) => {
                    eprintln!("ix: loader_path is not used: programs keep their own loader");
                }
                ("cpu", value) => {
                    let cpus: std::result::Result<Vec<_>, _> =
                        each(value).iter().map(|cpu| scalar("cpu", cpu)).collect();
                    settings.replace("cpu", cpus?.join(","));
                }
                ("control", value) => {
                    let access = value.try_into();
                    settings.access = access.map_err(|e| format!("control: {}", e.message()))?;
                }
                ("arp", value) => {
                    for entry in each(value) {
                        let part = |name| entry.get(name).and_then(|v| v.as_str());
                        let (Some(ip), Some(mac)) = (part("ip"), part("mac")) else {
                            return Err("arp: not a list of { ip = …, mac = … }".to_owned());
                        };
                        settings.entries.push(("arp".to_owned(), format!("{ip} {mac}")));
                    }
                }
                ("vnic", toml::Value::Table(mut keys)) => {
                    let queues = keys.remove("queue");
                    // All of it at once is how the broker says it, and would undo what stands before.
                    if keys.contains_key("gate") {
                        return Err("vnic_gate: no such key".to_owned());
                    }
                    settings.add_section("vnic", keys)?;
                    settings.add_queues(queues)?;
                }
                (section, toml::Value::Table(keys)) => settings.add_section(section, keys)?,
                (_, value) => {
                    for value in each(value) {
                        let value = scalar(&key, &value)?;
                        settings.entries.push((key.clone(), value));
                    }
                }
            }
        }
        Ok(settings)
    }

    /// The keys of a part of the file.
    fn add_section(&mut self, section: &str, keys: toml::Table) -> std::result::Result<(), String> {
        for (name, value) in keys {
            for value in each(value) {
                let value = scalar(&name, &value)?;
                self.entries.push((format!("{section}_{name}"), value));
            }
        }
        Ok(())
    }

    /// `[vnic.queue.N]`: what single queues of the vNIC have.
    fn add_queues(&mut self, queues: Option<toml::Value>) -> std::result::Result<(), String> {
        let none =
            || "vnic: `queue` is not a part for each queue, such as [vnic.queue.0]".to_owned();
        let Some(queues) = queues else { return Ok(()) };
        let toml::Value::Table(queues) = queues else { return Err(none()) };
        for (queue, keys) in queues {
            let toml::Value::Table(keys) = keys else { return Err(none()) };
            self.add_section(&format!("vnic_queue_{queue}"), keys)?;
        }
        Ok(())
    }

    /// Nothing but hardware threads and devices.
    #[cfg(test)]
    pub(crate) fn for_test(cpus: &str, devices: &[&str]) -> Settings {
        Settings {
            devices: devices.iter().map(|d| (*d).to_owned()).collect(),
            access: Access::default(),
            entries: vec![("cpu".to_owned(), cpus.to_owned())],
        }
    }

    fn replace(&mut self, key: &str, value: String) {
        self.entries.retain(|(old, _)| old != key);
        self.entries.push((key.to_owned(), value));
    }

    fn first(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The dataplane's addresses.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        let values = self.entries.iter().filter(|(key, _)| key == "host_addr");
        values.filter_map(|(_, value)| value.split('/').next()?.parse().ok()).collect()
    }

    /// The dataplane's addresses with their prefix lengths.
    pub fn networks(&self) -> Vec<String> {
        let values = self.entries.iter().filter(|(key, _)| key == "host_addr");
        values.map(|(_, value)| value.clone()).collect()
    }

    /// The default gateway.
    pub fn gateway(&self) -> Option<String> {
        self.first("gateway_addr").map(str::to_owned)
    }

    /// The Linux interface that the device of each address is; empty where it is none (memif).
    pub fn interfaces(&self) -> Vec<String> {
        let name = |device: &String| match device.parse() {
            Ok(DeviceSpec::Tap { name, .. }) => name,
            Ok(DeviceSpec::Afxdp { ifname, .. }) => ifname,
            _ => String::new(),
        };
        let names: Vec<String> = self.devices.iter().map(name).collect();
        // As the dataplane has it: what is left over is the first device's.
        let of = |nth: usize| names.get(nth).or(names.first()).cloned().unwrap_or_default();
        (0..self.addresses().len()).map(of).collect()
    }

    /// Name of the congestion control of new connections.
    pub fn congestion(&self) -> &'static str {
        Config::parse(&self.text()).unwrap_or_default().tcp.congestion.name()
    }

    /// Packet memory of the dataplane.
    pub fn memory_sizes(&self) -> ix_mem::Sizes {
        // What `check` has read already.
        Config::parse(&self.text()).unwrap_or_default().memory_sizes()
    }

    /// What may be sent and received at the start.
    pub fn gate(&self) -> ix_vnic::Gate {
        Config::parse(&self.text()).unwrap_or_default().gate
    }

    /// Hardware threads of the elastic threads.
    pub fn cpus(&self) -> Vec<usize> {
        self.first("cpu").and_then(cpu::parse_list).unwrap_or_default()
    }

    /// Refuses what cannot work, before anything is touched.
    fn check(&mut self) -> Result<()> {
        if self.devices.is_empty() {
            return Err(Problem::new("no device", "neither --nic nor `devices` names one")
                .mend("for example --nic tap:ix0"));
        }
        if self.first("host_addr").is_none() {
            return Err(Problem::new("no address", "neither --addr nor `host_addr` names one")
                .mend("for example --addr 10.0.0.2/24"));
        }
        self.check_cpus()?;
        let config = Config::parse(&self.text()).map_err(|e| {
            let key = e.line.split('=').next().unwrap_or_default();
            Problem::new(format!("cannot use `{}`", e.line), e.why).mend(example(key))
        })?;
        Vnic::new(&config.gate, config.cpus.len()).map_err(vnic_refused)?;
        match config.gateway_addr {
            Some(gateway)
                if !config.host_addrs.iter().any(|(a, p)| a.same_network(gateway, *p)) =>
            {
                let what = format!("cannot use the gateway {gateway}");
                Err(Problem::new(what, "it is on none of the dataplane's networks")
                    .mend("give an address on the network of --addr"))
            }
            _ => Ok(()),
        }
    }

    /// Every elastic thread needs a hardware thread that we may run on. One of its own is better: who
    /// names one twice is warned by `ix run`.
    fn check_cpus(&mut self) -> Result<()> {
        let allowed = cpu::allowed();
        let cpus = match self.first("cpu") {
            None => allowed.iter().take(1).copied().collect(),
            Some(text) => {
                cpu::parse_list(text).filter(|cpus| !cpus.is_empty()).ok_or_else(|| {
                    Problem::new(format!("cannot use the hardware threads `{text}`"), "not a list")
                        .mend("for example --cpus 0,2-3")
                })?
            }
        };
        for cpu in &cpus {
            if !allowed.contains(cpu) {
                let why = format!("this process may run on {}", list(&allowed));
                return Err(Problem::new(format!("cannot use hardware thread {cpu}"), why)
                    .mend("choose others with --cpus"));
            }
        }
        self.replace("cpu", list(&cpus));
        Ok(())
    }

    /// The text for the dataplane, without secrets and devices.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (key, value) in &self.entries {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{key}={value}");
        }
        text
    }
}

/// What the configuration asks of the vNIC cannot be had.
pub fn vnic_refused(why: String) -> Problem {
    Problem::new("cannot use [vnic] of the configuration", why)
        .mend("see `ix run --help` for an example, and `ix ctl filter --help`")
}

/// What a right value of a key looks like.
fn example(key: &str) -> &'static str {
    match key {
        "host_addr" => "for example --addr 10.0.0.2/24",
        "gateway_addr" => "for example --gateway 10.0.0.1",
        "batch" => "for example --batch 64",
        "arp" => "for example { ip = \"10.0.0.9\", mac = \"02:00:00:00:00:09\" }",
        _ => "see `ix run --help`",
    }
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// One value stands for a list of one, as in IX's configuration.
fn each(value: toml::Value) -> Vec<toml::Value> {
    match value {
        toml::Value::Array(values) => values,
        value => vec![value],
    }
}

fn scalar(key: &str, value: &toml::Value) -> std::result::Result<String, String> {
    match value {
        toml::Value::String(text) if !text.contains('\n') => Ok(text.clone()),
        toml::Value::Integer(n) => Ok(n.to_string()),
        toml::Value::Boolean(b) => Ok(u8::from(*b).to_string()),
        _ => Err(format!("{key}: not a text or a whole number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> std::result::Result<Settings, String> {
        Settings::from_table(text.parse().expect("toml"))
    }

    #[test]
    fn the_file_keeps_ixs_names_and_allows_lists() {
        let settings = table(
            "host_addr = '10.0.0.2/24'\ndevices = 'tap:ix0'\ncpu = [1, 3]\nbatch = 16\n\
             arp = [{ ip = '10.0.0.9', mac = '02:00:00:00:00:09' }]\n[tcp]\nmin_rto_us = 1000\n",
        )
        .expect("valid");
        assert_eq!(settings.devices, ["tap:ix0"]);
        let mut lines: Vec<_> = settings.text().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "arp=10.0.0.9 02:00:00:00:00:09",
                "batch=16",
                "cpu=1,3",
                "host_addr=10.0.0.2/24",
                "tcp_min_rto_us=1000"
            ]
        );
        assert_eq!(settings.addresses(), [Ipv4Addr::new(10, 0, 0, 2)]);
    }

    #[test]
    fn queues_of_the_vnic_have_parts_of_their_own() {
        let settings = table(
            "host_addr = '10.0.0.2/24'\n[vnic]\ntx_rate = '1Gbit'\n[vnic.queue.1]\n\
             filters = ['tx udp service 10.0.0.2:53', 'tx tcp service 10.0.0.2:7']\n\
             tx_rate = '20Mbit'\n[vnic.queue.0]\nflow_rate = '1Mbit'\n",
        )
        .expect("valid");
        let gate = settings.gate();
        assert_eq!((gate.assigned.len(), gate.queue_rates.len()), (2, 2), "{gate}");
        assert!(gate.assigned.iter().all(|(queue, _)| *queue == 1), "{gate}");
        assert!(gate.tx_rate.is_some() && gate.queue_rates[&0].flow.is_some(), "{gate}");
        for wrong in
            ["queue = 1", "queue = [{ tx_rate = '1Mbit' }]", "[vnic.queue]\ntx_rate = '1Mbit'"]
        {
            let why = table(&format!("[vnic]\n{wrong}")).expect_err(wrong);
            assert!(why.contains("[vnic.queue.0]"), "{wrong}: {why}");
        }
    }

    #[test]
    fn values_cannot_smuggle_lines() {
        assert!(table("host_addr = \"10.0.0.2/24\\nsecret=0\"").is_err());
        assert!(table("batch = 1.5").is_err());
        assert!(table("arp = ['10.0.0.1']").is_err());
    }
}
