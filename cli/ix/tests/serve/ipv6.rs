//! IPv6, seen from Linux: ping, TCP both ways, UDP, refusals, a path with a smaller MTU, and an
//! address that another host has.
use super::vnic::says;
use crate::support::memif::{MemifNet, answer};
use crate::support::traffic::{close, echo};
use crate::support::{self, CLIENT_V6, Nic, PATIENCE, PREFIX_V6, SERVICE_V6, Service, TestNet};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const ANY: &str = "::";
/// The network of both ends.
const PREFIX_TEXT: &str = "2001:db8:88::/64";

fn service_at(port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(SERVICE_V6, port, 0, 0)
}

fn connect(net: &TestNet) -> TcpStream {
    support::connect_once_there(&net.client, service_at(7).into())
}

#[test]
fn pings_and_messages_of_every_size_are_answered() {
    let test = "pings_and_messages_of_every_size_are_answered";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve_v6(&["1", "--addr", ANY]);
        let mut stream = connect(&net);
        for size in [1, 2, 1000, 1440, 1441, 5000, 60_000] {
            echo(&mut stream, size, size as usize);
        }
        close(stream);
        // The same listener serves the other family, as on Linux.
        close(net.connect());
        for size in ["56", "1400", "1460", "3000", "65000"] {
            let mut ping = net.client.command("ping", None);
            ping.args(["-6", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "10", "-s", size]);
            let output = match ping.arg(SERVICE_V6.to_string()).output() {
                Ok(output) => output,
                Err(e) => {
                    let need = Need::Program("apt-get install iputils-ping");
                    return skip(test, need, format_args!("cannot run ping: {e}"));
                }
            };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains(" 3 received"), "{nic:?}: {text}");
        }
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("accepted"), 2);
    }
}

#[test]
fn who_listens_at_one_family_is_not_found_by_the_other() {
    let test = "who_listens_at_one_family_is_not_found_by_the_other";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.serve_v6(&["64"]);
    close(net.connect());
    wait_for_address(&net);
    let refused = net.client.run(|| TcpStream::connect_timeout(&service_at(7).into(), PATIENCE));
    assert_eq!(refused.expect_err("0.0.0.0 is IPv4").kind(), ErrorKind::ConnectionRefused);
    service.finish(PATIENCE);
}

/// Waits until the service answers for its IPv6 address.
fn wait_for_address(net: &TestNet) {
    let end = Instant::now() + PATIENCE;
    let refused = || net.client.run(|| TcpStream::connect_timeout(&service_at(1).into(), PATIENCE));
    while refused().expect_err("nobody listens").kind() != ErrorKind::ConnectionRefused {
        assert!(Instant::now() < end, "the address is not there");
    }
}

#[test]
fn datagrams_are_answered_and_closed_ports_refuse() {
    let test = "datagrams_are_answered_and_closed_ports_refuse";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve_v6(&["64", "--udp", "--addr", ANY]);
        wait_for_address(&net);
        net.client.run(|| {
            let socket = UdpSocket::bind((CLIENT_V6, 0)).expect("bind");
            socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
            socket.connect(service_at(7)).expect("connect");
            let mut answer = [0; 2000];
            for size in [64, 65, 1000, 1452] {
                let message: Vec<u8> = (0..size).map(|i| i as u8).collect();
                socket.send(&message).expect("send");
                let len = socket.recv(&mut answer).expect("an answer");
                assert_eq!(answer[..len], message, "{nic:?}");
            }
            socket.connect(service_at(9)).expect("connect");
            socket.send(b"anybody?").expect("send");
            let e = socket.recv(&mut answer).expect_err("port unreachable");
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{nic:?}");
        });
        let stats = service.stats();
        assert_eq!(stats.total("drops.udp_no_socket"), 1);
        service.process.terminate();
    }
}

/// RFC 8200 section 4.5: what is longer than a packet comes and goes in fragments, up to the length
/// that Linux sends. It puts them together by its own code, and refuses what is not right.
#[test]
fn long_datagrams_go_in_fragments_both_ways() {
    let test = "long_datagrams_go_in_fragments_both_ways";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve_v6(&["64", "--udp", "--fragments", "--addr", ANY]);
        wait_for_address(&net);
        net.client.run(|| {
            let socket = UdpSocket::bind((CLIENT_V6, 0)).expect("bind");
            socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
            socket.connect(service_at(7)).expect("connect");
            let mut answer = vec![0; 70_000];
            // The first goes in one piece, and from 1961 on they need several buffers.
            for size in [1452, 1453, 1960, 1961, 4000, 9000, 32_768, 65_507] {
                let message: Vec<u8> = (0..size).map(|i| (i * 7 / 5) as u8).collect();
                socket.send(&message).expect("send");
                let len = socket.recv(&mut answer).expect("an answer");
                assert_eq!((len, &answer[..len]), (size, &message[..]), "{nic:?}");
            }
        });
        let stats = service.stats();
        assert_eq!(stats.total("drops.ip6_fragment"), 0, "{nic:?}: {stats}");
        service.process.terminate();
    }
}

/// The group in which neighbours ask for the service's address (RFC 4291 section 2.7.1).
fn service_group() -> Ipv6Addr {
    let [.., high, low] = SERVICE_V6.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// Runs a tool in the client's namespace; what it prints.
fn tool(net: &TestNet, words: &str) -> String {
    let mut words = words.split(' ');
    let mut command = net.client.command(words.next().expect("a tool"), None);
    let output = command.args(words).output().expect("iproute2 is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    text
}

/// A switch that sends groups only to those who listen to them (RFC 4541) knows our group,
/// whichever version of MLD it asks in: a bridge of Linux, which floods nothing to the tap.
#[test]
fn a_switch_that_learns_groups_reaches_us() {
    let test = "a_switch_that_learns_groups_reaches_us";
    for version in ["1", "2"] {
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let flags = net.flags_v6();
        let flags = flags.each_ref().map(String::as_str);
        let service = net.serve_with(&flags, &["64", "--addr", ANY]);
        let asks = "mcast_query_interval 200 mcast_startup_query_interval 100 \
                    mcast_query_response_interval 100";
        let bridge = format!(
            "ip link add switch0 type bridge mcast_snooping 1 mcast_querier 1 {asks} \
             mcast_mld_version {version}"
        );
        tool(&net, &bridge);
        tool(&net, "ip link set ixt0 master switch0");
        tool(&net, "bridge link set dev ixt0 mcast_flood off");
        net.client.enable_ipv6("switch0").expect("IPv6");
        net.client.add_address("switch0", CLIENT_V6, PREFIX_V6).expect("an address");
        net.client.set_up("switch0", true).expect("up");
        let group = service_group().to_string();
        support::eventually("the switch knows the group", || {
            tool(&net, "bridge mdb show dev switch0")
                .lines()
                .any(|line| line.contains("port ixt0") && line.contains(&group))
        });
        close(connect(&net));
        service.finish(PATIENCE);
    }
}

/// On an interface that Linux has as well, questions go to Linux: it is in our groups, too.
#[test]
fn linux_reports_the_groups_of_an_interface_that_it_has() {
    let test = "linux_reports_the_groups_of_an_interface_that_it_has";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    net.server.enable_ipv6("ixs0").expect("IPv6");
    let service = net.serve_v6(&["64", "--addr", ANY]);
    let groups = || {
        let mut ip = net.server.command("ip", None);
        let output = ip.args(["-6", "maddr", "show", "dev", "ixs0"]).output().expect("iproute2");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let group = service_group().to_string();
    assert!(groups().contains(&group), "{}", groups());
    service.finish(PATIENCE);
    support::eventually("it leaves the group", || !groups().contains(&group));
}

#[test]
fn a_program_on_ix_connects() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("a_program_on_ix_connects", nic, 1) else { return };
        let program = support::build_echo();
        let to = format!("[{CLIENT_V6}]:4007");
        let args = ["--client", &to, "--connections", "4", "--seconds", "0.5", "--json"];
        let words = [&[program.to_str().expect("text")][..], &args].concat();
        let flags = net.flags_v6();
        let serving = |service: &Service| {
            net.enable_v6();
            let at = SocketAddrV6::new(CLIENT_V6, 4007, 0, 0);
            let listener = net.client.run(|| TcpListener::bind(at)).expect("listen");
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    std::thread::spawn(move || echo_all(stream.expect("a connection")));
                }
            });
            service.process.wait_for("{\"connections\"", PATIENCE)
        };
        let service = net.start_env(&[], &flags.each_ref().map(String::as_str), &words);
        let result = serving(&service);
        let holds = |what: &str| result.contains(what);
        assert!(holds("\"errors\":0,") && !holds("\"messages\":0,"), "{nic:?}: {result}");
    }
}

fn echo_all(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

/// A router with a narrow link says how long packets may be (RFC 8201).
#[test]
fn a_narrow_path_is_found() {
    const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 2);
    const NEAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 1);
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("a_narrow_path_is_found", nic, 1) else { return };
        let far = Namespace::new().expect("a host behind the router");
        far.add_veth(&VethEnd::new("far0"), &net.client, &VethEnd::new("mid0")).expect("a link");
        let service = net.serve_v6(&["1", "--addr", ANY]);
        for (namespace, link, at) in [(&far, "far0", FAR), (&net.client, "mid0", NEAR)] {
            namespace.set_up(link, true).expect("up");
            namespace.enable_ipv6(link).expect("IPv6");
            namespace.add_address(link, at, PREFIX_V6).expect("an address");
        }
        net.client.set_sysctl("net/ipv6/conf/all/forwarding", "1").expect("it forwards");
        far.add_route(SERVICE_V6, 128, NEAR).expect("a route");
        close(connect(&net));
        far.run(|| {
            let mut stream = TcpStream::connect(service_at(7)).expect("through the router");
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            echo(&mut stream, 1, 1000);
            // The link becomes narrow where only the router knows of it.
            net.client.set_mtu("mid0", 1300).expect("narrow");
            echo(&mut stream, 2, 60_000);
            close(stream);
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("tcp.pmtu_reduced"), 1, "{nic:?}: {stats}");
    }
}

/// Both ends on IX, over shared memory.
#[test]
fn messages_and_bulk_go_over_shared_memory() {
    let Some(net) = MemifNet::v6("messages_and_bulk_go_over_shared_memory") else { return };
    let service = net.serve("", &["64", "--addr", ANY]);
    let load = ["--connections", "16", "--seconds", "0.5"];
    let result = answer(net.ask("", &load), PATIENCE);
    assert_eq!(result["errors"], 0, "{result}");
    assert!(result["msgs_per_s"].as_f64().expect("a rate") > 1000.0, "{result}");
    service.finish(PATIENCE);
    let service = net.serve("", &["bulk", "--addr", ANY]);
    let bytes = 16 << 20;
    let load = ["--bulk", "both", "--bytes", &bytes.to_string()];
    let result = answer(net.ask("", &load), Duration::from_secs(60));
    assert_eq!((&result["bytes_sent"], &result["bytes_received"]), (&bytes.into(), &bytes.into()));
    service.finish(PATIENCE);
}

#[test]
fn an_address_that_another_host_has_is_not_used() {
    let test = "an_address_that_another_host_has_is_not_used";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let flags = net.flags_v6();
        let flags = flags.each_ref().map(String::as_str);
        let take = || {
            net.enable_v6();
            net.client.add_address(net.client_link(), SERVICE_V6, PREFIX_V6).expect("taken");
        };
        if nic == Nic::Afxdp {
            take();
        }
        let echo_program = support::build_echo();
        let words = [echo_program.to_str().expect("text"), "64"];
        let service = net.start_env(&[], &flags, &words);
        if nic == Nic::Tap {
            take();
        }
        let said = service.process.wait_for("ix: the address", PATIENCE);
        assert!(said.contains(&format!("the address {SERVICE_V6} is not used")), "{said}");
        service
            .wait_until("it is counted", PATIENCE, |stats| stats.total("address_conflicts") == 1);
        service.process.wait_for("ready", PATIENCE);
        // The other family is served.
        close(net.connect());
        service.finish(PATIENCE);
    }
}

/// Filters of both families on one dataplane. Neighbour Discovery about a filter's address passes
/// with it, and what a revoked filter took is not heard any more.
#[test]
fn filters_name_ipv6_addresses_and_ports() {
    let test = "filters_name_ipv6_addresses_and_ports";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve_v6(&["64", "--addr", ANY]);
        let mut stream = connect(&net);
        echo(&mut stream, 1, 64);
        let filter = format!("rx tcp service [{SERVICE_V6}]:7 peer {PREFIX_TEXT}");
        says(&service, &["filter", "create", &filter, "--both"]);
        echo(&mut stream, 2, 64);
        // Linux asks for the address anew, and finds it.
        let link = net.client_link();
        tool(&net, &format!("ip -6 neigh flush dev {link}"));
        close(connect(&net));
        let shown = says(&service, &["vnic"]);
        let text = format!("rx tcp6 service [{SERVICE_V6}]:7 peer {PREFIX_TEXT}");
        assert_eq!(shown["filters"][0]["text"], text.as_str(), "{shown}");
        // The other family and other protocols have no filter: a tap's drops are counted, and
        // AF_XDP leaves them to Linux.
        let before = service.stats().total("drops.rx_filtered");
        let mut ping = net.client.command("ping", None);
        ping.args(["-6", "-n", "-q", "-c", "1", "-W", "1"]).arg(SERVICE_V6.to_string());
        assert!(!ping.output().expect("ping").status.success(), "{nic:?}: answered");
        if nic == Nic::Tap {
            assert!(service.stats().total("drops.rx_filtered") > before);
        }
        let filter = format!("rx ip6 proto 58 service {SERVICE_V6}");
        says(&service, &["filter", "create", &filter, "--both"]);
        assert!(ping.output().expect("ping").status.success(), "{nic:?}: not answered");
        echo(&mut stream, 3, 64);
        says(&service, &["filter", "remove", "--all"]);
        close(net.connect());
        close(stream);
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("address_conflicts"), 0);
    }
}

/// RFC 6437: all packets of a flow have one label, the handshake's as well, and two flows two.
#[test]
fn packets_of_a_flow_have_one_label() {
    let Some(net) = TestNet::new("packets_of_a_flow_have_one_label", Nic::Tap, 1) else { return };
    let service = net.serve_v6(&["64", "--addr", ANY]);
    wait_for_address(&net);
    let wire = net.wire();
    let mut streams = [connect(&net), connect(&net)];
    for round in 0..10 {
        streams.iter_mut().for_each(|stream| echo(stream, round, 64));
    }
    let mut labels: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    while let Some(frame) = wire.receive(Duration::from_millis(200)).expect("receives") {
        let is_ours = frame.get(22..38) == Some(&SERVICE_V6.octets()[..]);
        if frame.get(12..14) != Some(&[0x86, 0xdd]) || !is_ours || frame[20] != 6 {
            continue;
        }
        let label = u32::from_be_bytes([0, frame[15] & 0x0f, frame[16], frame[17]]);
        let port = u16::from_be_bytes([frame[56], frame[57]]);
        labels.entry(port).or_default().push(label);
    }
    let ports = streams.each_ref().map(|stream| stream.local_addr().expect("bound").port());
    let [one, other] = ports.map(|port| labels.remove(&port).expect("its packets"));
    for of_flow in [&one, &other] {
        assert!(of_flow.len() > 10 && of_flow.iter().all(|label| *label == of_flow[0]));
        assert_ne!(of_flow[0], 0, "0 is no label");
    }
    assert_ne!(one[0], other[0]);
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}
