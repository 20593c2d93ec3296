//! Packets that are longer than a buffer of the dataplane, seen from Linux: both families, both
//! ways, every byte compared.
use super::shared_address::on_linux_address;
use crate::support::memif::{MemifNet, answer};
use crate::support::process::Process;
use crate::support::stats::Stats;
use crate::support::traffic::{close, echo};
use crate::support::{
    self, CLIENT, CLIENT_V6, Nic, PATIENCE, PREFIX, PREFIX_V6, SERVICE, SERVICE_V6, TestNet,
    connect_once_there,
};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MTU: u32 = 9000;
/// Every address of both families.
const ANY: &str = "::";

/// The service at port 7, of either family.
fn services() -> [SocketAddr; 2] {
    [SERVICE.into(), (SERVICE_V6, 7).into()]
}

#[test]
fn streams_go_in_long_segments_both_ways() {
    const BYTES: u64 = 32 << 20;
    for nic in Nic::ALL {
        let test = "streams_go_in_long_segments_both_ways";
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let net = net.with_mtu(MTU);
        let service = net.serve_v6(&["bulk", "--addr", ANY]);
        for at in services() {
            close(connect_once_there(&net.client, at));
            for direction in ["send", "recv", "both"] {
                let before = service.stats().total("tx_packets");
                let mut client = net.client.command(support::build_echo(), None);
                client.args(["--client", &at.to_string(), "--linux", "--json"]);
                client.args(["--bulk", direction, "--bytes", &BYTES.to_string()]);
                let (status, said) = support::process::Process::start(client).wait(PATIENCE * 3);
                assert!(status.success(), "{nic:?} {at} {direction}: {said:?}");
                eprintln!("{nic:?} {at} {direction}: {}", said[0]);
                if direction == "recv" {
                    let packets = service.stats().total("tx_packets") - before;
                    assert!(BYTES / packets > 4000, "{nic:?} {at}: {packets} packets");
                }
            }
        }
        service.finish(PATIENCE);
    }
}

/// At Linux's own address too, for the run that has the queues, for one that has a link, and where
/// the XDP program runs behind the driver.
#[test]
fn streams_go_in_long_segments_where_the_address_is_shared() {
    const BYTES: u64 = 16 << 20;
    let test = "streams_go_in_long_segments_where_the_address_is_shared";
    let Some(net) = on_linux_address(test) else { return };
    let net = net.with_mtu(MTU);
    let echo = support::build_echo();
    let start = |device: &str, port: u16| {
        let control = net.file(&format!("{port}.sock"));
        let mut command = net.server.command(env!("CARGO_BIN_EXE_ix"), None);
        command.args(["run", "--domain", &support::domain(), "--nic", device, "--control"]);
        command.arg(&control).arg(&echo).args(["bulk", "--port", &port.to_string()]);
        let process = Process::start(command);
        process.wait_for("ready", PATIENCE);
        (process, control, port)
    };
    let goes = |(process, control, port): &(Process, PathBuf, u16)| {
        let at = SocketAddr::from((*SERVICE.ip(), *port));
        close(connect_once_there(&net.client, at));
        for direction in ["send", "recv"] {
            let before = Stats::ask(control).total("tx_packets");
            let mut client = net.client.command(&echo, None);
            client.args(["--client", &at.to_string(), "--linux", "--json"]);
            client.args(["--bulk", direction, "--bytes", &BYTES.to_string()]);
            let (status, said) = Process::start(client).wait(PATIENCE * 3);
            assert!(status.success(), "{port} {direction}: {said:?}; {process}");
            if direction == "recv" {
                let packets = Stats::ask(control).total("tx_packets") - before;
                assert!(BYTES / packets > 4000, "{port}: {packets} packets");
            }
        }
    };
    let both = [start("ixs0", 8001), start("ixs0", 8002)];
    both.iter().for_each(goes);
    both.into_iter().for_each(|(process, ..)| process.terminate());
    let generic = start("ixs0,mode=generic", 8003);
    goes(&generic);
    generic.0.terminate();
}

#[test]
fn pings_that_may_not_be_cut_are_answered() {
    let test = "pings_that_may_not_be_cut_are_answered";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let net = net.with_mtu(MTU);
        let service = net.serve_v6(&["1", "--addr", ANY]);
        for at in services() {
            close(connect_once_there(&net.client, at));
            for (size, cut) in [("56", "do"), ("1800", "do"), ("8900", "do"), ("65000", "dont")] {
                let mut ping = net.client.command("ping", None);
                ping.args(["-n", "-q", "-c", "3", "-i", "0.2", "-W", "10", "-M", cut, "-s", size]);
                let output = match ping.arg(at.ip().to_string()).output() {
                    Ok(output) => output,
                    Err(e) => {
                        let need = Need::Program("apt-get install iputils-ping");
                        return skip(test, need, format_args!("cannot run ping: {e}"));
                    }
                };
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let all = output.status.success() && text.contains(" 3 received");
                assert!(all, "{nic:?} {at} {size}: {text}");
            }
        }
        service.finish(PATIENCE);
    }
}

/// What fits into a packet goes in one, and what does not in long fragments.
#[test]
fn datagrams_of_every_length_go_both_ways() {
    let test = "datagrams_of_every_length_go_both_ways";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let net = net.with_mtu(MTU);
        let service = net.serve_v6(&["64", "--udp", "--fragments", "--addr", ANY]);
        for (at, from) in services().into_iter().zip([IpAddr::from(CLIENT), CLIENT_V6.into()]) {
            net.client.run(|| {
                let socket = UdpSocket::bind((from, 0)).expect("bind");
                socket.connect(at).expect("connect");
                let mut answer = vec![0; 70_000];
                // Until the address is the service's.
                socket.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
                let end = Instant::now() + PATIENCE;
                while socket.send(&[1; 64]).is_err() || socket.recv(&mut answer).is_err() {
                    assert!(Instant::now() < end, "{nic:?} {at}: no answer");
                }
                std::thread::sleep(Duration::from_millis(200));
                while socket.recv(&mut answer).is_ok() {}
                socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
                for size in [64, 1472, 1800, 8900, 8952, 8972, 8973, 32_768, 65_507] {
                    let message: Vec<u8> = (0..size).map(|i| (i * 7 / 5) as u8).collect();
                    socket.send(&message).expect("send");
                    let len = socket.recv(&mut answer).expect("an answer");
                    assert!(answer[..len] == message, "{nic:?} {at}: {size} bytes, {len} back");
                }
            });
        }
        service.process.terminate();
    }
}

/// A router whose next link takes 1,500 octets says so (RFC 1191, RFC 8201).
#[test]
fn a_path_that_narrows_to_the_usual_length_is_found() {
    const FAR: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 99, 0, 2)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 2)),
    ];
    const NEAR: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 1)),
    ];
    for nic in Nic::ALL {
        let test = "a_path_that_narrows_to_the_usual_length_is_found";
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let net = net.with_mtu(MTU);
        let far = Namespace::new().expect("a host behind the router");
        let end = |name| VethEnd::new(name).mtu(MTU);
        far.add_veth(&end("far0"), &net.client, &end("mid0")).expect("a link");
        let service = net.serve_v6(&["1", "--addr", ANY]);
        for (namespace, link, at) in [(&far, "far0", FAR), (&net.client, "mid0", NEAR)] {
            namespace.set_up(link, true).expect("up");
            namespace.enable_ipv6(link).expect("IPv6");
            namespace.add_address(link, at[0], PREFIX).expect("an address");
            namespace.add_address(link, at[1], PREFIX_V6).expect("an address");
        }
        net.client.set_sysctl("net/ipv4/ip_forward", "1").expect("it forwards");
        net.client.set_sysctl("net/ipv6/conf/all/forwarding", "1").expect("it forwards");
        for (number, at) in services().into_iter().enumerate() {
            let bits = if at.is_ipv6() { 128 } else { 32 };
            far.add_route(at.ip(), bits, NEAR[number]).expect("a route");
            close(connect_once_there(&net.client, at));
            let mut stream = connect_once_there(&far, at);
            far.run(|| echo(&mut stream, 1, 20_000));
            for (namespace, link) in [(&net.client, "mid0"), (&far, "far0")] {
                namespace.set_mtu(link, 1500).expect("narrow");
            }
            far.run(|| {
                echo(&mut stream, 2, 60_000);
                close(stream);
            });
            let reduced = service.stats().total("tcp.pmtu_reduced");
            assert_eq!(reduced, number as u64 + 1, "{nic:?} {at}");
            for (namespace, link) in [(&net.client, "mid0"), (&far, "far0")] {
                namespace.set_mtu(link, MTU).expect("wide");
            }
        }
        service.finish(PATIENCE);
    }
}

/// Both ends on IX, over shared memory: one copies, the other does not.
#[test]
fn long_frames_go_over_shared_memory() {
    for v6 in [false, true] {
        let test = "long_frames_go_over_shared_memory";
        let net = if v6 { MemifNet::v6(test) } else { MemifNet::new(test, 1) };
        let Some(net) = net else { return };
        let mtu = format!("mtu={MTU}");
        let service = net.serve(&mtu, &["bulk", "--addr", if v6 { ANY } else { "0.0.0.0" }]);
        let bytes = 16u64 << 20;
        let load = ["--bulk", "both", "--bytes", &bytes.to_string()];
        let result = answer(net.ask(&mtu, &load), Duration::from_secs(60));
        let both = (&result["bytes_sent"], &result["bytes_received"]);
        assert_eq!(both, (&bytes.into(), &bytes.into()), "{result}");
        let packets = service.stats().total("tx_packets");
        assert!(bytes / packets > 3000, "{packets} packets");
        service.finish(PATIENCE);
    }
}
