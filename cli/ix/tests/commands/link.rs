//! The benchmarks' private link with Linux sockets at both ends.
use crate::support::PATIENCE;
use crate::support::command::may_make_links;
use crate::support::lab::Service;
use crate::support::traffic::echo;
use crate::support::turn::Turn;
use ix_bench::args::Device;
use ix_bench::lab::Host;

#[test]
fn linux_serves_linux() {
    let _turn = Turn::part(2);
    if !may_make_links("linux_serves_linux") {
        return;
    }
    let mut service = Service::start(Device::Afxdp, Host::BLOCKING, &["64"]);
    echo(&mut service.connect(), 7, 64);
    let args = ["--size", "64", "--connections", "3", "--seconds", "0.1"].map(str::to_owned);
    for client in [Host::BLOCKING, Host::SPINNING] {
        let result =
            service.lab.run_client(client, &mut service.server, &args, PATIENCE).expect("runs");
        assert!(result["msgs_per_s"].as_f64().expect("rate") > 100.0, "{result}");
        assert_eq!((&result["errors"], &result["connections"]), (&0.into(), &3.into()));
    }
    assert!(service.server.control().is_none());
    service.server.stop();
}

#[test]
fn bulk_goes_both_ways_and_offloads_can_be_switched() {
    let _turn = Turn::part(2);
    if !may_make_links("bulk_goes_both_ways_and_offloads_can_be_switched") {
        return;
    }
    let mut service = Service::start(Device::Afxdp, Host::BLOCKING, &["bulk"]);
    for (direction, offloads) in [("send", true), ("recv", false)] {
        service.lab.set_offloads(offloads).expect("offloads");
        let args = ["--bulk", direction, "--bytes", "4000000"].map(str::to_owned);
        let result = service
            .lab
            .run_client(Host::BLOCKING, &mut service.server, &args, PATIENCE)
            .expect("runs");
        assert!(result["mbit_per_s"].as_f64().expect("rate") > 1.0, "{result}");
    }
}

#[test]
fn failures_of_either_end_name_the_reason() {
    let _turn = Turn::part(2);
    if !may_make_links("failures_of_either_end_name_the_reason") {
        return;
    }
    let mut service = Service::start(Device::Afxdp, Host::BLOCKING, &["64"]);
    let args = ["--size", "0"].map(str::to_owned);
    let e = service.lab.run_client(Host::BLOCKING, &mut service.server, &args, PATIENCE);
    assert!(e.expect_err("refused").to_string().contains("linux client"));
    let e = service.lab.start_server(Host::BLOCKING, &["64".into(), "--max-conn".into()]);
    assert!(e.err().expect("refused").to_string().contains("linux server"));
}
