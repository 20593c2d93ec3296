//! Several dataplanes and Linux on one interface, by `ix share`.
use super::vnic::{capability, ctl, is_reset, refused};
use crate::support::command::errors;
use crate::support::control::Client;
use crate::support::process::{Process, cpu_time};
use crate::support::stats::Stats;
use crate::support::traffic::echo;
use crate::support::{self, CLIENT, Nic, PATIENCE, PREFIX_V6, TestNet};
use libix::control::{Control, ControlError};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A dataplane on a vNIC of a shared interface.
struct Tenant {
    name: &'static str,
    ip: Ipv4Addr,
    /// Killed when dropped.
    process: Process,
    stats: PathBuf,
}

/// Shares the net's interface; returns the process and where it listens.
fn share(net: &TestNet, flags: &[&str]) -> (Process, PathBuf) {
    let (namespace, link) = net.service_link();
    let control = net.file("share.sock");
    let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
    command.args(["share", link]).args(flags).arg("--control").arg(&control);
    let process = Process::start(command);
    process.wait_for("ix: sharing", PATIENCE);
    (process, control)
}

/// It ends when it is asked to, and takes its links along.
#[track_caller]
fn ends(process: Process) {
    process.signal(libc::SIGTERM);
    let (status, said) = process.wait(PATIENCE);
    assert!(status.success(), "{said:?}");
}

#[track_caller]
fn told(control: &Path, args: &[&str]) -> Value {
    let json: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let output = ctl(control.to_owned(), &json);
    assert!(output.status.success(), "{args:?}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Makes a vNIC, grants it all of an address, and starts the echo service on it.
fn tenant(
    net: &TestNet,
    control: &Path,
    name: &'static str,
    ip: Ipv4Addr,
    flags: &[&str],
) -> Tenant {
    let own = [(ip.into(), 16)];
    let (process, stats) = start_tenant(net, control, name, &own, flags);
    Tenant { name, ip, process, stats }
}

/// The same with several addresses; also answers where its dataplane listens.
fn start_tenant(
    net: &TestNet,
    control: &Path,
    name: &str,
    own: &[(IpAddr, u8)],
    flags: &[&str],
) -> (Process, PathBuf) {
    let create: Vec<_> = ["vnic", "create", name].iter().chain(flags).copied().collect();
    let device = told(control, &create)["device"].as_str().expect("a device").to_owned();
    for (ip, _) in own {
        let filter = format!("rx ip service {ip}");
        told(control, &["filter", "create", &filter, "--both", "--vnic", name]);
    }
    let addresses: Vec<_> = own.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    let every = if own.iter().any(|(ip, _)| ip.is_ipv6()) { "::" } else { "0.0.0.0" };
    let cpu = net.cpus()[0].to_string();
    let (stats, echo) = (net.file(&format!("{name}.sock")), support::build_echo());
    let mut command = net.service_link().0.command(env!("CARGO_BIN_EXE_ix"), None);
    command.args([
        "run",
        "--domain",
        &support::domain(),
        "--nic",
        &device,
        "--addr",
        &addresses.join(","),
    ]);
    command.args(["--cpus", &cpu, "--control"]).arg(&stats).arg("--").arg(echo);
    command.args(["64", "--addr", every]);
    let process = Process::start(command);
    process.wait_for("ready", PATIENCE);
    (process, stats)
}

/// Three dataplanes and Linux on one interface: each has its own traffic, and what a tenant loses
/// is Linux's.
#[test]
fn three_dataplanes_and_linux_share_an_interface() {
    let test = "three_dataplanes_and_linux_share_an_interface";
    let Some(net) = TestNet::alone(test, Nic::Afxdp, 1) else { return };
    let (namespace, link) = net.service_link();
    let own = Ipv4Addr::new(10, 88, 0, 100);
    namespace.add_address(link, own, 16).expect("Linux' own address");
    let (process, control) = share(&net, &[]);
    let mut owner = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let pid = owner.id().to_string();
    let ip = |n: u8| Ipv4Addr::new(10, 88, 0, n);
    let tenants = [
        tenant(&net, &control, "a", ip(2), &[]),
        tenant(&net, &control, "b", ip(3), &["--device", "tap"]),
        tenant(&net, &control, "c", ip(4), &["--owner", &pid]),
    ];
    let connect = |ip| net.client.run(|| support::connect_to(SocketAddrV4::new(ip, 7)));
    let mut streams: Vec<_> = tenants.iter().map(|tenant| connect(tenant.ip)).collect();
    for round in 0..100 {
        streams.iter_mut().for_each(|stream| echo(stream, round, 64));
    }
    for tenant in &tenants {
        let stats = Stats::ask(&tenant.stats);
        assert_eq!(stats.total("flows"), 1, "{}: {stats}", tenant.name);
        assert_eq!(stats.total("drops.ip_not_for_us"), 0, "{}: {stats}", tenant.name);
    }
    let listener = namespace.run(|| TcpListener::bind((own, 7))).expect("Linux' own port");
    let mut linux = connect(own);
    linux.write_all(&[1; 64]).expect("sends");
    listener.accept().expect("Linux hears it").0.read_exact(&mut [0; 64]).expect("all");
    // What another holds, and what is Linux', is not to be had.
    for (filter, word) in
        [("rx tcp service 10.88.0.3:80", "a filter of b"), ("tx ip service 10.88.0.100", "Linux")]
    {
        let why = refused(control.clone(), &["filter", "create", filter, "--vnic", "a"]);
        assert!(why.contains(word), "{why}");
    }
    // Linux takes over what nobody holds any more: with the owner's end, and by deletion.
    for ip in [ip(3), ip(4)] {
        namespace.add_address(link, ip, 16).expect("an address");
    }
    owner.kill().expect("killed");
    owner.wait().expect("dead");
    let vnics = || told(&control, &["vnic"])["vnics"].as_array().map(Vec::len);
    support::eventually("the owner's vNIC is gone", || vnics() == Some(2));
    told(&control, &["vnic", "delete", "b"]);
    for stream in &mut streams[1..] {
        is_reset(stream);
    }
    echo(&mut streams[0], 1000, 64);
    ends(process);
    let left = namespace.links().expect("links").into_iter().map(|link| link.name);
    assert_eq!(left.filter(|name| name.starts_with("ixn-")).count(), 0, "links go with it");
}

/// Tenants with addresses of both families, and with IPv6 alone as far as filters go: each is found
/// by Neighbour Discovery, has its own traffic, and what a vNIC loses is Linux's.
#[test]
fn tenants_with_ipv6_addresses_and_linux_share_an_interface() {
    let test = "tenants_with_ipv6_addresses_and_linux_share_an_interface";
    let Some(net) = TestNet::alone(test, Nic::Afxdp, 1) else { return };
    let (namespace, link) = net.service_link();
    let v6 = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, 0x88, 0, 0, 0, 0, n);
    let v4 = |n: u8| IpAddr::from(Ipv4Addr::new(10, 88, 0, n));
    net.enable_v6();
    namespace.enable_ipv6(link).expect("IPv6");
    let linux = v6(0x100);
    namespace.add_address(link, linux, PREFIX_V6).expect("Linux' own address");
    let (process, control) = share(&net, &[]);
    let both = |n: u8| [(v4(n), 16), (v6(n.into()).into(), PREFIX_V6)];
    let a = start_tenant(&net, &control, "a", &both(2), &[]);
    let b = start_tenant(&net, &control, "b", &both(3), &["--device", "tap"]);
    let connect = |ip: IpAddr| {
        let end = Instant::now() + PATIENCE;
        let made = || net.client.run(|| TcpStream::connect_timeout(&(ip, 7).into(), PATIENCE));
        let stream = loop {
            match made() {
                Ok(stream) => break stream,
                Err(e) => assert!(Instant::now() < end, "{ip}: {e}"),
            }
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    };
    let every: [IpAddr; 4] = [v6(2).into(), v6(3).into(), v4(2), v4(3)];
    let mut streams = every.map(connect);
    for round in 0..100 {
        streams.iter_mut().for_each(|stream| echo(stream, round, 64));
    }
    for (_, stats) in [&a, &b] {
        let stats = Stats::ask(stats);
        assert_eq!((stats.total("flows"), stats.total("drops.ip_not_for_us")), (2, 0), "{stats}");
        assert_eq!(stats.total("address_conflicts"), 0, "{stats}");
    }
    let listener = namespace.run(|| TcpListener::bind((linux, 7))).expect("Linux' own port");
    let mut own = connect(linux.into());
    own.write_all(&[1; 64]).expect("sends");
    listener.accept().expect("Linux hears it").0.read_exact(&mut [0; 64]).expect("all");
    for (filter, word) in [
        ("rx tcp service [2001:db8:88::3]:80", "a filter of b"),
        ("tx ip6 service 2001:db8:88::100", "Linux, which has 2001:db8:88::100"),
        ("rx ip6 service ff02::/16", "Linux"),
        ("rx udp6 service *:53", "Linux"),
    ] {
        let why = refused(control.clone(), &["filter", "create", filter, "--vnic", "a"]);
        assert!(why.contains(word), "{why}");
    }
    let shown = told(&control, &["vnic"]);
    assert!(shown["linux"].to_string().contains("2001:db8:88::100"), "{shown}");
    let foreign = |n: usize| shown["vnics"][n]["foreign"].as_u64();
    assert_eq!((foreign(0), foreign(1)), (Some(0), Some(0)), "nothing of theirs is dropped");
    namespace.add_address(link, v6(3), PREFIX_V6).expect("an address");
    told(&control, &["vnic", "delete", "b"]);
    is_reset(&mut streams[1]);
    echo(&mut streams[0], 1000, 64);
    ends(process);
}

/// A tenant with frames of a type of its own, and one whose dataplane hears of its rate.
#[test]
fn a_tenant_has_ethertypes_and_hears_of_its_rate() {
    let test = "a_tenant_has_ethertypes_and_hears_of_its_rate";
    let Some(net) = TestNet::alone(test, Nic::Afxdp, 1) else { return };
    let (process, control) = share(&net, &["--speed", "10Gbit"]);
    told(&control, &["vnic", "create", "f"]);
    told(&control, &["filter", "create", "rx eth type 0x88b5", "--both", "--vnic", "f"]);
    let ip = Ipv4Addr::new(10, 88, 0, 2);
    let program = support::build_program("ix-frames");
    let program = [program.to_str().expect("text"), "ether"];
    let config = super::packets::config_of_frames("ixv-f", &ip);
    let service = net.start_with(&config, &program);
    service.process.wait_for("ready", PATIENCE);
    super::packets::is_answered_on_the_wire(&net);
    // What the kernel would drop waits in the dataplane, which so must know of it.
    let says = |what: &str| {
        let rate = || told(service.control(), &["vnic"])["link_rate"].clone();
        support::eventually(what, || rate() == serde_json::from_str::<Value>(what).expect("JSON"));
    };
    told(&control, &["rate", "--vnic", "f", "--tx", "50Mbit"]);
    says("\"50Mbit,burst=3028\"");
    told(&control, &["rate", "--vnic", "f", "--tx", "none"]);
    says("null");
    super::packets::is_answered_on_the_wire(&net);
    service.finish(PATIENCE);
    ends(process);
}

/// A tenant's end in another namespace: its rate is told there where its owner is, and said not to
/// be where nobody can find it.
#[test]
fn a_moved_link_hears_of_its_rate_by_its_owner() {
    let test = "a_moved_link_hears_of_its_rate_by_its_owner";
    let Some(net) = TestNet::alone(test, Nic::Afxdp, 1) else { return };
    let (process, control) = share(&net, &["--speed", "10Gbit"]);
    let elsewhere = ix_testbed::Namespace::new().expect("a namespace");
    let namespace = net.service_link().0;
    let mut owner = elsewhere.command("sleep", None).arg("1000").spawn().expect("sleep");
    let pid = owner.id().to_string();
    // It is in its namespace when it sleeps: until then it is this process.
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    support::eventually("the owner runs", || name().trim() == "sleep");
    told(&control, &["vnic", "create", "known", "--owner", &pid]);
    told(&control, &["vnic", "create", "lost"]);
    for (vnic, how) in [("known", "through its owner"), ("lost", "dropped and counted")] {
        let link = format!("ixv-{vnic}");
        namespace.move_link(&link, &elsewhere).expect("moved");
        let line =
            process.wait_for(&format!("ix: link {link} of vNIC {vnic} is in another"), PATIENCE);
        assert!(line.contains(how), "{line}");
        let answer = told(&control, &["rate", "--vnic", vnic, "--tx", "50Mbit"]);
        assert_eq!(answer["note"].is_null(), vnic == "known", "{answer}");
    }
    let alias =
        |vnic: &str| elsewhere.link(&format!("ixv-{vnic}")).expect("ask").expect("there").alias;
    assert_eq!(alias("known"), "ix tx 50Mbit,burst=3028");
    assert_eq!(alias("lost"), "");
    owner.kill().expect("killed");
    owner.wait().expect("dead");
    ends(process);
}

/// Linux' socket at an address that vNICs hold in turn, and a client that sends there all the time.
struct Sink {
    linux: UdpSocket,
    done: std::sync::Arc<std::sync::atomic::AtomicBool>,
    sender: Option<std::thread::JoinHandle<()>>,
}

impl Sink {
    fn new(net: &TestNet, ip: Ipv4Addr) -> Sink {
        let (namespace, link) = net.service_link();
        namespace.add_address(link, ip, 16).expect("an address");
        let mac = namespace.link(link).expect("ask").expect("there").mac;
        net.client.add_neighbour(net.client_link(), ip, mac).expect("a neighbour");
        let linux = namespace.run(|| UdpSocket::bind((ip, 9))).expect("Linux' socket");
        let from = net.client.run(|| UdpSocket::bind((CLIENT, 0))).expect("a socket");
        let done = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let told = done.clone();
        let sender = std::thread::spawn(move || {
            while !told.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = from.send_to(b"whose?", (ip, 9));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        Sink { linux, done, sender: Some(sender) }
    }

    fn hears(&self, timeout: Duration) -> bool {
        self.linux.set_read_timeout(Some(timeout)).expect("timeout");
        self.linux.recv(&mut [0; 64]).is_ok()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.done.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.sender.take().map(std::thread::JoinHandle::join);
    }
}

/// A hundred owners are killed. How soon Linux has their traffic is printed; `ix bench rates`
/// measures it. Here it must come at all, and before the vNIC's link is taken down.
#[test]
fn what_a_dead_owner_held_is_linux_s_at_once() {
    let test = "what_a_dead_owner_held_is_linux_s_at_once";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let ip = Ipv4Addr::new(10, 88, 0, 2);
    let (process, control) = share(&net, &["--overlap"]);
    let sink = Sink::new(&net, ip);
    let mut times = Vec::new();
    for _ in 0..100 {
        let mut owner = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let mut client = Client::new(&control);
        let create = format!("{{\"do\":\"vnic-create\",\"name\":\"w\",\"owner\":{}}}", owner.id());
        client.ask(&create).expect("a vNIC");
        let grant = format!(
            "{{\"do\":\"filter-create\",\"vnic\":\"w\",\"filters\":[\"rx udp service {ip}:9\"]}}"
        );
        client.ask(&grant).expect("a filter");
        let end = Instant::now() + PATIENCE;
        while sink.hears(Duration::from_millis(5)) {
            assert!(Instant::now() < end, "Linux hears what a vNIC holds");
        }
        let start = Instant::now();
        owner.kill().expect("killed");
        assert!(sink.hears(PATIENCE), "Linux does not hear what nobody holds any more");
        times.push(start.elapsed());
        owner.wait().expect("dead");
        let vnics = |client: &mut Client| {
            let view = client.ask("{\"do\":\"vnic\"}").expect("a view");
            view["vnics"].as_array().map(Vec::len)
        };
        support::eventually("the vNIC is gone", || vnics(&mut client) == Some(0));
    }
    times.sort();
    println!(
        "until Linux heard: median {:?}, p90 {:?}, most {:?}",
        times[50], times[90], times[99]
    );
    drop(sink);
    ends(process);
}

/// Processor time of a process and all below it.
fn cpu_time_of_all(pid: i32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let children = tasks.flatten().map(|task| task.path().join("children"));
    let children: String = children
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .collect::<Vec<_>>()
        .join(" ");
    let below = children.split_whitespace().filter_map(|pid| pid.parse().ok()).map(cpu_time_of_all);
    below.fold(cpu_time(pid), |sum, time| sum + time)
}

/// `ix bench wakeup` measures how little; here it must be next to nothing, and the tenant must be
/// there when it is asked.
#[test]
fn an_idle_tenant_needs_no_processor_and_wakes_for_a_packet() {
    let test = "an_idle_tenant_needs_no_processor_and_wakes_for_a_packet";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (process, control) = share(&net, &[]);
    let ip = Ipv4Addr::new(10, 88, 0, 2);
    let tenant = tenant(&net, &control, "a", ip, &[]);
    let mut stream = net.client.run(|| support::connect_to(SocketAddrV4::new(ip, 7)));
    for round in 0..3 {
        echo(&mut stream, round, 64);
        let (end, pid) = (Instant::now() + PATIENCE, tenant.process.pid());
        let mut spent = Vec::new();
        // Once is enough: what has to be done after a packet (an acknowledgement, keepalive) is
        // done.
        while !spent.iter().any(|spent| *spent < Duration::from_millis(10)) {
            assert!(Instant::now() < end, "in each second it spent {spent:?}");
            let before = cpu_time_of_all(pid);
            std::thread::sleep(Duration::from_secs(1));
            spent.push(cpu_time_of_all(pid).saturating_sub(before));
        }
    }
    ends(process);
}

/// What makes no sense is refused in a line that says why, and changes nothing.
#[test]
fn what_a_shared_interface_cannot_do_is_refused() {
    let Some(net) = TestNet::new("what_a_shared_interface_cannot_do_is_refused", Nic::Afxdp, 1)
    else {
        return;
    };
    let flags = ["--vnics", "2", "--queues", "2", "--filters", "3", "--speed", "1Gbit"];
    let (process, control) = share(&net, &flags);
    let made = told(&control, &["vnic", "create", "a"]);
    let vnic_key = made["capability"].as_str().expect("a capability").to_owned();
    let filter = "rx tcp service 10.88.0.2:80";
    let grant = told(&control, &["filter", "create", filter, "--vnic", "a"]);
    let key = capability(&grant);
    let forged = "00000000000000000000000000000000";
    let derived = told(&control, &["filter", "derive", &key]);
    let stale = derived["capability"].as_str().expect("a capability").to_owned();
    told(&control, &["filter", "revoke", &stale]);
    for (args, word) in [
        (&["vnic", "create", "a"][..], "vNIC `a` already exists"),
        (&["vnic", "create", "B!"], "invalid name"),
        (&["vnic", "create", "b", "--queues", "3"], "3 queue pairs are not between 1 and 2"),
        (&["vnic", "create", "b", "--queues", "0"], "0 queue pairs"),
        (&["vnic", "create", "b", "--device", "tap", "--queues", "2"], "one queue pair"),
        (&["vnic", "create", "b", "--owner", "4194304"], "cannot watch process"),
        (&["vnic", "delete", "c"], "no vNIC `c`"),
        (&["filter", "create", "rx tcp service 10.88.0.2", "--holder", "x"], "a filter of a"),
        (&["filter", "create", "rx udp service 10.88.0.9", "--vnic", "c"], "no vNIC `c`"),
        (&["filter", "assign", forged, "--to", &vnic_key], "no such capability"),
        (&["filter", "assign", &stale, "--to", &vnic_key], "no such capability"),
        (&["filter", "assign", &key, "--to", forged], "no such capability"),
        (&["filter", "assign", &vnic_key, "--to", &vnic_key], "no such capability"),
        (&["filter", "derive", &key, "rx tcp service 10.88.0.2"], "wider than the granted filter"),
        (&["rate", "--vnic", "a", "--tx", "0bit"], "0 lets nothing pass"),
        (&["rate", "--vnic", "a", "--tx", "2Gbit"], "more than the link's 1Gbit"),
        (&["rate", "--vnic", "a", "--rx", "999bit"], "too little"),
        (&["rate", "--vnic", "a", "--weight", "0"], "weight of 0"),
        (&["rate", "--vnic", "a", "--weight", "1001"], "weight of 1001"),
        (&["rate", "--vnic", "c", "--tx", "1Mbit"], "no vNIC `c`"),
        (&["rate", "--tx", "1Mbit"], "--vnic NAME"),
    ] {
        let why = refused(control.clone(), args);
        assert!(why.contains(word), "{args:?}: {why}");
    }
    let empty = ctl(control.clone(), &["filter", "create", "rx tcp service 10.0.0.9-10.0.0.1"]);
    assert!(!empty.status.success() && errors(&empty).contains("is empty"));
    // As many as may be, and no more; what was refused has left nothing.
    told(&control, &["vnic", "create", "b", "--queues", "2"]);
    assert!(refused(control.clone(), &["vnic", "create", "c"]).contains("at most 2"));
    told(&control, &["filter", "create", "rx udp service 10.88.0.3", "--both", "--vnic", "b"]);
    let many = refused(control.clone(), &["filter", "create", "rx udp service 10.88.0.4"]);
    assert!(many.contains("at most 3"), "{many}");
    let rates = ["rate", "--vnic", "a", "--tx", "1Gbit", "--rx", "10kpps", "--weight", "7"];
    told(&control, &rates);
    let shown = told(&control, &["vnic"]);
    let a = &shown["vnics"][0];
    assert_eq!((a["tx_rate"].as_str(), &a["weight"]), (Some("1Gbit,burst=3028"), &7.into()));
    assert_eq!(shown["filters"].as_array().map(Vec::len), Some(3), "{shown}");
    ends(process);
}

/// What `ix ctl` does a program of ours does as well, of a shared interface and of a dataplane on
/// it.
#[test]
fn a_program_asks_for_all_that_an_operator_may() {
    let test = "a_program_asks_for_all_that_an_operator_may";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (process, control) = share(&net, &["--speed", "1Gbit"]);
    let mut broker = Control::connect(&control).expect("a control socket");
    let made = broker.create_tap_vnic("t", None).expect("a vNIC");
    assert_eq!(made.link, "ixv-t");
    assert!(made.device.starts_with("tap:ixv-t,"), "{}", made.device);
    let made = broker.create_vnic("a", 2, None).expect("another one");
    assert_eq!(made.device, "afxdp:ixv-a");
    broker.rate_of_vnic("a", Some("20kpps"), Some("10Mbit"), Some(7)).expect("within the link's");
    let beyond = broker.rate_of_vnic("a", None, Some("2Gbit"), None).expect_err("beyond");
    assert!(beyond.to_string().contains("link's 1Gbit"), "{beyond}");
    let granted = broker.create_filters(&["rx ip service 10.88.0.9"], None, None).expect("granted");
    assert_eq!(broker.remove_filter(Some(granted[0].filter)), Ok(1));
    let elsewhere = broker.create_filters_of_queue(&["tx ip service 10.88.0.9"], None, 0);
    assert!(matches!(elsewhere, Err(ControlError::Refused(_))), "{elsewhere:?}");
    for name in ["t", "a"] {
        broker.delete_vnic(name).expect("deleted");
    }
    let ip = Ipv4Addr::new(10, 88, 0, 2);
    let tenant = tenant(&net, &control, "b", ip, &[]);
    let mut dataplane = Control::connect(&tenant.stats).expect("a control socket");
    let granted = dataplane
        .create_filters_of_queue(&["tx tcp service 10.88.0.2:7"], Some("web"), 0)
        .expect("granted");
    let shown = told(&tenant.stats, &["vnic"]);
    assert_eq!(
        (&shown["filters"][0]["queue"], &shown["filters"][0]["holder"]),
        (&0.into(), &"web".into())
    );
    dataplane.rate_of_flows("50Mbit").expect("within the link's");
    assert_eq!(told(&tenant.stats, &["vnic"])["flow_rate"], "50Mbit,burst=3028");
    let mut stream = net.client.run(|| support::connect_to(SocketAddrV4::new(ip, 7)));
    echo(&mut stream, 1, 64);
    dataplane.rate_of_flows("none").expect("lifted");
    dataplane.assign_queue(&granted[0].capability, None).expect("all queues");
    assert_eq!(dataplane.remove_filter(None), Ok(1));
    echo(&mut stream, 2, 64);
    ends(process);
}

/// A tenant's link is renamed, and at last removed: its vNIC ends, what it held is Linux's, and no
/// other tenant notices. Then the interface itself is removed.
#[test]
fn a_tenants_link_may_be_renamed_and_removed() {
    let Some(net) = TestNet::new("a_tenants_link_may_be_renamed_and_removed", Nic::Afxdp, 1) else {
        return;
    };
    let (namespace, link) = net.service_link();
    let (process, control) = share(&net, &[]);
    let ips = [Ipv4Addr::new(10, 88, 0, 2), Ipv4Addr::new(10, 88, 0, 3)];
    let mut tenants =
        [tenant(&net, &control, "a", ips[0], &[]), tenant(&net, &control, "b", ips[1], &[])];
    let connect = |ip| net.client.run(|| support::connect_to(SocketAddrV4::new(ip, 7)));
    let mut streams = ips.map(connect);
    streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
    namespace.rename_link("ixv-a", "mine").expect("renamed");
    tenants[0].process.wait_for("ix: link ixv-a is called mine now", PATIENCE);
    streams.iter_mut().for_each(|stream| echo(stream, 2, 64));
    let known = || told(&control, &["vnic"])["vnics"][0]["link"] == "mine";
    support::eventually("the new name is known", known);
    namespace.add_address(link, ips[0], 16).expect("an address");
    namespace.delete_link("mine").expect("removed");
    process.wait_for("ix: vNIC a is gone: its link was removed", PATIENCE);
    tenants[0].process.wait_for("ix: link mine is gone", PATIENCE);
    is_reset(&mut streams[0]);
    echo(&mut streams[1], 3, 64);
    tenants[0].process.check();
    namespace.delete_link(link).expect("removed");
    let (status, said) = process.wait(PATIENCE);
    assert_eq!(status.code(), Some(1), "{said:?}");
    assert!(said.last().is_some_and(|last| last.contains(&format!("{link} is gone"))), "{said:?}");
    tenants[1].process.wait_for("ix: link ixv-b is gone", PATIENCE);
    tenants[1].process.check();
}

/// The shared interface has another Ethernet address and MTU, is renamed, goes down and up, and is
/// removed at last, under load: tenants stay, and are told.
#[test]
fn a_shared_interface_may_be_renamed_go_down_and_vanish() {
    let test = "a_shared_interface_may_be_renamed_go_down_and_vanish";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (namespace, link) = net.service_link();
    let (process, control) = share(&net, &[]);
    let ip = Ipv4Addr::new(10, 88, 0, 2);
    let mut tenant = tenant(&net, &control, "a", ip, &[]);
    let mut stream = net.client.run(|| support::connect_to(SocketAddrV4::new(ip, 7)));
    echo(&mut stream, 1, 64);
    let made = told(&control, &["vnic", "create", "b", "--device", "tap"]);
    assert!(made["device"].as_str().is_some_and(|it| it.starts_with("tap:ixv-b,")), "{made}");
    let mac = [2, 0, 0, 0, 5, 2];
    namespace.set_mac(link, mac).expect("another address");
    process.wait_for(&format!("ix: {link} has another Ethernet address now"), PATIENCE);
    process.wait_for("ix: vNIC b still has the old Ethernet address", PATIENCE);
    let new = told(&control, &["vnic"])["vnics"][1]["device"].to_string();
    assert!(new.contains("mac=02:00:00:00:05:02"), "{new}");
    echo(&mut stream, 1, 64);
    assert_eq!(told(&control, &["vnic"])["vnics"][0]["foreign_mac"], 0);
    namespace.set_mtu(link, 1400).expect("another MTU");
    let mtu = || namespace.link("ixv-a").ok().flatten().map(|link| link.mtu);
    support::eventually("the link has the interface's MTU", || mtu() == Some(1400));
    namespace.rename_link(link, "other").expect("renamed");
    process.wait_for(&format!("ix: the interface {link} is called other now"), PATIENCE);
    echo(&mut stream, 2, 64);
    // What is sent meanwhile is lost, and TCP makes up for it.
    namespace.set_up("other", false).expect("down");
    process.wait_for("ix: the interface other is down", PATIENCE);
    stream.write_all(&[3; 64]).expect("Linux takes it");
    namespace.set_up("other", true).expect("up");
    process.wait_for("ix: the interface other is up again", PATIENCE);
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).expect("the answer at last");
    assert_eq!(answer, [3; 64]);
    // To another namespace: for us that is its end.
    let elsewhere = ix_testbed::Namespace::new().expect("a namespace");
    namespace.move_link("other", &elsewhere).expect("moved");
    let (status, said) = process.wait(PATIENCE);
    assert_eq!(status.code(), Some(1), "{said:?}");
    let last = said.last().expect("a last word");
    assert!(last.contains("the interface other is gone") && last.contains("anew"), "{last}");
    // The tenant lost its link, and stays what it is.
    tenant.process.wait_for("ix: link ixv-a is gone", PATIENCE);
    tenant.process.check();
    assert_eq!(Stats::ask(&tenant.stats).total("flows"), 1, "{}", tenant.name);
}
