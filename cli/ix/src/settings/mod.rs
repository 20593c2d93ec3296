//! What `ix run` shall do: configuration file and flags, merged and checked.
mod file;
mod of_own_address;
mod routes;
mod source;
mod values;

use crate::address_secret::{self, MACHINE_ID};
use crate::args::RunArgs;
use file::File;
use ix_broker::control::Access;
use ix_broker::vnic::Vnic;
use ix_netdev::DeviceSpec;
use ix_proto::Config;
use ix_proto::config::{Addr6, Addr6Identifier, bounds, is_on_link};
use ix_report::problem::{Problem, Result};
use ix_sys::cpu;
use ix_vnic::Direction;
use ix_wire::IpAddr;
use of_own_address::{OfOwnAddress, Subject};
use source::Source;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;
use values::{Address, Commas, Cpus, Metrics, Network, Word};

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Device specifications.
    pub devices: Vec<String>,
    /// Who may open the control socket, and where metrics are.
    pub access: Access,
    /// What the dataplane begins with, but for its secrets.
    pub config: Config,
    /// Routes as the file names them.
    routes: Vec<routes::Wanted>,
    /// Of what addresses of IPv6 are made, if the file says it.
    identifier: Option<Addr6Identifier>,
    /// Those that an address of IX's own has, as they were typed.
    of_own_address: Vec<OfOwnAddress>,
    /// Where settings were written, for messages.
    pub source: Source,
}

impl Settings {
    /// Reads the file that the flags name, and puts the flags over it.
    pub fn from_args(args: &RunArgs) -> Result<Settings> {
        let mut settings = Settings { source: Source::of(args), ..Settings::default() };
        if let Some(path) = &args.config {
            settings.read_file(path)?;
        }
        settings.put_flags(args)?;
        settings.check_devices()?;
        if args.take_address && settings.config.host_addrs.is_empty() {
            let why = "neither --addr nor `host_addr` names an address to take from Linux";
            return Err(Problem::new("cannot use `--take-address`", why)
                .mend("name it with --addr, or leave it out: IX shares Linux's address by port"));
        }
        let none_is_named = settings.devices.is_empty();
        if none_is_named && crate::command_line::means_device(&args.program) {
            let why = "`--nic` stands behind the program, where it is the program's own";
            return Err(
                Problem::new("no device is named for IX", why).mend("write it before the program")
            );
        }
        crate::sharing::usual_device(&mut settings.devices, &settings.config)?;
        if none_is_named && !settings.devices.is_empty() {
            settings.source.has_usual_device();
        }
        crate::sharing::refuse_without_ethernet(&settings.devices)?;
        crate::sharing::settle(&settings.devices, &mut settings.config)?;
        if settings.config.shares_address {
            let interface = settings.interfaces().into_iter().next().unwrap_or_default();
            of_own_address::refuse_shared(&settings.of_own_address, &interface)?;
        }
        settings.check()?;
        Ok(settings)
    }

    fn read_file(&mut self, path: &Path) -> Result<()> {
        let path_text = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| {
            let mend = match e.kind() {
                ErrorKind::NotFound => "name a file that exists",
                ErrorKind::PermissionDenied => "name a file that this user may read",
                _ => "name a text file in TOML (man ix.toml)",
            };
            Problem::new(format!("cannot use the configuration {path_text}"), e).mend(mend)
        })?;
        let file = File::read(&text).map_err(|e| {
            let what = format!("cannot use `{}` ({path_text}, line {})", e.words, e.line);
            let problem = Problem::new(what, &e.why);
            let words = ["for example", "there are", "out of range", "not one of"];
            let teaches = words.iter().any(|words| e.why.contains(words));
            if teaches { problem } else { problem.mend("see `ix run --help` for an example") }
        })?;
        self.of_own_address = file.of_own_address(&text, &path_text.to_string());
        self.take(file);
        Ok(())
    }

    /// Puts what the file says over what is there.
    fn take(&mut self, mut file: File) {
        self.routes = file.routes();
        self.identifier = file.addr6_identifier.as_ref().map(|one| one.get_ref().0.0);
        file.apply(&mut self.devices, &mut self.access, &mut self.config);
    }

    fn put_flags(&mut self, args: &RunArgs) -> Result<()> {
        let config = &mut self.config;
        if !args.nic.is_empty() {
            self.devices.clone_from(&args.nic);
        }
        if let Some(Metrics(address)) = flag("--metrics", &args.metrics)? {
            self.access.metrics = Some(address);
        }
        if let Some(Commas(networks)) = flag("--addr", &args.addr)? {
            let network = |Network(addr, prefix)| (addr, prefix);
            config.host_addrs = networks.into_iter().map(network).collect();
        }
        let of_own_address = &mut self.of_own_address;
        let mut note = |subject, flag: &str, value: &Option<String>| {
            let typed = value.as_ref().map(|value| format!("`{flag} {value}`"));
            of_own_address.extend(typed.map(|typed| OfOwnAddress { subject, typed }));
        };
        if let Some(Word(source)) = flag("--addr6", &args.addr6)? {
            config.addr6 = source;
            note(Subject::Addr6, "--addr6", &args.addr6);
        }
        if let Some(Commas(gateways)) = flag("--gateway", &args.gateway)? {
            config.gateway_addrs = gateways.into_iter().map(|Address(addr)| addr).collect();
            note(Subject::Gateway, "--gateway", &args.gateway);
        }
        if let Some(Cpus(cpus)) = flag("--cpus", &args.cpus)? {
            config.cpus = cpus;
        }
        if let Some(batch) = args.batch {
            let checked = bounds::BATCH.check(batch as u64);
            checked.map_err(|e| refused("--batch", &batch, e))?;
            config.batch = batch;
        }
        if let Some(Word(kind)) = flag("--congestion", &args.congestion)? {
            config.tcp.congestion = kind;
        }
        if let Some(Word(mode)) = flag("--ecn", &args.ecn)? {
            config.tcp.ecn = mode;
        }
        Ok(())
    }

    /// Nothing but hardware threads and devices.
    #[cfg(test)]
    pub(crate) fn for_test(cpus: &str, devices: &[&str]) -> Settings {
        let devices = devices.iter().map(|d| (*d).to_owned()).collect();
        let mut settings = Settings { devices, ..Settings::default() };
        settings.config.cpus = cpus.parse::<Cpus>().expect("a list").0;
        settings
    }

    /// The dataplane's addresses.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.config.host_addrs.iter().map(|(addr, _)| *addr).collect()
    }

    /// The broadcasts of the networks of these addresses.
    pub fn broadcasts(&self) -> Vec<IpAddr> {
        let of = |(own, prefix): &(IpAddr, u8)| {
            let own = own.as_v4().map(u32::from_be_bytes).filter(|_| *prefix < 31)?;
            Some(IpAddr::v4((own | u32::MAX >> prefix).to_be_bytes()))
        };
        self.config.host_addrs.iter().filter_map(of).collect()
    }

    /// The Linux interface that the device of each address is; empty where it is none (memif).
    pub fn interfaces(&self) -> Vec<String> {
        let name = |device: &String| match device.parse() {
            Ok(DeviceSpec::Tap { name, .. }) => name,
            Ok(DeviceSpec::Afxdp { ifname, .. }) => ifname,
            _ => String::new(),
        };
        let names: Vec<String> = self.devices.iter().map(name).collect();
        let device = |addr: &IpAddr| self.config.device_of(*addr, names.len());
        let of = |(addr, _): &(IpAddr, u8)| names.get(usize::from(device(addr))).cloned();
        self.config.host_addrs.iter().map(|own| of(own).unwrap_or_default()).collect()
    }

    /// Hardware threads of the elastic threads.
    pub fn cpus(&self) -> Vec<usize> {
        self.config.cpus.iter().map(|cpu| *cpu as usize).collect()
    }

    /// Chooses of what the addresses are made whose prefixes routers give.
    fn settle_identifiers(&mut self, machine_id: &Path) -> Result<()> {
        let first = self.devices.first().and_then(|device| device.parse::<DeviceSpec>().ok());
        let Some(device) = first.filter(|_| self.config.addr6 == Addr6::Auto) else {
            return Ok(());
        };
        let of_machine = || address_secret::of_interface(machine_id, device.name());
        self.config.addr6_secret = match self.identifier {
            Some(Addr6Identifier::Eui64) => None,
            Some(Addr6Identifier::Stable) => Some(of_machine().ok_or_else(|| {
                let what = "cannot have addr6_identifier = \"stable\"";
                let why = format!("{} has no number of this machine", machine_id.display());
                Problem::new(what, why).mend(
                    "`systemd-machine-id-setup` gives it one; or addr6_identifier = \"eui64\"",
                )
            })?),
            None => of_machine(),
        };
        Ok(())
    }

    /// Refuses what names no device, and one that is named twice, before anything is said of what
    /// devices lack.
    fn check_devices(&self) -> Result<()> {
        let mut known: Vec<DeviceSpec> = Vec::new();
        for text in &self.devices {
            let what = format!("cannot use {}", self.source.device(text));
            let spec: DeviceSpec = text.parse().map_err(|e| Problem::new(&what, e))?;
            if known.iter().any(|other| other.name() == spec.name()) {
                return Err(Problem::new(what, "it is given twice").mend("name it once"));
            }
            known.push(spec);
        }
        Ok(())
    }

    /// Refuses what cannot work, before anything is touched.
    fn check(&mut self) -> Result<()> {
        if self.devices.is_empty() {
            let likely = crate::sharing::likely_device(&self.config);
            return Err(Problem::new("no device", "neither --nic nor `devices` names one")
                .mend(format!("for example --nic {likely}")));
        }
        if self.config.host_addrs.is_empty() {
            let why = "neither --addr nor `host_addr` names one";
            return Err(match self.devices.len() {
                1 => Problem::new("no address", why).mend("for example --addr 192.0.2.2/24"),
                _ => {
                    let why = format!("{why}, and those of Linux are shared on one device only");
                    Problem::new("no address", why)
                        .mend("name one for each device with --addr, or a single device")
                }
            });
        }
        let first = self.devices.first().and_then(|device| device.parse().ok());
        if let (Addr6::Auto, Some(DeviceSpec::Afxdp { ifname, .. })) = (self.config.addr6, first) {
            let why = format!("Linux makes the same address of what routers tell on {ifname}");
            let of = |one: &&OfOwnAddress| one.subject == Subject::Addr6;
            let typed = self.of_own_address.iter().rfind(of).map(|one| one.typed.as_str());
            let what = format!("cannot use {}", typed.unwrap_or("addr6 = \"auto\""));
            return Err(Problem::new(what, why)
                .mend("give an address with --addr, or a device of IX's own: --nic tap:ix0"));
        }
        self.settle_identifiers(Path::new(MACHINE_ID))?;
        self.check_cpus()?;
        self.settle_routes()?;
        let config = &self.config;
        config.check().map_err(|e| {
            Problem::new("cannot use the configuration", e).mend("see `ix run --help`")
        })?;
        config.vnic_rules.check().map_err(vnic_refused)?;
        let filtered = |direction| config.vnic_rules.set(direction).is_some();
        let is_filtered = filtered(Direction::Receive) || filtered(Direction::Transmit);
        if is_filtered && config.addr6 == Addr6::Auto {
            let what = "cannot use addr6 = \"auto\" with filters";
            return Err(Problem::new(what, "a filter names addresses, and routers give others")
                .mend("give an address of IPv6 with --addr, or remove the filters"));
        }
        Vnic::new(&config.vnic_rules, config.cpus.len()).map_err(vnic_refused)?;
        let is_near = |gateway: &IpAddr| {
            config.host_addrs.iter().any(|(own, prefix)| is_on_link(*own, *prefix, *gateway))
        };
        match config.gateway_addrs.iter().find(|gateway| !is_near(gateway)) {
            Some(gateway) => {
                let what = format!("cannot use {}", self.source.gateway(gateway));
                Err(Problem::new(what, "it is on none of the dataplane's networks")
                    .mend("give an address on the network of --addr"))
            }
            None => Ok(()),
        }
    }

    /// Gives the dataplane the routes of the file.
    fn settle_routes(&mut self) -> Result<()> {
        let file = self.source.file();
        if self.config.shares_address {
            let interface = self.interfaces().into_iter().next().unwrap_or_default();
            return routes::refuse_shared(&self.routes, &interface, file);
        }
        let of = (&self.devices[..], &self.config);
        self.config.routes = routes::resolve(&self.routes, of, file)?;
        Ok(())
    }

    /// Every elastic thread needs a hardware thread that this process may run on. `ix run` warns of
    /// one that several share.
    fn check_cpus(&mut self) -> Result<()> {
        let allowed = cpu::allowed();
        if self.config.cpus.is_empty() {
            self.config.cpus = allowed.iter().take(1).map(|cpu| *cpu as u32).collect();
        }
        for cpu in self.cpus() {
            if !allowed.contains(&cpu) {
                let allowed: Vec<_> = allowed.iter().map(usize::to_string).collect();
                let why = format!("this process may run on {}", allowed.join(","));
                let what = format!("cannot use {}", self.source.cpu(cpu));
                return Err(Problem::new(what, why).mend("choose others with --cpus"));
            }
        }
        Ok(())
    }
}

impl Default for Settings {
    /// No device, no address, no hardware thread.
    fn default() -> Settings {
        let config = Config { cpus: Vec::new(), ..Config::default() };
        Settings {
            devices: Vec::new(),
            access: Access::default(),
            config,
            routes: Vec::new(),
            identifier: None,
            of_own_address: Vec::new(),
            source: Source::default(),
        }
    }
}

/// The value of a flag that was given.
fn flag<T: FromStr<Err: Display>>(name: &str, text: &Option<String>) -> Result<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|e| refused(name, text, e))
}

fn refused(flag: &str, value: &dyn Display, why: impl Display) -> Problem {
    Problem::new(format!("cannot use `{flag} {value}`"), why)
}

/// What the configuration asks of the vNIC cannot be had.
pub fn vnic_refused(why: String) -> Problem {
    Problem::new("cannot use [vnic] of the configuration", why)
        .mend("see `ix run --help` for an example, and `ix ctl filter --help`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_proto::routes::{Route, Via};

    fn file(text: &str) -> Settings {
        let mut settings = Settings::default();
        settings.take(File::read(text).expect("a file that can be used"));
        settings
    }

    #[test]
    fn the_file_keeps_ixs_names_and_allows_lists() {
        let settings = file(
            "host_addr = '10.0.0.2/24'\ndevices = 'tap:ix0'\ncpu = [1, '3-4']\nbatch = 16\n\
             gateway_addr = ['10.0.0.1', '10.0.0.3']\nttl = '17'\nloader_path = 'lib/ld.so'\n\
             arp = [{ ip = '10.0.0.9', mac = '02:00:00:00:00:09' }]\n[tcp]\nmin_rto_us = 1000\n\
             congestion = 'dctcp'\n",
        );
        assert_eq!(settings.devices, ["tap:ix0"]);
        let v4 = |last| IpAddr::v4([10, 0, 0, last]);
        let tcp = ix_tcp::Config {
            min_rto_us: 1000,
            congestion: ix_tcp::CongestionControl::Dctcp,
            ..ix_tcp::Config::default()
        };
        let expected = Config {
            cpus: vec![1, 3, 4],
            batch: 16,
            gateway_addrs: vec![v4(1), v4(3)],
            ttl: 17,
            arp: vec![(v4(9), [2, 0, 0, 0, 0, 9])],
            tcp,
            ..Config::with_address(v4(2), 24)
        };
        assert_eq!(settings.config, expected);
        assert_eq!(file("cpu = '2,4-5'").config.cpus, [2, 4, 5]);
        assert_eq!(file("cpu = 7\narena_mb = 3").config.arena_bytes, 3 << 20);
        let arp = "arp = { ip = '10.0.0.9', mac = '02:00:00:00:00:09' }";
        assert_eq!(file(arp).config.arp, expected.arp);
    }

    #[test]
    fn identifiers_are_stable_where_the_machine_has_a_number() {
        let id = std::env::temp_dir().join(format!("ix-settings-id-{}", std::process::id()));
        std::fs::write(&id, "0123456789abcdef0123456789abcdef\n").expect("write");
        let secret = |text: &str, id: &Path| {
            let mut settings = file(&format!("devices = 'tap:ix0'\n{text}"));
            let settled = settings.settle_identifiers(id).map_err(|e| e.to_string());
            settled.map(|()| settings.config.addr6_secret)
        };
        let auto = |choice: &str| format!("addr6 = 'auto'\n{choice}");
        let (stable, eui64) = ("addr6_identifier = 'stable'", "addr6_identifier = 'eui64'");
        let made = secret(&auto(stable), &id).expect("a number");
        assert!(made.is_some());
        assert_eq!(secret(&auto(""), &id), Ok(made));
        assert_eq!(secret(&auto(eui64), &id), Ok(None));
        assert_eq!(secret(stable, &id), Ok(None), "routers are not heard");
        std::fs::remove_file(&id).expect("remove");
        assert_eq!(secret(&auto(""), &id), Ok(None));
        let refused = secret(&auto(stable), &id).expect_err("no number");
        assert!(refused.contains("has no number of this machine"), "{refused}");
    }

    /// The routes of a file for two devices, or the message that refuses them.
    fn routes_of(text: &str) -> std::result::Result<Vec<Route>, String> {
        let head = "devices = ['afxdp:eth1', 'tap:ix0,queues=2']\nhost_addr = ['10.0.0.2/24', \
                    '10.1.0.2/24', '2001:db8::2/64', '2001:db8:1::2/64', '10.0.0.3/24']\n";
        let mut settings = file(&format!("{head}{text}"));
        let settled = settings.settle_routes().map_err(|e| e.to_string());
        settled.map(|()| settings.config.routes.iter().copied().collect())
    }

    #[test]
    fn routes_have_the_source_of_their_device() {
        let by = |text: &str| {
            let all = routes_of(text).expect(text);
            let [route] = all[..] else { panic!("{text}: {all:?}") };
            let via = match route.via {
                Via::Gateway(hop) => hop.to_string(),
                via => format!("{via:?}"),
            };
            let source = route.source.expect("a source");
            format!("{}/{} {via} {source} {}", route.to, route.prefix, route.metric)
        };
        for (text, expected) in [
            ("to='10.9.0.0/16', gateway='10.0.0.9'", "10.9.0.0/16 10.0.0.9 10.0.0.2 0"),
            ("to='10.9.0.0/16', gateway='10.1.0.9', metric=7", "10.9.0.0/16 10.1.0.9 10.1.0.2 7"),
            (
                "to='10.9.0.0/16', gateway='10.0.0.9', source='10.0.0.3'",
                "10.9.0.0/16 10.0.0.9 10.0.0.3 0",
            ),
            ("to='10.9.0.0/16', device='ix0'", "10.9.0.0/16 Link 10.1.0.2 0"),
            ("to='0.0.0.0/0', gateway='10.1.0.9', device='ix0'", "0.0.0.0/0 10.1.0.9 10.1.0.2 0"),
            (
                "to='2001:db8:9::/48', gateway='2001:db8:1::9'",
                "2001:db8:9::/48 2001:db8:1::9 2001:db8:1::2 0",
            ),
            ("to='::/0', gateway='fe80::1', device='ix0'", "::/0 fe80::1 2001:db8:1::2 0"),
            ("to='::/0', gateway='fe80::1', source='2001:db8::2'", "::/0 fe80::1 2001:db8::2 0"),
        ] {
            assert_eq!(by(&format!("route = {{ {text} }}")), expected);
        }
        let two = "[[route]]\nto='10.9.0.0/16'\ngateway='10.0.0.9'\n[[route]]\n\
                   to='10.9.0.0/16'\ngateway='10.1.0.9'\nmetric=9";
        assert_eq!(routes_of(two).expect("two").len(), 2);
    }

    #[test]
    fn a_route_that_cannot_be_used_is_named_with_its_line() {
        for (text, tells) in [
            ("to='10.9.0.0/16'", "names neither `gateway` nor `device`"),
            ("to='10.9.0.0/16'\ngateway='10.7.0.9'", "10.7.0.9 is on none of the dataplane's"),
            ("to='10.9.0.0/16'\ngateway='10.0.0.9'\ndevice='ix0'", "on none of the dataplane's"),
            ("to='10.9.0.0/16'\ngateway='2001:db8::9'", "of the other family"),
            ("to='10.9.0.0/16'\ngateway='10.0.0.3'", "an address of the dataplane itself"),
            ("to='10.9.0.0/16'\ndevice='eth7'", "no device `eth7`; the devices are eth1, ix0"),
            ("to='10.9.0.0/16'\ndevice='ix0'\nsource='10.9.9.9'", "no address of the dataplane;"),
            ("to='10.9.0.0/16'\ndevice='ix0'\nsource='10.0.0.3'", "dataplane on that device;"),
            ("to='10.9.0.0/16'\ndevice='ix0'\nsource='2001:db8::2'", "no address of the"),
            ("to='10.0.0.0/24'\ngateway='10.0.0.9'", "it is the network of an address"),
            ("to='::/0'\ngateway='fe80::1'", "name the `device`"),
        ] {
            let said = routes_of(&format!("[[route]]\n{text}\n")).expect_err(text);
            assert!(said.contains(tells) && said.contains(", line 4)"), "{text}: {said}");
        }
        let twice = "[[route]]\nto='::/0'\ngateway='2001:db8::9'\n";
        let said = routes_of(&format!("{twice}{twice}")).expect_err("twice");
        assert!(said.contains("line 7)") && said.contains("the metric 0 too"), "{said}");
        let mut v4 =
            file("devices='tap:ix0'\nhost_addr='10.0.0.2/24'\nroute={to='::/0', device='ix0'}");
        let said = v4.settle_routes().expect_err("no address").to_string();
        assert!(said.contains("the dataplane has no address of IPv6"), "{said}");
        v4.config.shares_address = true;
        let said = v4.settle_routes().expect_err("shared").to_string();
        assert!(said.contains("ip route add ::/0 dev ix0") && said.contains("line 3)"), "{said}");
    }

    #[test]
    fn who_may_ask_stands_in_a_part_of_its_own() {
        let access = file(
            "[control]\nmode = '0660'\ngroup = 'ix'\nread_only_mode = '0666'\nmetrics = '9464'",
        )
        .access;
        assert_eq!((access.mode, access.read_only_mode), (0o660, 0o666));
        assert_eq!((access.group.as_deref(), access.read_only_group), (Some("ix"), None));
        assert_eq!(access.metrics.expect("an address").to_string(), "127.0.0.1:9464");
    }

    #[test]
    fn queues_of_the_vnic_have_parts_of_their_own() {
        let rules = file(
            "[vnic]\ntx_rate = '1Gbit'\nfilters = 'tx udp service 10.0.0.1:53'\n[vnic.queue.1]\n\
             filters = ['tx udp service 10.0.0.2:53', 'tx tcp service 10.0.0.2:7']\n\
             tx_rate = '20Mbit'\n[vnic.queue.0]\nflow_rate = '1Mbit'\nrx_rate = '9kpps'\n",
        )
        .config
        .vnic_rules;
        let same = "tx udp service 10.0.0.1:53; rate tx 1Gbit; queue 1 rate tx 20Mbit; \
                    queue 0 rate rx 9kpps; queue 0 rate flow 1Mbit; \
                    queue 1 tx udp service 10.0.0.2:53; queue 1 tx tcp service 10.0.0.2:7";
        assert_eq!(rules, same.parse().expect("rules"));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_line() {
        for (text, line, words, why) in [
            ("batch = 16\nbatch = 17", 2, "batch = 17", "duplicate key"),
            ("host_addr = ", 1, "host_addr =", ""),
            ("# one\nhost_addr = 5", 2, "host_addr = 5", "expected a text in quotes"),
            ("host_addr = \"10.0.0.2/24\\nsecret=0\"", 1, "host_addr =", "ADDRESS/PREFIX"),
            ("batch = 1.5", 1, "batch = 1.5", "expected a whole number"),
            ("batch = -1", 1, "batch = -1", "out of range"),
            ("batch = 0 # none", 1, "batch = 0", "0 is out of range: 1 to 1024"),
            ("batch = 'many'", 1, "batch = 'many'", "not a number"),
            ("ttl = 256", 1, "ttl = 256", "1 to 255"),
            ("nonresponsive_us = 9", 1, "nonresponsive_us = 9", "0, or 1000 to 3600000000"),
            ("arena_mb = true", 1, "arena_mb = true", "expected a whole number"),
            ("secret = '0'", 1, "secret = '0'", "no such key: `secret`; there are `devices`"),
            ("tcp = 1", 1, "tcp = 1", "expected the part [tcp]"),
            ("cpu = 'a'", 1, "cpu = 'a'", "not a list of hardware threads"),
            ("arp = ['10.0.0.1']", 1, "arp = ['10.0.0.1']", "expected { ip = …, mac = … }"),
            ("arp = [{ ip = '10.0.0.1' }]", 1, "arp", "missing field `mac`"),
            ("route = ['10.0.0.1']", 1, "route = ['10.0.0.1']", "expected { to = …, gateway = … }"),
            ("route = { gateway = '10.0.0.1' }", 1, "route", "missing field `to`"),
            ("[[route]]\nto = '10.9.0.5/16'", 2, "to = ", "the network is 10.9.0.0/16"),
            ("[[route]]\nto = 'default'", 2, "to = 'default'", "192.0.2.0/24"),
            ("[[route]]\nto = '::/0'\nvia = '::1'", 3, "via = '::1'", "no such key: `via`"),
            ("[[route]]\nto = '::/0'\nmetric = -1", 3, "metric = -1", "out of range"),
            ("[[route]]\nto = '::/0'\ngateway = 5", 3, "gateway = 5", "a text in quotes"),
            ("address_check = 'on'", 1, "address_check", "not one of off, announce, probe"),
            ("[tcp]\necn = 'on'", 2, "ecn = 'on'", "accept-accurate"),
            ("[tcp]\nrto = 1", 2, "rto = 1", "no such key: `rto`; there are `congestion`"),
            (
                "[vnic]\nfilters = [\n  'rx ip service 10.0.0.1',\n  'rx ip service 10.0.0.x',\n]",
                4,
                "'rx ip service 10.0.0.x',",
                "invalid filter",
            ),
            ("[vnic]\ngate = 'none rx'", 2, "gate = 'none rx'", "no such key: `gate`"),
            ("[vnic]\nqueue = 1", 2, "queue = 1", "[vnic.queue.0]"),
            ("[vnic]\nqueue = [{ tx_rate = '1Mbit' }]", 2, "queue = [", "[vnic.queue.0]"),
            ("[vnic.queue]\ntx_rate = '1Mbit'", 2, "tx_rate = '1Mbit'", "[vnic.queue.0]"),
            ("[vnic.queue.x]\ntx_rate = '1Mbit'", 1, "[vnic.queue.x]", "`x` is no queue's"),
            ("[vnic.queue.01]\ntx_rate = '1Mbit'", 1, "[vnic.queue.01]", "`01` is no queue's"),
            ("[vnic.queue.-1]\ntx_rate = '1Mbit'", 1, "[vnic.queue.-1]", "`-1` is no queue's"),
            ("[vnic.queue.1]\nspeed = '1Mbit'", 2, "speed = '1Mbit'", "no such key: `speed`"),
            ("[vnic.queue.1]\nfilters = 'rate tx 1Mbit'", 2, "filters =", "rx or tx"),
            ("[vnic.queue.1]\ntx_rate = '0bit'", 2, "tx_rate = '0bit'", "0 lets nothing pass"),
            ("[control]\nmode = 'rwx'", 2, "mode = 'rwx'", "not a mode"),
            ("[control]\nmetrics = 'here'", 2, "metrics = 'here'", "ADDRESS:PORT"),
            ("[control]\nuser = 'me'", 2, "user = 'me'", "no such key: `user`"),
        ] {
            let Err(e) = File::read(text) else { panic!("{text} was taken") };
            assert!(e.line == line && e.why.contains(why), "{text}: {e:?}");
            assert!(e.words.starts_with(words), "{text}: {e:?}");
        }
    }

    #[test]
    fn what_is_no_device_is_said_first() {
        for (devices, tells) in [
            (&["foo:eth0"][..], "cannot use `--nic foo:eth0`: device `foo:eth0`: no such kind"),
            (&["afxdp:"], "an interface name has 1 to 15 characters"),
            (&["eth0,foo=3"], "unknown option `foo=3`"),
            (&["tap:ix0", "eth0", "eth0"], "cannot use `--nic eth0`: it is given twice; name it"),
            (&["eth0", "afxdp:eth0,queues=2"], "cannot use `--nic afxdp:eth0,queues=2`: it is"),
        ] {
            let words = devices.iter().flat_map(|device| ["--nic", *device]);
            let line = ["ix", "run"].into_iter().chain(words).chain(["/bin/true"]);
            let crate::args::Command::Run(args) =
                <crate::args::Cli as clap::Parser>::parse_from(line).command
            else {
                panic!("no run");
            };
            let said = Settings::from_args(&args).expect_err("refused").to_string();
            assert!(said.contains(tells), "{said}");
        }
    }

    #[test]
    fn long_lines_are_cut() {
        let e = File::read(&format!("host_addr = '{}'", "x".repeat(500))).expect_err("no address");
        assert_eq!(e.words.chars().count(), 81, "{e:?}");
    }
}
