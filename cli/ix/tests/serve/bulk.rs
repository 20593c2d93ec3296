//! Bulk transfers between Linux and IX in both directions, every byte compared at both ends.
use crate::support;
use crate::support::{Nic, PATIENCE, SERVICE, TestNet};
use std::time::Duration;

/// One transfer by `ix-echo` on Linux sockets; it compares what it gets, and the server tells
/// whether all that it got was right.
fn transfer(net: &TestNet, direction: &str, bytes: u64, timeout: Duration) {
    let mut client = net.client.command(support::build_echo(), None);
    client.args(["--client", &SERVICE.to_string(), "--linux", "--json"]);
    client.args(["--bulk", direction, "--bytes", &bytes.to_string()]);
    let (status, said) = support::process::Process::start(client).wait(timeout);
    assert!(status.success(), "{net} {direction}: {said:?}");
    let result: serde_json::Value = serde_json::from_str(&said[0]).expect("JSON");
    let wanted = |wants: bool| if wants { bytes } else { 0 };
    assert_eq!(result["bytes_sent"], wanted(direction != "recv"), "{result}");
    assert_eq!(result["bytes_received"], wanted(direction != "send"), "{result}");
    eprintln!("{net} {direction}: {} Mbit/s", result["mbit_per_s"]);
}

fn transfers(test: &str, nic: Nic, bytes: u64, timeout: Duration) {
    let Some(net) = TestNet::new(test, nic, 1) else { return };
    let service = net.serve(&["bulk"]);
    for direction in ["send", "recv", "both"] {
        transfer(&net, direction, bytes, timeout);
    }
    service.finish(PATIENCE);
}

#[test]
fn bulk_over_tap() {
    transfers("bulk_over_tap", Nic::Tap, 64 << 20, Duration::from_secs(60));
}

#[test]
fn bulk_over_afxdp() {
    transfers("bulk_over_afxdp", Nic::Afxdp, 64 << 20, Duration::from_secs(60));
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn a_gibibyte_over_tap() {
    transfers("a_gibibyte_over_tap", Nic::Tap, 1 << 30, Duration::from_secs(600));
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn a_gibibyte_over_afxdp() {
    transfers("a_gibibyte_over_afxdp", Nic::Afxdp, 1 << 30, Duration::from_secs(600));
}
