//! Settings that do nothing at the address of Linux are refused in the words in which they were
//! typed; those of a device are, where the interface is shared with other runs.
use super::shared_address::{on_linux_address, run_echo};
use super::shared_network::{has_ip, ip};
use crate::support::traffic::echo;
use crate::support::{PATIENCE, SERVICE, TestNet, build_echo, connect_to};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::process::Command;

/// The one line of a run that is refused.
#[track_caller]
fn line_of(net: &TestNet, flags: &[&str]) -> String {
    let (status, said) = net.start_shared_with(flags, &["true"]).process.wait(PATIENCE);
    assert_eq!((status.code(), said.len()), (Some(125), 1), "{flags:?}: {said:#?}");
    said[0].clone()
}

/// `ix run` with these flags and no others, of a program that does nothing: its status, its lines.
fn run_with(net: &TestNet, flags: &[&str]) -> (Option<i32>, Vec<String>) {
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
        command.arg("run").args(flags).arg("true").output().expect("ix")
    };
    let output = net.server.run(run);
    let said = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect();
    (output.status.code(), said)
}

#[test]
fn what_only_an_own_address_has_is_refused_as_it_was_typed() {
    let test = "what_only_an_own_address_has_is_refused_as_it_was_typed";
    let Some(net) = on_linux_address(test) else { return };
    let shares = "IX shares the address of Linux on ixs0";
    for (flags, tells) in [
        (&["--gateway", "10.88.0.1"][..], ["cannot use `--gateway 10.88.0.1`", shares, "ip route"]),
        (&["--addr6", "auto"], ["cannot use `--addr6 auto`", shares, "addresses of IPv6"]),
        (&["--addr6", "off"], ["cannot use `--addr6 off`", shares, "leave it out"]),
        (&["--take-address"], ["cannot use `--take-address`", "neither --addr", "shares"]),
    ] {
        let line = line_of(&net, flags);
        assert!(tells.iter().all(|word| line.contains(word)), "{line}");
    }
    for (words, tells) in [
        ("gateway_addr = '10.88.0.1'", "`ip route` changes"),
        ("address_check = 'announce'", "which Linux has checked"),
        ("addr6 = 'auto'", "addresses of IPv6"),
        ("local_ports = '10000-20000'", "as connections need them"),
    ] {
        let config = format!("devices = 'ixs0'\n{words} # said\n");
        let (status, said) = net.start_with(&config, &["true"]).process.wait(PATIENCE);
        assert_eq!((status.code(), said.len()), (Some(125), 1), "{said:#?}");
        let typed = format!("cannot use `{words} # said` (");
        let all = [&typed, "line 2)", shares, tells, "with --addr"];
        assert!(all.iter().all(|word| said[0].contains(word)), "{said:#?}");
    }
    // At an address of IX's own they are what they were.
    let program = build_echo();
    let own = ["--addr", "10.88.0.7/16", "--gateway", "10.88.0.1", "--ignore-firewall"];
    let run = net.start_shared_with(&own, &[program.to_str().expect("text"), "64"]).process;
    run.wait_for("ix: --ignore-firewall does nothing here", PATIENCE);
    run.wait_for("ready", PATIENCE);
    run.terminate();
    assert_eq!(net.server.xdp_program("ixs0").expect("asked"), None, "the interface is as before");
}

#[test]
fn a_mode_that_a_shared_interface_cannot_have_is_refused() {
    let test = "a_mode_that_a_shared_interface_cannot_have_is_refused";
    let Some(net) = on_linux_address(test) else { return };
    let first = run_echo(&net);
    for mode in ["zerocopy", "generic"] {
        let nic = format!("ixs0,mode={mode}");
        let (status, said) = run_with(&net, &["--nic", &nic]);
        let line = said.last().expect("a line");
        assert_eq!(status, Some(125), "{said:#?}");
        let tells =
            [&format!("`ixs0` refuses mode={mode}"), "another run has its queues", "remove"];
        assert!(tells.iter().all(|word| line.contains(word)), "{line}");
    }
    // The first one goes on.
    let mut stream = net.client.run(|| connect_to(SERVICE));
    echo(&mut stream, 1, 64);
    drop(stream);
    first.terminate();
}

/// Linux sends what is for the tap to another interface, and a line says so.
#[test]
fn a_network_that_another_interface_has_is_told() {
    let test = "a_network_that_another_interface_has_is_told";
    let Some(net) = on_linux_address(test) else { return };
    if !has_ip(&net) {
        return skip(test, Need::Program("apt-get install iproute2"), "no ip");
    }
    let told = |flags: &[&str]| {
        let (status, said) = run_with(&net, &[&["--nic", "tap:ixother"], flags].concat());
        assert_eq!(status, Some(0), "{said:#?}");
        said.into_iter().find(|line| line.contains("does not come to ixother"))
    };
    assert_eq!(told(&["--addr", "10.97.0.2/24"]), None, "no interface has it");
    let far = Namespace::new().expect("a namespace");
    let [near, end] = ["ixv0", "ixv1"].map(VethEnd::new);
    net.server.add_veth(&near, &far, &end).expect("a veth pair");
    far.set_up("ixv1", true).expect("up");
    for words in ["addr add 10.97.0.5/24 dev ixv0", "link set ixv0 up"] {
        ip(&net, words);
    }
    let line = told(&["--addr", "10.97.0.2/24"]).expect("a line");
    let tells = ["a route to 10.97.0.2/24 by ixv0", "such as --addr 192.0.2.2/24"];
    assert!(tells.iter().all(|word| line.contains(word)), "{line}");
    let line = told(&["--addr", "10.97.0.5/24"]).expect("a line");
    assert!(line.contains("Linux itself has 10.97.0.5"), "{line}");
    // A default route, or one to a larger network, is worth less than that of the tap.
    ip(&net, "route add default via 10.97.0.1");
    ip(&net, "route add 10.98.0.0/16 via 10.97.0.1");
    ip(&net, "route add 192.0.2.0/24 via 10.97.0.1");
    for own in ["10.98.0.2/24", "10.99.0.2/24"] {
        assert_eq!(told(&["--addr", own]), None, "{own}");
    }
    let line = told(&["--addr", "10.97.0.2/24"]).expect("a line");
    assert!(line.contains("such as --addr 198.18.0.2/24"), "{line}");
}
