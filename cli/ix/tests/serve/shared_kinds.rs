//! Interfaces at whose address a program cannot be served, or which look as if it could not: each
//! that is refused gets one line that says what to do, and stays as it was.
use super::shared_address::{ask, on_linux_address, run_echo};
use super::shared_network::{has_ip, ip};
use crate::support::process::Process;
use crate::support::{CLIENT, PATIENCE, SERVICE, TestNet, build_echo, eventually};
use ix_skip::{Need, skip, skip_part};
use ix_testbed::{Namespace, VethEnd};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;

const PYTHON: &str = "/usr/bin/python3";

/// `ix run` of a program that does nothing; its status and what it says.
fn run_there(net: &TestNet, flags: &[&str]) -> (Option<i32>, String) {
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
        command.arg("run").args(flags).arg("true").output().expect("ix")
    };
    let output = net.server.run(run);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// `ix doctor` says the same of it, and a command if there is one.
#[track_caller]
pub fn judged(net: &TestNet, nic: &str, why: &str, next: &str) {
    let run = || Command::new(env!("CARGO_BIN_EXE_ix")).args(["doctor", "--json"]).output();
    let output = net.server.run(run).expect("ix");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = told["interfaces"].as_array().expect("a list");
    let its = all.iter().find(|of| of["name"] == nic).expect("its verdict");
    let said = |key: &str| its[key].as_str().expect("a text").to_owned();
    assert_eq!(its["usable"], false, "{its}");
    assert!(said("why").contains(why) && said("next").starts_with(next), "{its}");
}

/// It is refused with one line that has all of these words, and keeps its XDP program or none.
#[track_caller]
fn refused(net: &TestNet, nic: &str, tells: &[&str]) {
    let program = || net.server.xdp_program(nic).ok().flatten();
    let before = program();
    refuses(net, &["--nic", nic], tells);
    eventually("the interface is as before", || program() == before);
}

/// A run with these flags is refused with one line that has all of these words.
#[track_caller]
fn refuses(net: &TestNet, flags: &[&str], tells: &[&str]) {
    let (status, said) = run_there(net, flags);
    // Whose address it is may have been said before.
    let lines = said.lines().filter(|line| !line.starts_with("ix: shares ")).count();
    assert_eq!((status, lines), (Some(125), 1), "{flags:?}: {said}");
    assert!(tells.iter().all(|word| said.contains(word)), "{flags:?}: {said}");
}

#[track_caller]
fn shared(net: &TestNet, nic: &str, tells: &[&str]) {
    let (status, said) = run_there(net, &["--nic", nic]);
    assert_eq!(status, Some(0), "{nic}: {said}");
    assert!(tells.iter().all(|word| said.contains(word)), "{nic}: {said}");
    eventually("the interface is as before", || {
        net.server.xdp_program(nic).expect("asked").is_none()
    });
}

/// Whether this kernel has links of a kind; makes one.
fn has_kind(net: &TestNet, test: &str, words: &str) -> bool {
    let run = || Command::new("ip").args(words.split(' ')).output().expect("ip");
    let made = net.server.run(run).status.success();
    if !made {
        skip_part(test, Need::Kernel("a kernel with such links"), format!("no `ip {words}`"));
    }
    made
}

fn net(test: &str) -> Option<TestNet> {
    let net = on_linux_address(test)?;
    if has_ip(&net) {
        return Some(net);
    }
    skip(test, Need::Program("apt-get install iproute2"), "no ip");
    None
}

/// What has no packets of its own, or none that IX understands.
#[test]
fn interfaces_that_cannot_be_shared_get_one_line() {
    let test = "interfaces_that_cannot_be_shared_get_one_line";
    let Some(net) = net(test) else { return };
    refused(&net, "lo", &["cannot use lo", "loopback", "ip link"]);
    refused(&net, "nosuch", &["no such interface"]);
    ip(&net, "addr flush dev ixs0");
    refused(&net, "ixs0", &["Linux has no address there", "--addr"]);
    for words in [
        "tuntap add ixtun mode tun",
        "addr add 10.90.0.2/24 dev ixtun",
        "link add ixbr type bridge",
        "addr add 10.88.0.2/16 dev ixs0",
    ] {
        ip(&net, words);
    }
    refused(&net, "ixtun", &["no Ethernet header", "tunnel"]);
    if has_kind(&net, test, "link add ixwg type wireguard") {
        ip(&net, "addr add 10.95.0.2/24 dev ixwg");
        refused(&net, "ixwg", &["no Ethernet header", "tunnel"]);
    }
    ip(&net, "link set ixs0 down");
    refused(&net, "ixs0", &["`ixs0` is down", "ip link set ixs0 up"]);
    ip(&net, "link set ixs0 up");
    if has_kind(&net, test, "link add ixbond type bond mode active-backup") {
        for words in ["link set ixs0 down", "link set ixs0 master ixbond", "link set ixs0 up"] {
            ip(&net, words);
        }
        refused(&net, "ixs0", &["a port of ixbond", "--nic ixbond"]);
        ip(&net, "link set ixs0 nomaster");
        ip(&net, "link set ixs0 up");
    }
    if has_kind(&net, test, "link add ixvrf type vrf table 10") {
        for words in ["addr add 10.96.0.2/24 dev ixvrf", "link set ixvrf up"] {
            ip(&net, words);
        }
        refused(&net, "ixvrf", &["it is a VRF", "interfaces in it", "--addr"]);
        ip(&net, "link set ixs0 master ixvrf");
        refused(&net, "ixs0", &["in ixvrf, a VRF with routes of its own", "--addr"]);
    }
    ip(&net, "link set ixs0 master ixbr");
    refused(&net, "ixs0", &["a port of ixbr", "--nic ixbr"]);
    judged(&net, "ixs0", "a port of ixbr", "ix run --nic ixbr PROGRAM");
    judged(&net, "ixtun", "a tap or a tunnel", "");
}

/// A bridge, links above another one, and many addresses.
#[test]
fn interfaces_of_many_kinds_can_be_shared() {
    let test = "interfaces_of_many_kinds_can_be_shared";
    let Some(net) = net(test) else { return };
    for words in [
        "link add ixbr type bridge",
        "link set ixs0 master ixbr",
        "link set ixbr up",
        "addr add 10.92.0.2/24 dev ixbr",
        "link add ixmac link ixbr type macvlan mode bridge",
        "link set ixmac up",
    ] {
        ip(&net, words);
    }
    let ten: Vec<String> = (20..30).map(|host| format!("10.91.0.{host}")).collect();
    ten.iter().for_each(|own| ip(&net, &format!("addr add {own}/24 dev ixmac")));
    shared(&net, "ixbr", &["shares 10.92.0.2 with Linux"]);
    shared(&net, "ixmac", &ten.iter().map(String::as_str).collect::<Vec<_>>());
    for (kind, words) in [
        ("ixvlan", "link add link ixbr name ixvlan type vlan id 7"),
        ("ixvx", "link add ixvx type vxlan id 7 dstport 4789 dev ixbr"),
        ("ixbond", "link add ixbond type bond mode active-backup"),
    ] {
        if has_kind(&net, test, words) {
            ip(&net, &format!("link set {kind} up"));
            ip(&net, &format!("addr add 10.94.0.2/24 dev {kind}"));
            shared(&net, kind, &["shares 10.94.0.2 with Linux"]);
            ip(&net, &format!("link del {kind}"));
        }
    }
}

/// Somebody else's XDP program, of which the owner is named.
#[test]
fn the_owner_of_another_program_is_named() {
    let test = "the_owner_of_another_program_is_named";
    let Some(net) = net(test) else { return };
    let other = net.server.run(|| ix_netdev::Exchange::open("ixs0")).expect("nobody has one");
    let own = format!("that of process {}, `", std::process::id());
    refused(&net, "ixs0", &["another XDP program is attached to `ixs0`", &own, "stop it"]);
    judged(&net, "ixs0", &own, "kill ");
    drop(other);
    // A run that has an address of its own there.
    let echo = build_echo();
    let words = ["--addr", "10.88.0.7/16"];
    let run = net.start_shared_with(&words, &[echo.to_str().expect("text"), "64"]).process;
    run.wait_for("ready", PATIENCE);
    let other = format!("that of process {}, `", run.pid());
    refused(&net, "ixs0", &["another XDP program", &other, "ix run"]);
    run.terminate();
    // Runs at the address of Linux: their keeper is nothing to stop.
    let run = run_echo(&net);
    // It exchanges its program when the addresses of Linux change, so only that there is one
    // counts.
    let tells = ["other runs share the address of Linux on `ixs0`", "without --addr"];
    refuses(&net, &["--nic", "ixs0", "--addr", "10.88.0.7/16"], &tells);
    assert!(net.server.xdp_program("ixs0").expect("its program").is_some());
    run.terminate();
}

/// Tells each client from which address it hears of one of the destinations that it names.
const PROGRAM: &str = "
import socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', 8080))
server.listen(4)
print('ready', flush=True)
while True:
    client, peer = server.accept()
    client.recv(100)
    client.sendall(b'served')
    client.close()
";

/// Without a device and an address it is the interface of Linux's default route, if there is one.
#[test]
fn the_default_route_names_the_interface() {
    let test = "the_default_route_names_the_interface";
    let Some(net) = net(test) else { return };
    let refused = |tells: &[&str]| {
        let (status, said) = run_there(&net, &[]);
        assert_eq!((status, said.lines().count()), (Some(125), 1), "{said}");
        assert!(tells.iter().all(|word| said.contains(word)), "{said}");
    };
    let shared = || {
        let (status, said) = run_there(&net, &[]);
        assert!(
            status == Some(0) && said.contains("shares 10.88.0.2 with Linux on ixs0"),
            "{said}"
        );
    };
    refused(&["no device", "no default route", "--nic", "ix doctor"]);
    ip(&net, "route add unreachable default metric 9");
    refused(&["no default route"]);
    ip(&net, "route add default via 10.88.0.1 metric 5");
    shared();
    // Another one, which Linux takes only without the first.
    let far = Namespace::new().expect("a namespace");
    let [near, end] = ["ixv0", "ixv1"].map(VethEnd::new);
    net.server.add_veth(&near, &far, &end).expect("a veth pair");
    far.set_up("ixv1", true).expect("up");
    for words in [
        "addr add 10.89.0.2/24 dev ixv0",
        "link set ixv0 up",
        "route add default via 10.89.0.1 metric 7",
    ] {
        ip(&net, words);
    }
    shared();
    ip(&net, "route replace default metric 5 nexthop via 10.88.0.1 nexthop via 10.89.0.1");
    refused(&["default routes by ", "ixs0", " and by ", "ixv0", "--nic ix"]);
}

/// Neither no default route nor two of them keep a program from its address.
#[test]
fn any_number_of_default_routes_will_do() {
    let test = "any_number_of_default_routes_will_do";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = net(test) else { return };
    let routes: [&[&str]; 3] = [
        &[],
        &["route add default via 10.88.0.1 metric 10"],
        &["route add default via 10.88.0.9 metric 20"],
    ];
    for more in routes {
        more.iter().for_each(|words| ip(&net, words));
        let process = net.start_shared(&[PYTHON, "-c", PROGRAM]).process;
        process.wait_for("ready", PATIENCE);
        let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
        assert_eq!(net.client.run(|| ask(at, "")), "served");
        process.terminate();
    }
    assert_eq!(CLIENT, Ipv4Addr::new(10, 88, 0, 1));
}

/// A port below 1024 without the right to it: the program hears what Linux says, and no port is
/// taken.
#[test]
fn low_ports_need_their_right() {
    let test = "low_ports_need_their_right";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = net(test) else { return };
    let program = PROGRAM.replace("8080", "80");
    let flags = ["--user", "65534"];
    let process = net.start_shared_with(&flags, &[PYTHON, "-c", &program]).process;
    let (status, said) = process.wait(PATIENCE);
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("Permission denied")), "{said:#?}");
    // Root's program has it.
    let process = net.start_shared(&[PYTHON, "-c", &program]).process;
    process.wait_for("ready", PATIENCE);
    let at = SocketAddrV4::new(*SERVICE.ip(), 80);
    assert_eq!(net.client.run(|| ask(at, "")), "served");
    process.terminate();
}

/// What is wrong with a device is said of the device, as it was typed or found, and not of the
/// program.
#[test]
fn a_device_is_blamed_as_it_was_typed() {
    let test = "a_device_is_blamed_as_it_was_typed";
    let Some(net) = on_linux_address(test) else { return };
    net.server.add_route(Ipv4Addr::UNSPECIFIED, 0, CLIENT).expect("a route");
    let echo = build_echo();
    let refused = |flags: &[&str], starts: &str, ends: &str| {
        let mut command = net.server.command(env!("CARGO_BIN_EXE_ix"), None);
        command.arg("run").args(flags).arg(&echo).arg("64");
        let (status, said) = Process::start(command).wait(PATIENCE);
        assert_eq!(status.code(), Some(125), "{said:#?}");
        let is_it = |line: &String| line.starts_with(starts) && line.ends_with(ends);
        assert!(said.iter().any(is_it), "`{starts}…{ends}`: {said:#?}");
    };
    let starts = "ix: cannot use `--nic ixs0,mode=zerocopy`: queue 0 of `ixs0` refuses AF_XDP";
    refused(&["--nic", "ixs0,mode=zerocopy"], starts, "; leave mode=zerocopy out");
    net.server.set_mtu("ixs0", 9300).expect("an MTU");
    let starts = "ix: cannot open ixs0, the interface of the default route: the MTU";
    refused(&[], starts, "`ip link set ixs0 mtu 9216`");
}
