//! Devices in a VLAN, with Linux as the peer: its own VLAN interface at the other end.
use crate::support::command::errors;
use crate::support::frames::{self, stranger};
use crate::support::memif::{MemifNet, answer};
use crate::support::process::Process;
use crate::support::traffic::{close, echo};
use crate::support::{
    self, CLIENT, CLIENT_V6, Nic, PATIENCE, PREFIX, PREFIX_V6, SERVICE, SERVICE_V6, Service,
    TestNet, connect, connect_once_there, domain, eventually,
};
use ix_skip::{Need, skip};
use ix_testbed::Namespace;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// The VLAN interface of Linux.
const LINK: &str = "ixv5";
const VLAN: u16 = 5;

/// The link of a device: how it is made, and what follows `vlan=5` in its text.
#[derive(Clone, Copy, Debug)]
struct Kind {
    nic: Nic,
    options: &'static str,
}

/// Linux merges and cuts segments, or does not; the program is in the driver, or behind it.
const KINDS: [Kind; 4] = [
    Kind { nic: Nic::Tap, options: "" },
    Kind { nic: Nic::Tap, options: ",offloads=off" },
    Kind { nic: Nic::Afxdp, options: "" },
    Kind { nic: Nic::Afxdp, options: ",mode=generic" },
];

fn ip(namespace: &Namespace, words: &str) {
    let output = namespace.command("ip", None).args(words.split(' ')).output().expect("ip");
    assert!(output.status.success(), "ip {words}: {}", errors(&output));
}

/// A net on which a kernel can have VLANs; `None`, said loudly, where it cannot.
fn net(test: &str, nic: Nic) -> Option<TestNet> {
    for program in ["ip", "ethtool"] {
        if Command::new(program).arg("--version").output().is_err() {
            let need = Need::Program("apt-get install iproute2 ethtool");
            skip(test, need, format_args!("no {program}"));
            return None;
        }
    }
    let net = TestNet::new(test, nic, 1)?;
    let words = "link add link lo name ixtry type vlan id 7";
    let tried = net.client.command("ip", None).args(words.split(' ')).output().expect("ip");
    if !tried.status.success() {
        skip(test, Need::Kernel("a kernel with VLANs"), errors(&tried));
        return None;
    }
    ip(&net.client, "link del ixtry");
    Some(net)
}

/// Gives Linux's end an interface in a VLAN, with these addresses of both families.
fn join(net: &TestNet, vlan: u16, name: &str, mtu: u32) {
    let under = net.client_link();
    eventually("the link is there", || net.client.link(under).expect("ask").is_some());
    if net.service_link().1 == "ixs0" {
        // A veth hands tags over beside the frames, where no XDP program sees them.
        let mut ethtool = net.client.command("ethtool", None);
        let output = ethtool.args(["-K", under, "txvlan", "off"]).output().expect("ethtool");
        assert!(output.status.success(), "{}", errors(&output));
        ip(&net.client, &format!("addr flush dev {under}"));
    }
    ip(&net.client, &format!("link set {under} up"));
    ip(&net.client, &format!("link add link {under} name {name} type vlan id {vlan}"));
    ip(&net.client, &format!("link set {name} mtu {mtu} up"));
    net.client.add_address(name, CLIENT, PREFIX).expect("an address");
    net.client.enable_ipv6(name).expect("IPv6");
    net.client.add_address(name, CLIENT_V6, PREFIX_V6).expect("an address");
}

/// Starts `ix-echo` in VLAN 5 at addresses of both families.
fn serve(net: &TestNet, kind: Kind, more: &str, arguments: &[&str]) -> Service {
    let (kind_name, link) = if kind.nic == Nic::Tap { ("tap", "ixt0") } else { ("afxdp", "ixs0") };
    let config = format!(
        "host_addr = \"{}/{PREFIX},{SERVICE_V6}/{PREFIX_V6}\"\ncpu = {:?}\n\
         devices = [\"{kind_name}:{link},vlan={VLAN}{more}{}\"]\n[tcp]\ntime_wait_us = 300000\n",
        SERVICE.ip(),
        net.cpus(),
        kind.options,
    );
    let echo = support::build_echo();
    let program: Vec<_> =
        [echo.to_str().expect("text")].into_iter().chain(arguments.iter().copied()).collect();
    net.start_with(&config, &program)
}

fn services() -> [SocketAddr; 2] {
    [SERVICE.into(), (SERVICE_V6, 7).into()]
}

fn pings(net: &TestNet, at: SocketAddr, size: u32) -> String {
    let mut ping = net.client.command("ping", None);
    ping.args(["-n", "-q", "-c", "3", "-i", "0.2", "-W", "10", "-M", "do", "-s"]);
    let output = ping.arg(size.to_string()).arg(at.ip().to_string()).output().expect("ping");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Both families, short and long, with neighbours found through the tag; the MTU counts without
/// the tag.
#[test]
fn a_vlan_of_linux_is_served() {
    for kind in KINDS {
        let test = "a_vlan_of_linux_is_served";
        let Some(net) = net(test, kind.nic) else { return };
        let service = serve(&net, kind, "", &["64", "--udp", "--addr", "::"]);
        join(&net, VLAN, LINK, 1500);
        service.process.wait_for("ready", PATIENCE);
        for (at, from) in services().into_iter().zip([CLIENT.into(), CLIENT_V6.into()]) {
            let from: std::net::IpAddr = from;
            let stream = connect_once_there(&net.client, at);
            net.client.run(|| {
                let mut stream = stream;
                echo(&mut stream, 1, 64);
                echo(&mut stream, 2, 64 * 500);
                close(stream);
                let socket = UdpSocket::bind((from, 0)).expect("bind");
                socket.connect(at).expect("connect");
                socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
                let (message, mut answer) = ([7; 1452], [0; 2000]);
                socket.send(&message).expect("send");
                let len = socket.recv(&mut answer).expect("an answer");
                assert!(answer[..len] == message, "{kind:?} {at}");
            });
            let most = if at.is_ipv4() { 1472 } else { 1452 };
            let said = pings(&net, at, most);
            assert!(said.contains(" 3 received"), "{kind:?} {at}: {said}");
        }
        let stats = service.stats();
        assert_eq!((stats.total("misrouted"), stats.drops()), (0, 0), "{kind:?}: {stats}");
        service.process.terminate();
    }
}

/// In bulk: on a tap Linux cuts and joins segments behind the tag, and frames of several buffers
/// have one tag.
#[test]
fn streams_go_through_a_vlan_both_ways() {
    const BYTES: u64 = 16 << 20;
    for (kind, mtu) in KINDS.into_iter().flat_map(|kind| [(kind, 1500), (kind, 9000)]) {
        let test = "streams_go_through_a_vlan_both_ways";
        let Some(net) = net(test, kind.nic) else { return };
        let net = net.with_mtu(mtu);
        let more = format!(",mtu={mtu}");
        let service = serve(&net, kind, &more, &["bulk", "--addr", "::"]);
        join(&net, VLAN, LINK, mtu);
        service.process.wait_for("ready", PATIENCE);
        for at in services() {
            close(connect_once_there(&net.client, at));
            for direction in ["send", "recv"] {
                let mut client = net.client.command(support::build_echo(), None);
                client.args(["--client", &at.to_string(), "--linux", "--json"]);
                client.args(["--bulk", direction, "--bytes", &BYTES.to_string()]);
                let (status, said) = Process::start(client).wait(PATIENCE * 3);
                assert!(status.success(), "{kind:?} {mtu} {at} {direction}: {said:?}");
                eprintln!("{kind:?} {mtu} {at} {direction}: {}", said[0]);
            }
        }
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("device_tx_failed"), 0, "{kind:?} {mtu}: {stats}");
    }
}

fn tagged(frame: &[u8], kind: [u8; 2], number: u16) -> Vec<u8> {
    [&frame[..12], &kind, &number.to_be_bytes(), &frame[12..]].concat()
}

/// A tag of another VLAN, and no tag: a tap counts them, AF_XDP leaves them to Linux.
#[test]
fn frames_of_other_vlans_are_not_heard() {
    for kind in KINDS {
        let test = "frames_of_other_vlans_are_not_heard";
        let Some(net) = net(test, kind.nic) else { return };
        let service = serve(&net, kind, "", &["64", "--addr", "::"]);
        join(&net, VLAN, LINK, 1500);
        service.process.wait_for("ready", PATIENCE);
        close(connect_once_there(&net.client, SERVICE.into()));
        let (macs, wire) = (net.macs(), net.wire());
        // No flow has it: it would be answered with a RST, and counted.
        let stray = stranger(macs).frame();
        let before = service.stats();
        let foreign = [
            stray.clone(),
            tagged(&stray, [0x81, 0], VLAN + 1),
            tagged(&stray, [0x81, 0], 0),
            tagged(&stray, [0x81, 0], 4095),
            tagged(&stray, [0x88, 0xa8], VLAN),
            frames::arp(macs, 1, (macs.from, CLIENT), ([0; 6], *SERVICE.ip())),
        ];
        for frame in &foreign {
            wire.send(frame).expect("sent");
        }
        wire.send(&tagged(&stray, [0x81, 0], VLAN)).expect("sent");
        let stray_heard = before.total("drops.no_flow") + 1;
        service.wait_until("the stray segment", PATIENCE, |stats| {
            stats.total("drops.no_flow") == stray_heard
        });
        // Linux may say something of its own without a tag.
        let counted = if kind.nic == Nic::Tap { foreign.len() as u64 } else { 0 };
        service.wait_until("what is foreign", PATIENCE, |stats| {
            stats.total("device_rx_other_vlan") - before.total("device_rx_other_vlan") >= counted
        });
        let stats = service.stats();
        assert!(kind.nic == Nic::Tap || stats.total("device_rx_other_vlan") == 0, "{stats}");
        assert_eq!(stats.drops() - before.drops(), 1, "{kind:?}: {stats}");
        net.client.run(|| {
            let mut stream = connect();
            echo(&mut stream, 3, 64);
            close(stream);
        });
        service.finish(PATIENCE);
    }
}

/// A priority tag names no VLAN: a device in none hears such frames as if they had no tag, and one
/// in a VLAN does not.
#[test]
fn a_priority_tag_is_no_vlan() {
    let test = "a_priority_tag_is_no_vlan";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.serve(&["64"]);
    let (macs, wire) = (net.macs(), net.wire());
    let ping = frames::ping(macs, CLIENT, *SERVICE.ip(), b"which VLAN?");
    let is_answer = |frame: &[u8]| {
        frame.len() > frames::L4
            && frame[12..14] == [8, 0]
            && frame[23] == frames::ICMP
            && frame[frames::L4] == 0
            && frame[6..12] == macs.to
    };
    let asked = |frame: &[u8]| {
        wire.send(frame).expect("sent");
        while let Some(frame) = wire.receive(Duration::from_millis(500)).expect("received") {
            if is_answer(&frame) {
                return true;
            }
        }
        false
    };
    assert!(asked(&tagged(&ping, [0x81, 0], 0)));
    assert!(asked(&tagged(&ping, [0x81, 0], 7 << 13)), "of the highest priority");
    assert_eq!(service.stats().total("drops.eth_vlan"), 0);
    assert!(!asked(&tagged(&ping, [0x81, 0], 1)));
    let twice = tagged(&tagged(&ping, [0x81, 0], 0), [0x81, 0], 0);
    assert!(!asked(&twice));
    assert_eq!(service.stats().total("drops.eth_vlan"), 2);
    service.finish(PATIENCE);
}

/// The capture has the tag, as on the wire, in both directions.
#[test]
fn a_capture_shows_the_tag() {
    let test = "a_capture_shows_the_tag";
    if Command::new("tcpdump").arg("--version").output().is_err() {
        return skip(test, Need::Program("apt-get install tcpdump"), "no tcpdump");
    }
    let kind = KINDS[0];
    let Some(net) = net(test, kind.nic) else { return };
    let service = serve(&net, kind, "", &["64", "--addr", "::"]);
    join(&net, VLAN, LINK, 1500);
    service.process.wait_for("ready", PATIENCE);
    close(connect_once_there(&net.client, SERVICE.into()));
    let file = net.file("ix.pcapng");
    let mut capture = Command::new(env!("CARGO_BIN_EXE_ix"));
    capture.args(["pcap", "--control"]).arg(service.control()).arg("-w").arg(&file);
    let capture = Process::start(capture);
    capture.wait_for("ix: capturing", PATIENCE);
    net.client.run(|| {
        let mut stream = connect();
        echo(&mut stream, 1, 64 * 200);
        close(stream);
    });
    service.comes_to_rest(PATIENCE);
    capture.signal(libc::SIGINT);
    let (status, said) = capture.wait(PATIENCE);
    assert!(status.success(), "{said:?}");
    let count = |filter: &str| {
        let mut tcpdump = Command::new("tcpdump");
        let output = tcpdump.args(["-nn", "-e", "-r"]).arg(&file).args(filter.split(' ')).output();
        let text = String::from_utf8(output.expect("tcpdump").stdout).expect("text");
        text.lines().count()
    };
    for side in ["src", "dst"] {
        let of_vlan = count(&format!("vlan 5 and tcp and {side} host 10.88.0.2"));
        assert!(of_vlan > 5, "{side}: {of_vlan}");
    }
    assert_eq!(count("not vlan 5"), 0);
    service.finish(PATIENCE);
}

/// Linux's own VLAN interface as the device: Linux removes and inserts the tag.
#[test]
fn an_interface_of_linux_in_a_vlan_is_a_device() {
    let test = "an_interface_of_linux_in_a_vlan_is_a_device";
    let Some(net) = net(test, Nic::Afxdp) else { return };
    ip(&net.server, "link add link ixs0 name ixs0.5 type vlan id 5");
    ip(&net.server, "link set ixs0.5 up");
    ip(&net.client, "addr flush dev ixc0");
    ip(&net.client, &format!("link add link ixc0 name {LINK} type vlan id 5"));
    ip(&net.client, &format!("link set {LINK} up"));
    net.client.add_address(LINK, CLIENT, PREFIX).expect("an address");
    let echo_program = support::build_echo();
    let echo_program = echo_program.to_str().expect("text");
    let config = format!(
        "host_addr = \"{}/{PREFIX}\"\ncpu = {:?}\ndevices = [\"ixs0.5\"]\n[tcp]\n\
         time_wait_us = 300000\n",
        SERVICE.ip(),
        net.cpus()
    );
    let service = net.start_with(&config, &[echo_program, "64"]);
    service.process.wait_for("ready", PATIENCE);
    let stream = connect_once_there(&net.client, SERVICE.into());
    net.client.run(|| {
        let mut stream = stream;
        echo(&mut stream, 1, 64 * 500);
        close(stream);
    });
    service.finish(PATIENCE);
}

/// What Linux has of addresses there is for frames without a tag.
#[test]
fn a_tag_does_not_go_with_the_address_of_linux() {
    let test = "a_tag_does_not_go_with_the_address_of_linux";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    net.server.add_address("ixs0", *SERVICE.ip(), PREFIX).expect("an address");
    let mut command = net.server.command(env!("CARGO_BIN_EXE_ix"), None);
    command.args(["run", "--domain", &domain(), "--nic", "ixs0,vlan=5", "true"]);
    let output = command.output().expect("it runs");
    let said = errors(&output);
    assert!(!output.status.success(), "{said}");
    for part in ["cannot share the address of Linux on ixs0", "vlan=5", "--addr", "eth0.5"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Both ends of a memif in one VLAN, and in two.
#[test]
fn a_memif_may_be_in_a_vlan() {
    for (threads, options) in [(1, "vlan=5"), (2, "vlan=5,queues=2")] {
        let Some(net) = MemifNet::new("a_memif_may_be_in_a_vlan", threads) else { return };
        let service = net.serve(options, &["64"]);
        let asker = net.ask(options, &["--connections", "8", "--seconds", "0.5"]);
        let said = answer(asker, PATIENCE);
        eprintln!("{options}: {said}");
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("device_rx_other_vlan"), 0, "{stats}");
    }
    let Some(net) = MemifNet::new("a_memif_may_be_in_a_vlan", 1) else { return };
    let service = net.serve("vlan=5", &["64"]);
    let asker = net.ask("vlan=6", &["--connections", "1", "--seconds", "600"]);
    service
        .wait_until("frames of VLAN 6", PATIENCE, |stats| stats.total("device_rx_other_vlan") > 0);
    assert_eq!(service.stats().total("accepted"), 0);
    asker.process.terminate();
    service.process.terminate();
}
