//! Filters and rates of a running dataplane, with real Linux at the other end.
use crate::support;
use crate::support::command::errors;
use crate::support::frames;
use crate::support::stats::Stats;
use crate::support::traffic::{Steady, close, echo};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const ECHO_ONLY: &str = "rx tcp service 10.88.0.2:7 peer 10.88.0.0/16";

/// The socket beside the operators', for those who may only look.
fn read_only(service: &Service) -> PathBuf {
    service.control().with_extension("ro.sock")
}

pub fn ctl(control: PathBuf, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    let command = command.arg("ctl").args(args).arg("--control").arg(control);
    command.output().expect("the command starts")
}

/// What an operator is answered.
#[track_caller]
pub fn says(service: &Service, args: &[&str]) -> Value {
    let json: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let output = ctl(service.control().to_owned(), &json);
    assert!(output.status.success(), "{args:?}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Why somebody is refused, in one line.
#[track_caller]
pub fn refused(control: PathBuf, args: &[&str]) -> String {
    let output = ctl(control, args);
    assert!(!output.status.success(), "{args:?}");
    let text = errors(&output);
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    text
}

pub fn capability(answer: &Value) -> String {
    answer["filters"][0]["capability"].as_str().expect("a capability").to_owned()
}

#[test]
fn a_filter_carries_its_own_and_nothing_when_it_is_revoked() {
    let test = "a_filter_carries_its_own_and_nothing_when_it_is_revoked";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve(&["64"]);
        let mut stream = net.connect();
        echo(&mut stream, 1, 64);
        let made = says(&service, &["filter", "create", ECHO_ONLY, "--both", "--holder", "web"]);
        echo(&mut stream, 2, 64);
        // Other ports and protocols are not heard: a tap drops them, and AF_XDP leaves them to
        // Linux.
        let (wire, macs) = (net.wire(), net.macs());
        let (from, to) = (SocketAddrV4::new(CLIENT, 999), SocketAddrV4::new(*SERVICE.ip(), 53));
        let before = service.stats().total("drops.rx_filtered");
        if nic == Nic::Tap {
            wire.send(&frames::udp(macs, from, to, b"hello")).expect("sends");
            wire.send(&frames::ping(macs, CLIENT, *SERVICE.ip(), b"hello")).expect("sends");
            let heard = |s: &Stats| s.total("drops.rx_filtered") >= before + 2;
            service.wait_until("both were filtered", PATIENCE, heard);
        }
        echo(&mut stream, 3, 64);
        let shown = says(&service, &["vnic"]);
        assert_eq!(shown["filters"].as_array().map(Vec::len), Some(2), "{shown}");
        assert!(!shown.to_string().contains(&capability(&made)), "capabilities stay hidden");
        revoke_and_lift(nic, &service, &mut stream, &made);
        close(stream);
        service.finish(PATIENCE);
    }
}

/// The holder of a capability may end what it stands for; an operator may give everything back.
fn revoke_and_lift(nic: Nic, service: &Service, stream: &mut TcpStream, made: &Value) {
    let key = capability(made);
    let part = says(service, &["filter", "derive", &key]);
    let derived = part["capability"].as_str().expect("a capability").to_owned();
    for forged in ["00000000000000000000000000000000", "x", &key[1..]] {
        let why = refused(read_only(service), &["filter", "revoke", forged]);
        assert!(why.contains("no such capability"), "{why}");
    }
    let gone = ctl(read_only(service), &["filter", "revoke", &key]);
    assert!(gone.status.success(), "the holder need not be an operator: {}", errors(&gone));
    let why = refused(service.control().to_owned(), &["filter", "revoke", &derived]);
    assert!(why.contains("no such capability"), "it went with what it came from: {why}");
    let before = service.stats().total("drops.rx_filtered");
    stream.write_all(&[7; 64]).expect("Linux takes it");
    let mut answer = [0; 64];
    if nic == Nic::Tap {
        let heard = |s: &Stats| s.total("drops.rx_filtered") > before;
        service.wait_until("nothing is heard any more", PATIENCE, heard);
    }
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
    assert!(stream.read(&mut answer).is_err(), "answered without a right to");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    says(service, &["filter", "remove", "--all"]);
    // Linux sends again, and TCP goes on where it was.
    stream.read_exact(&mut answer).expect("heard at last");
    assert_eq!(answer, [7; 64]);
}

#[test]
fn what_is_not_sent_is_counted_by_reason() {
    let Some(net) = TestNet::new("what_is_not_sent_is_counted_by_reason", Nic::Tap, 1) else {
        return;
    };
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    // It hears its own port and may answer from others only: a spoofer's packets.
    says(&service, &["filter", "create", "tx tcp service 10.88.0.2:8"]);
    stream.write_all(&[1; 64]).expect("Linux takes it");
    service.wait_until("nothing leaves", PATIENCE, |s| s.total("drops.tx_foreign_port") > 0);
    says(&service, &["filter", "create", "tx tcp service 10.88.0.2:7"]);
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).expect("sent again");
    let drops = says(&service, &["vnic"])["drops"].clone();
    assert!(drops["tx_foreign_port"].as_u64() > Some(0) && drops["tx_foreign_mac"] == 0, "{drops}");
    says(&service, &["filter", "remove", "--all"]);
    close(stream);
    service.finish(PATIENCE);
}

#[test]
fn what_is_held_or_makes_no_sense_is_refused_by_name() {
    let test = "what_is_held_or_makes_no_sense_is_refused_by_name";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.serve(&["64"]);
    says(&service, &["filter", "create", ECHO_ONLY, "--holder", "web"]);
    let operator = service.control().to_owned();
    for (args, word) in [
        (
            &["filter", "create", "rx tcp service 10.88.0.2", "--holder", "kv"][..],
            "a filter of web",
        ),
        (&["filter", "create", "tx ip service 10.88.0.1"], "Linux, which has 10.88.0.1"),
        (&["filter", "create", "rx eth"], "Linux"),
        (&["filter", "remove", "99"], "no filter 99"),
        (&["rate", "--tx", "0bit"], "0 lets nothing pass"),
        (&["rate", "--rx", "fast"], "invalid rate"),
    ] {
        let why = refused(operator.clone(), args);
        assert!(why.contains(word), "{args:?}: {why}");
    }
    let why = refused(read_only(&service), &["rate", "--tx", "1Mbit"]);
    assert!(why.contains("for looking only"), "{why}");
    let usage = ctl(operator, &["filter", "create", "rx everything"]);
    assert!(errors(&usage).contains("eth, ip, tcp, udp, ip6, tcp6 or udp6"), "{}", errors(&usage));
    service.finish(PATIENCE);
}

/// A revoked capability is worth nothing when its holder hears so: what the service would send from
/// then on stays inside, whatever is asked of it.
#[test]
fn what_is_revoked_does_not_leave_any_more() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("what_is_revoked_does_not_leave_any_more", nic, 1) else {
            return;
        };
        let service = net.serve(&["64"]);
        let wire = net.wire();
        for round in 0..5 {
            let mut stream = net.connect();
            let made = says(&service, &["filter", "create", "tx tcp service 10.88.0.2:7"]);
            echo(&mut stream, round, 64);
            // Messages are under way all the time.
            let mut sender = stream.try_clone().expect("a copy");
            let flood = std::thread::spawn(move || {
                while sender.write_all(&[5; 64]).is_ok() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let gone = ctl(read_only(&service), &["filter", "revoke", &capability(&made)]);
            assert!(gone.status.success(), "{}", errors(&gone));
            while wire.receive(Duration::ZERO).expect("the wire").is_some() {}
            let reasons = ["mac", "vlan", "address", "port", "other"];
            let total = |s: &Stats, why| s.total(&format!("drops.tx_foreign_{why}"));
            let held = |s: &Stats| reasons.iter().map(|why| total(s, why)).sum::<u64>();
            let before = held(&service.stats());
            service.wait_until("more was to leave", PATIENCE, |s| held(s) > before + 3);
            while let Some(frame) = wire.receive(Duration::ZERO).expect("the wire") {
                let from_service = frame.len() > 34 && frame[26..30] == SERVICE.ip().octets();
                assert!(!from_service, "round {round}: it left without a right to");
            }
            says(&service, &["filter", "remove", "--all"]);
            stream.shutdown(std::net::Shutdown::Both).expect("closed");
            flood.join().expect("the sender ends");
        }
        service.process.terminate();
    }
}

/// Filters and rates change a thousand times under load, always such that the load may pass: no
/// answer is wrong, and none is missing.
#[test]
fn a_thousand_changes_disturb_nobody() {
    let Some(net) = TestNet::new("a_thousand_changes_disturb_nobody", Nic::Tap, 1) else { return };
    let service = net.serve(&["100"]);
    net.client.run(|| {
        Steady::during(100, |steady| {
            let mut client = service.client();
            let mut ask =
                |line: String| client.ask(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
            let both = "[\"rx tcp service 10.88.0.2:7\",\"tx tcp service 10.88.0.2:7\"]";
            for round in 0..250 {
                let create = format!("{{\"do\":\"filter-create\",\"filters\":{both}}}");
                ask(create);
                let rate = format!("{{\"do\":\"rate\",\"tx\":\"{}Mbit\"}}", 100 + round);
                ask(rate);
                ask("{\"do\":\"filter-remove\"}".to_owned());
                ask("{\"do\":\"rate\",\"tx\":\"none\"}".to_owned());
                if round % 50 == 0 {
                    steady.goes_on();
                }
            }
            steady.goes_on();
        });
    });
    let stats = service.finish(PATIENCE);
    for reason in ["tx_foreign_port", "tx_foreign_address", "rx_filtered", "tx_rate"] {
        assert_eq!(stats.total(&format!("drops.{reason}")), 0, "{reason}: {stats}");
    }
}

/// A rate is a promise about the most. What a busy machine makes of the least is not tested here,
/// but in virtual time.
#[test]
fn a_rate_bounds_what_leaves() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::alone("a_rate_bounds_what_leaves", nic, 1) else { return };
        let service = net.serve(&["100000"]);
        let mut stream = net.connect();
        let answer = says(&service, &["rate", "--tx", "20Mbit"]);
        assert_eq!(answer["tx_rate"], "20Mbit,burst=3028", "{answer}");
        let start = Instant::now();
        echo(&mut stream, 1, 100_000);
        echo(&mut stream, 2, 100_000);
        let (took, least) = (start.elapsed().as_secs_f64(), 200_000.0 * 8.0 / 20e6);
        assert!(took >= 0.95 * least, "{took} s for what takes {least} s at least");
        says(&service, &["rate", "--tx", "none"]);
        echo(&mut stream, 3, 100_000);
        close(stream);
        service.finish(PATIENCE);
    }
}

/// Linux, which knows nothing of the connection, resets it: now, or already when a late
/// acknowledgement came.
#[track_caller]
pub fn is_reset(stream: &mut TcpStream) {
    let outcome = stream.write_all(&[1; 64]).and_then(|()| stream.read_exact(&mut [0; 64]));
    let error = outcome.expect_err("Linux has it");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// One address for both: the filters' packets go to IX, all others to Linux, and what is revoked
/// goes to Linux as well.
#[test]
fn linux_keeps_what_nobody_holds_of_the_same_address() {
    let test = "linux_keeps_what_nobody_holds_of_the_same_address";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (namespace, link) = net.service_link();
    namespace.add_address(link, *SERVICE.ip(), 16).expect("an address");
    // Who asks for the address hears IX; Linux cannot ask in its name, so it is told.
    namespace.add_neighbour(link, CLIENT, net.client_mac()).expect("a neighbour");
    let cpu = ix_testbed::cpu::allowed()[0];
    let config = format!(
        "host_addr = \"{}/16\"\ncpu = {cpu}\ndevices = [\"afxdp:{link}\"]\n\
         [tcp]\ntime_wait_us = 300000\n[vnic]\nrx_rate = \"50kpps\"\n\
         filters = [\"{ECHO_ONLY}\", \"tx tcp service 10.88.0.2:7\"]\n",
        SERVICE.ip()
    );
    let program = support::build_echo();
    let program = [program.to_str().expect("text"), "64"];
    let service = net.start_with_flags(&config, &["--take-address"], &program);
    service.process.wait_for("ready", PATIENCE);
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    let linux = SocketAddrV4::new(*SERVICE.ip(), 53);
    let server = namespace.run(|| UdpSocket::bind(linux)).expect("Linux' own port");
    let client = net.client.run(|| UdpSocket::bind((CLIENT, 0))).expect("a socket");
    server.set_read_timeout(Some(PATIENCE)).expect("timeout");
    client.send_to(b"hello", linux).expect("sends");
    let mut bytes = [0; 16];
    assert_eq!(server.recv(&mut bytes).expect("Linux hears it"), 5);
    echo(&mut stream, 2, 64);
    let shown = says(&service, &["vnic"]);
    assert_eq!(shown["rx_rate"], "50kpps,burst=3028", "{shown}");
    assert_eq!(shown["drops"]["rx_filtered"], 0, "IX sees nothing of Linux': {shown}");
    // Nobody holds it any more: Linux, which has no such connection, resets it.
    let filter = shown["filters"][0]["filter"].to_string();
    says(&service, &["filter", "remove", &filter]);
    is_reset(&mut stream);
    drop(stream);
    service.process.terminate();
}
