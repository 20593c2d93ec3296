//! Devices that change under a running dataplane: interfaces that are removed and made again, and
//! one program behind several devices.
use crate::support::process::Process;
use crate::support::process::open_files;
use crate::support::traffic::{Steady, close, echo};
use crate::support::{CLIENT, Nic, PATIENCE, PREFIX, SERVICE, Service, TestNet, build_echo};
use crate::support::{connect, connect_to, eventually};
use ix_skip::{Need, skip_part};
use ix_testbed::VethEnd;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::time::Duration;

/// Makes the pair as [`TestNet::new`] does.
pub fn make_pair(net: &TestNet, queues: u32) {
    let end = |name| VethEnd::new(name).queues(queues);
    net.server.add_veth(&end("ixs0"), &net.client, &end("ixc0")).expect("a veth pair");
    net.client.add_address("ixc0", CLIENT, PREFIX).expect("an address");
    net.server.set_up("ixs0", true).expect("up");
    net.client.set_up("ixc0", true).expect("up");
}

#[test]
fn an_interface_that_was_removed_and_made_again_serves_again() {
    for queues in [1, 2] {
        let name = "an_interface_that_was_removed_and_made_again_serves_again";
        if ix_testbed::cpu::allowed().len() < queues {
            skip_part(name, Need::Cpus(queues), "too few CPUs");
            continue;
        }
        let Some(net) = TestNet::new(name, Nic::Afxdp, queues) else { return };
        let service = net.serve(&["64"]);
        let mut stream = net.connect();
        echo(&mut stream, 0, 64);
        let mut files = None;
        for round in 1..=4 {
            net.server.delete_link("ixs0").expect("removed");
            service.process.wait_for("ix: link ixs0 is gone", PATIENCE);
            make_pair(&net, queues as u32);
            service.process.wait_for_nth("ix: link ixs0 is up again", round, PATIENCE);
            net.client.run(|| {
                for id in 0..20 {
                    let mut new = connect();
                    echo(&mut new, id, 64);
                    close(new);
                }
            });
            // Both ends have other Ethernet addresses now; TCP does not mind.
            echo(&mut stream, round as u64, 64);
            let open = || (open_files(service.process.pid()), open_files(service.program()));
            let before = *files.get_or_insert_with(open);
            // What a round is done with is closed a little later.
            eventually(&format!("no descriptor leaks in round {round}"), || {
                let now = open();
                now.0 <= before.0 && now.1 <= before.1
            });
        }
        close(stream);
        service.finish(PATIENCE);
    }
}

/// A namespace is another world: the interface is gone, and back under another number.
#[test]
fn an_interface_that_was_moved_away_and_back_serves_again() {
    let name = "an_interface_that_was_moved_away_and_back_serves_again";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    echo(&mut stream, 0, 64);
    net.server.move_link("ixs0", &net.client).expect("moved");
    service.process.wait_for("ix: link ixs0 is gone", PATIENCE);
    std::thread::sleep(Duration::from_millis(100));
    net.client.move_link("ixs0", &net.server).expect("moved back");
    net.server.set_up("ixs0", true).expect("up");
    service.process.wait_for("ix: link ixs0 is up again", PATIENCE);
    echo(&mut stream, 1, 64);
    close(stream);
    service.finish(PATIENCE);
}

/// A name is nothing to a dataplane: not a message under way is lost.
#[test]
fn an_interface_that_is_renamed_under_load_goes_on() {
    for nic in Nic::ALL {
        let name = "an_interface_that_is_renamed_under_load_goes_on";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let mut service = net.serve(&["100"]);
        let (namespace, link) = net.service_link();
        net.client.run(|| {
            Steady::during(100, |steady| {
                for (from, to) in [(link, "other0"), ("other0", link)] {
                    namespace.rename_link(from, to).expect("renamed");
                    let line = format!("ix: link {from} is called {to} now");
                    service.process.wait_for(&line, PATIENCE);
                    steady.goes_on();
                }
            });
        });
        service.process.check();
        service.finish(PATIENCE);
    }
}

/// The Linux side's and the service's address on the second device.
const BY_TAP: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 1);
const SERVICE_BY_TAP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 89, 0, 2), 7);

/// A program on one dataplane with an interface and a tap, each with an address of its own.
fn start_on_both(net: &TestNet, queues: usize, program: &[&str]) -> Service {
    let cpus: Vec<_> = ix_testbed::cpu::allowed().iter().take(queues).copied().collect();
    let config = format!(
        "host_addr = [\"{}/{PREFIX}\", \"{}/24\"]\ncpu = {cpus:?}\n\
         devices = [\"afxdp:ixs0\", \"tap:ixt0\"]\n[tcp]\ntime_wait_us = 300000\n",
        SERVICE.ip(),
        SERVICE_BY_TAP.ip(),
    );
    let mut service = net.start_with(&config, program);
    service.raise_tap(&net.server, "ixt0", BY_TAP, 24);
    service
}

#[test]
fn one_program_serves_two_devices_at_once() {
    for queues in [1, 2] {
        let name = "one_program_serves_two_devices_at_once";
        if ix_testbed::cpu::allowed().len() < queues {
            skip_part(name, Need::Cpus(queues), "too few CPUs");
            continue;
        }
        let Some(net) = TestNet::new(name, Nic::Afxdp, queues) else { return };
        let echo_file = build_echo();
        let service = start_on_both(&net, queues, &[echo_file.to_str().expect("text"), "64"]);
        service.process.wait_for("ready", PATIENCE);
        std::thread::scope(|scope| {
            for (namespace, at) in [(&net.client, SERVICE), (&net.server, SERVICE_BY_TAP)] {
                for client in 0..3 {
                    scope.spawn(move || namespace.run(|| talk(at, client)));
                }
            }
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("closed"), 2 * 3 * 30, "{stats}");
    }
}

/// A third device, whose client is on IX itself.
#[test]
fn one_program_serves_an_interface_a_tap_and_a_memif_at_once() {
    let name = "one_program_serves_an_interface_a_tap_and_a_memif_at_once";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let cpus = ix_testbed::cpu::allowed();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let link = net.file("link.memif");
    let config = format!(
        "host_addr = [\"{}/{PREFIX}\", \"{}/24\", \"10.99.0.1/24\"]\ncpu = [{first}]\n\
         devices = [\"afxdp:ixs0\", \"tap:ixt0\", \"memif:{},role=server\"]\n[tcp]\n\
         time_wait_us = 300000\n",
        SERVICE.ip(),
        SERVICE_BY_TAP.ip(),
        link.display(),
    );
    let echo_file = build_echo();
    let echo_file = echo_file.to_str().expect("text");
    let mut service = net.start_with(&config, &[echo_file, "64"]);
    service.raise_tap(&net.server, "ixt0", BY_TAP, 24);
    service.process.wait_for("ready", PATIENCE);
    let mut asker = Command::new(env!("CARGO_BIN_EXE_ix"));
    asker.args([
        "run",
        "--domain",
        "none",
        "--nic",
        &format!("memif:{},role=client", link.display()),
    ]);
    asker.args(["--addr", "10.99.0.2/24", "--cpus", &last.to_string()]);
    asker.arg("--control").arg(net.file("asker.sock")).arg("--").arg(echo_file);
    asker.args(["--client", "10.99.0.1:7", "--connections", "8", "--seconds", "1", "--json"]);
    let asker = Process::start(asker);
    std::thread::scope(|scope| {
        for (namespace, at) in [(&net.client, SERVICE), (&net.server, SERVICE_BY_TAP)] {
            scope.spawn(move || namespace.run(|| talk(at, 1)));
        }
    });
    let (status, said) = asker.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.total("closed"), 2 * 30 + 8, "{stats}");
}

fn talk(at: SocketAddrV4, client: u64) {
    for round in 0..30 {
        let mut stream = connect_to(at);
        for id in 0..20 {
            echo(&mut stream, client << 20 | round << 10 | id, 64);
        }
        close(stream);
    }
}

/// Connections leave by the device that the route's address belongs to.
#[test]
fn a_client_reaches_peers_on_both_devices() {
    let name = "a_client_reaches_peers_on_both_devices";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let echo_file = build_echo();
    let echo_file = echo_file.to_str().expect("text");
    let peers = [(&net.client, CLIENT), (&net.server, BY_TAP)];
    for (namespace, address) in peers {
        let mut command = namespace.command(echo_file, None);
        command.args(["64", "--linux", "--port", "7777"]);
        let peer = Process::start(command);
        peer.wait_for("ready", PATIENCE);
        let at = format!("{address}:7777");
        let load = ["--client", &at, "--connections", "4", "--seconds", "0.3", "--json"];
        let program: Vec<_> = [echo_file].into_iter().chain(load).collect();
        let service = start_on_both(&net, 1, &program);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{address}: {said:?}");
    }
}

/// `ix doctor` says of each interface what IX would have there, and then that IX is there.
#[test]
fn the_doctor_has_a_verdict_for_each_interface() {
    let test = "the_doctor_has_a_verdict_for_each_interface";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (namespace, link) = net.service_link();
    let verdict = || {
        let mut doctor = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
        let output = doctor.args(["doctor", "--json"]).output().expect("it starts");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let interfaces = told["interfaces"].as_array().expect("a list").clone();
        let found = interfaces.into_iter().find(|interface| interface["name"] == link);
        found.expect("the link")
    };
    let before = verdict();
    assert_eq!(before["usable"], true, "{before}");
    assert_eq!(before["mode"], "native XDP", "{before}");
    assert_eq!((&before["queues"], &before["mtu"]), (&1.into(), &1500.into()), "{before}");
    let next = before["next"].as_str().expect("a command");
    assert!(next.starts_with(&format!("ix run --nic {link} --addr FREE/")), "{before}");
    // The address of Linux is shared.
    namespace.add_address(link, Ipv4Addr::new(10, 66, 0, 2), 24).expect("an address");
    let shared = verdict();
    let next = shared["next"].as_str().expect("a command");
    assert!(next.starts_with(&format!("ix run --nic {link} PROGRAM")), "{shared}");
    let service = net.serve(&["64"]);
    let beside = verdict();
    assert_eq!(beside["usable"], false, "{beside}");
    let why = beside["why"].as_str().expect("why");
    assert!(why.contains("another XDP program is attached to it, that of process "), "{beside}");
    assert!(beside["next"].as_str().expect("a command").starts_with("kill "), "{beside}");
    service.finish(PATIENCE);
}
