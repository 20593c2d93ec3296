//! A service on IX, end to end: `ix run` with the image in the program's process, a private link,
//! and Linux's own sockets at the other end.
use crate::support::command::{errors, ix, may_make_links};
use crate::support::lab::Service;
use crate::support::traffic::echo;
use crate::support::turn::Turn;
use crate::support::{PATIENCE, eventually, process};
use ix_bench::args::Device;
use ix_bench::lab::Host;

fn serves(test: &str, device: Device) {
    if !may_make_links(test) {
        return;
    }
    let service = Service::start(device, Host::IX, &["1000"]);
    let mut streams: Vec<_> = (0..10).map(|_| service.connect()).collect();
    for round in 0..20 {
        streams.iter_mut().for_each(|stream| echo(stream, round, 1000));
    }
    assert_eq!(service.stats().total("flows"), 10);
    drop(streams);
    eventually("flows are gone", || service.stats().total("flows") == 0);
    assert_eq!(service.stats().total("misrouted"), 0);
    assert_eq!(service.stats().total("accepted"), 10);
    service.server.stop();
}

#[test]
fn a_service_on_tap_answers_linux() {
    let _turn = Turn::part(2);
    serves("a_service_on_tap_answers_linux", Device::Tap);
}

#[test]
fn a_service_on_afxdp_answers_linux() {
    let _turn = Turn::part(2);
    serves("a_service_on_afxdp_answers_linux", Device::Afxdp);
}

#[test]
fn ix_serves_ix() {
    let _turn = Turn::part(2);
    if !may_make_links("ix_serves_ix") {
        return;
    }
    let mut service = Service::start(Device::Afxdp, Host::IX, &["64"]);
    let args = ["--size", "64", "--connections", "5", "--seconds", "0.2"].map(str::to_owned);
    let result = service
        .lab
        .run_client(Host::IX, &mut service.server, &args, PATIENCE)
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(result["msgs_per_s"].as_f64().expect("rate") > 100.0, "{result}");
    assert_eq!(result["errors"], 0);
}

#[test]
fn bulk_data_is_whole_in_both_directions() {
    let _turn = Turn::part(2);
    if !may_make_links("bulk_data_is_whole_in_both_directions") {
        return;
    }
    for device in [Device::Tap, Device::Afxdp] {
        let mut service = Service::start(device, Host::IX, &["bulk"]);
        for direction in ["send", "recv"] {
            // The client compares every byte.
            let args = ["--bulk", direction, "--bytes", "20000000"].map(str::to_owned);
            let result = service
                .lab
                .run_client(Host::BLOCKING, &mut service.server, &args, PATIENCE)
                .unwrap_or_else(|e| panic!("{device:?} {direction}: {e}"));
            assert!(result["mbit_per_s"].as_f64().expect("rate") > 1.0, "{result}");
        }
    }
}

#[test]
fn a_link_may_go_down_and_come_back() {
    let _turn = Turn::part(2);
    if !may_make_links("a_link_may_go_down_and_come_back") {
        return;
    }
    let service = Service::start(Device::Afxdp, Host::IX, &["64"]);
    let mut stream = service.connect();
    echo(&mut stream, 1, 64);
    service.lab.set_server_link(false).expect("down");
    eventually("it says so", || service.server.has_said("ix: link ix-server is down"));
    service.lab.set_server_link(true).expect("up");
    eventually("it says so", || service.server.has_said("ix: link ix-server is up"));
    echo(&mut stream, 2, 64);
    echo(&mut service.connect(), 3, 64);
}

#[test]
fn killing_the_broker_leaves_nothing() {
    let _turn = Turn::part(2);
    if !may_make_links("killing_the_broker_leaves_nothing") {
        return;
    }
    let service = Service::start(Device::Tap, Host::IX, &["64"]);
    let program = service.stats().pid();
    let tap = || service.lab.client_namespace().link("ix-tap").expect("ask").is_some();
    assert!(tap());
    // SAFETY: signals a process that we have started.
    unsafe { libc::kill(service.server.pid(), libc::SIGKILL) };
    eventually("the program is gone", || !process::is_alive(program));
    eventually("the tap is gone", || !tap());
    // The next one takes the dead one's control socket over.
    let next = service.lab.start_server(Host::IX, &["64".to_owned()]);
    next.unwrap_or_else(|e| panic!("{e}")).stop();
}

/// `ix run` on a tap of a fresh namespace, without any traffic.
fn run(test: &str, program: &[&str]) -> Option<std::process::Output> {
    if !may_make_links(test) {
        return None;
    }
    let namespace = ix_testbed::Namespace::new().expect("namespace");
    let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
    command
        .args(["run", "--domain", "none", "--user", "65534", "--nic", "tap:ixt0"])
        .args(["--addr", "10.9.0.2/24", "--"])
        .args(program);
    Some(command.output().expect("the command starts"))
}

#[test]
fn the_programs_end_is_the_commands_end() {
    let _turn = Turn::part(2);
    let test = "the_programs_end_is_the_commands_end";
    for (script, status, says) in [
        ("exit 0", 0, None),
        ("exit 7", 7, None),
        ("kill -TERM $$", 143, None),
        ("kill -SEGV $$", 139, Some("crashed: killed by SIGSEGV")),
    ] {
        let Some(output) = run(test, &["/bin/sh", "-c", script]) else { return };
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(status), "{script}: {said}");
        assert!(said.contains("domain none"), "{said}");
        assert!(said.contains("--user does nothing"), "{said}");
        assert_eq!(says.is_some_and(|text| said.contains(text)), says.is_some(), "{said}");
        assert!(says.is_some() || !said.contains("crashed"), "{said}");
    }
}

#[test]
fn a_file_that_is_no_program_is_refused_in_one_line() {
    let _turn = Turn::part(2);
    let path = std::env::temp_dir().join(format!("ix-no-program-{}", std::process::id()));
    std::fs::write(&path, "neither a script nor ELF\n").expect("write");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("chmod");
    let name = path.to_str().expect("text");
    let output = run("a_file_that_is_no_program_is_refused_in_one_line", &[name]);
    std::fs::remove_file(&path).expect("clean up");
    let Some(output) = output else { return };
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(said.lines().last().expect("a line").contains(name), "{said}");
}

#[test]
fn the_demo_compares_ix_with_linux() {
    let _turn = Turn::part(2);
    if !may_make_links("the_demo_compares_ix_with_linux") {
        return;
    }
    let output = ix(&["demo", "--seconds", "0.1", "--runs", "1", "--json", "-"]);
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["bench"], "demo");
    let rows = value["rows"].as_array().expect("rows");
    for system in ["ix", "linux"] {
        for connections in [1, 64] {
            let row = rows
                .iter()
                .find(|row| row["system"] == system && row["connections"] == connections)
                .expect("a row");
            assert!(row["msgs_per_s"].as_f64() > Some(0.0) && row["p99_us"].as_f64() > Some(0.0));
            assert_eq!(row["errors"], 0.0);
            assert!(row["ratio_to_linux"].as_f64() > Some(0.0), "{row}");
        }
    }
}
