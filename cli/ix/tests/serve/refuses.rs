//! A program that refuses all control: at any time some of its threads are within long system
//! calls, one waits for a child that does nothing, and the others keep all hardware threads busy.
//! What operators command arrives at its dataplane all the same, and a client is served meanwhile.
use super::vnic::{capability, says};
use crate::support::process::Process;
use crate::support::traffic::Steady;
use crate::support::{self, Nic, PATIENCE, Service, TestNet, eventually};
use std::path::Path;
use std::process::Command;

const FILTER: &str = "rx tcp service 10.88.0.2:7 peer 10.88.0.0/16";
/// Header of a file of captured packets.
const PCAP_HEADER: u64 = 24;

fn captures(service: &Service, file: &Path, steady: &Steady) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("pcap").arg("--control").arg(service.control()).arg("-w").arg(file);
    let capture = Process::start(command);
    capture.wait_for("ix: capturing", PATIENCE);
    steady.goes_on();
    capture.signal(libc::SIGINT);
    let (status, lines) = capture.wait(PATIENCE);
    let bytes = std::fs::metadata(file).expect("a file").len();
    assert!(status.success() && bytes > PCAP_HEADER, "{status}, {bytes} bytes: {lines:?}");
}

fn moves(service: &Service, steady: &Steady) {
    let mut client = service.client();
    for to in [1, 0] {
        client.migrate("0-127", to).unwrap_or_else(|why| panic!("migrate to {to}: {why}"));
        steady.goes_on();
    }
    client.thread("park", 1).expect("parks");
    assert_eq!(service.stats().state(1), "parked");
    steady.goes_on();
    client.thread("resume", 1).expect("resumes");
    assert_eq!(service.stats().state(1), "active");
}

fn is_revoked(service: &Service, steady: &Steady) {
    let made = says(service, &["filter", "create", FILTER, "--both"]);
    steady.goes_on();
    let before = service.stats().total("drops.rx_filtered");
    says(service, &["filter", "revoke", &capability(&made)]);
    service.wait_until("nothing is heard any more", PATIENCE, |stats| {
        stats.total("drops.rx_filtered") > before
    });
    // Linux sends again, and TCP goes on where it was.
    says(service, &["filter", "remove", "--all"]);
    steady.goes_on();
}

#[test]
fn commands_arrive_whatever_a_program_refuses() {
    let name = "commands_arrive_whatever_a_program_refuses";
    let Some(net) = TestNet::busy(name, Nic::Tap, 2) else { return };
    let attacker = support::build_program("ix-attacker");
    let program = [attacker.to_str().expect("text"), "refuses"];
    let flags = ["--domain", "process", "--posix", "off", "--user", "65534"];
    let service = net.start_env(&[], &flags, &program);
    service.process.wait_for("refuses all control", PATIENCE);
    eventually("it has entered both", || service.stats().state(1) == "active");
    let file = net.file("captured.pcap");
    net.client.run(|| {
        Steady::during(64, |steady| {
            says(&service, &["rate", "--tx", "1Gbit"]);
            says(&service, &["rate", "--tx", "none"]);
            captures(&service, &file, steady);
            moves(&service, steady);
            is_revoked(&service, steady);
            steady.goes_on();
        });
    });
    // Its elastic threads never leave, so it hears no other signal.
    service.process.signal(libc::SIGKILL);
}
