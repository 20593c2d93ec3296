//! The control interface from C: every call, with wrong input, against a real `ix share` and a real
//! dataplane.
use super::libix_c::compile;
use crate::support::process::Process;
use crate::support::stats::Stats;
use crate::support::traffic::echo;
use crate::support::{self, Nic, PATIENCE, SERVICE, TestNet, eventually};
use std::path::Path;
use std::process::Command;

/// Runs the program to its end, which must be a good one; returns what it said.
#[track_caller]
fn run(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// How many vNICs and filters there are.
fn held(control: &Path) -> (usize, usize) {
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_ix"));
    let output = ctl.args(["ctl", "vnic", "--json", "--control"]).arg(control).output();
    let view = output.expect("the command starts").stdout;
    let view: serde_json::Value = serde_json::from_slice(&view).expect("JSON");
    let count = |key: &str| view[key].as_array().expect("a list").len();
    (count("vnics"), count("filters"))
}

#[test]
fn c_programs_make_vnics_and_hand_on_filters() {
    let test = "c_programs_make_vnics_and_hand_on_filters";
    let Some(program) = compile(test, &["cc"], "tests/programs/control.c") else { return };
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (namespace, link) = net.service_link();
    let control = net.file("share.sock");
    let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
    command.args(["share", link, "--queues", "2", "--control"]).arg(&control);
    let shares = Process::start(command);
    shares.wait_for("ix: sharing", PATIENCE);
    let path = control.to_str().expect("text");

    let said = run(&program, &["share", path]);
    let filter = said.trim().strip_prefix("granted ").expect("a capability").to_owned();
    // The other vNIC was that program's own.
    eventually("its vNIC is gone with it", || held(&control).0 == 1);
    assert_eq!(held(&control), (1, 4), "one for what comes, two of it, one for what leaves");

    let cpu = net.cpus()[0].to_string();
    let (stats, program_on_it) = (net.file("web.sock"), support::build_echo());
    let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
    command.args(["run", "--domain", "none", "--nic", "afxdp:ixv-web", "--cpus", &cpu]);
    command.args(["--addr", &format!("{}/16", SERVICE.ip()), "--control"]).arg(&stats);
    command.arg("--").arg(program_on_it).arg("64");
    let tenant = Process::start(command);
    tenant.wait_for("ready", PATIENCE);
    let mut stream = net.connect();
    (0..10).for_each(|round| echo(&mut stream, round, 64));
    assert_eq!(Stats::ask(&stats).total("flows"), 1);
    assert_eq!(run(&program, &["dataplane", stats.to_str().expect("text")]), "done\n");

    let mut watch = Command::new(&program);
    watch.args(["watch", path]);
    let watch = Process::start(watch);
    watch.wait_for("connected", PATIENCE);
    run(&program, &["end", path, &filter]);
    assert_eq!(held(&control), (0, 1), "a filter that nobody revoked stays its holder's");
    shares.signal(libc::SIGTERM);
    let (status, said) = shares.wait(PATIENCE);
    assert!(status.success(), "{said:?}");
    let (status, said) = watch.wait(PATIENCE);
    assert!(status.success(), "it hears that the other side is gone: {said:?}");
}
