//! `ix ctl dump` and `--output`: what a report of a fault has, and what it must not have.
use crate::support::command::errors;
use crate::support::traffic::echo;
use crate::support::{Nic, PATIENCE, TestNet};
use ix_skip::{Need, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// An argument of the program.
const SECRET: &str = "hunter2";

/// Serves one connection.
// It runs as the program of `ix run`, and has no use for its argument.
const PROGRAM: &str = "
import socket
listener = socket.create_server(('10.88.0.2', 7))
print('ready', flush=True)
stream, _ = listener.accept()
while data := stream.recv(4096):
    stream.sendall(data)
";

fn ctl(control: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    let command = command.arg("ctl").args(args).arg("--control").arg(control);
    command.output().expect("the command starts")
}

/// The files of an archive, read by tar(1).
fn files(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let tar = |args: &[&str]| {
        let output = Command::new("tar").arg("-f").arg(archive).args(args).output().expect("tar");
        assert!(output.status.success(), "{}", errors(&output));
        output.stdout
    };
    let names = String::from_utf8(tar(&["-t"])).expect("names");
    let name = |line: &str| line.strip_prefix("ix-dump/").expect("one folder").to_owned();
    names.lines().map(|line| (name(line), tar(&["-x", "-O", line]))).collect()
}

#[test]
fn a_dump_is_one_file_without_secrets() {
    let test = "a_dump_is_one_file_without_secrets";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let python = "/usr/bin/python3";
    if Command::new(python).arg("-V").output().is_err() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return;
    }
    let service = net.start(&[python, "-c", PROGRAM, SECRET]);
    service.process.wait_for("ready", PATIENCE);
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    let file = net.file("dump.tar");
    let path = file.to_str().expect("text");
    let output = ctl(service.control(), &["dump", "--output", path, "--capture", "0.3"]);
    assert!(output.status.success(), "{}", errors(&output));
    let mode = file.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "it says much about the machine");
    let has = files(&file);
    let names: Vec<&str> = has.keys().map(String::as_str).collect();
    let expected = [
        "README",
        "about.json",
        "capture.pcapng",
        "connections.json",
        "doctor.json",
        "metrics.txt",
        "stats.json",
        "status.json",
        "vnic.json",
    ];
    assert_eq!(names, expected);
    let json = |name: &str| -> Value { serde_json::from_slice(&has[name]).expect(name) };
    assert_eq!(json("connections.json")["total"], 1);
    assert!(json("doctor.json")["checks"].is_array());
    let about = json("about.json");
    let log = about["log"].as_array().expect("lines");
    assert!(log.iter().any(|line| line.to_string().contains("device tap:")), "{log:?}");
    assert!(about["config"].as_str().expect("a file").contains("host_addr"));
    let command: Vec<&str> =
        about["command"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert!(command.ends_with(&["/usr/bin/python3", "…"]), "{command:?}");
    for (name, bytes) in &has {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains(SECRET), "{name} has an argument of the program");
    }
    let output = ctl(service.control(), &["dump", "--output", path, "--all"]);
    assert!(output.status.success(), "{}", errors(&output));
    let about = String::from_utf8(files(&file).remove("about.json").expect("there")).expect("text");
    assert!(about.contains(SECRET), "it was asked for: {about}");
    // Who may only look gets the rest, and the reasons.
    let read_only = service.control().with_extension("ro.sock");
    let output = ctl(&read_only, &["dump", "--output", path]);
    assert!(output.status.success() && errors(&output).contains(".missing"), "{}", errors(&output));
    let has = files(&file);
    let why = String::from_utf8_lossy(&has["about.json.missing"]).into_owned();
    assert!(why.contains("looking only"), "{why}");
    assert!(has.contains_key("stats.json"));
    drop(stream);
}

#[test]
fn results_go_to_a_file_as_well() {
    let Some(net) = TestNet::new("results_go_to_a_file_as_well", Nic::Tap, 1) else { return };
    let service = net.serve(&["64"]);
    let file = net.file("out");
    let path = file.to_str().expect("text");
    for args in [&["status"][..], &["threads"], &["connections"], &["vnic"], &["stats"], &["rate"]]
    {
        let output = ctl(service.control(), &[args, &["--output", path]].concat());
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
        assert!(!output.stdout.is_empty() && output.stdout[0] != b'{', "the text is printed too");
        let text = std::fs::read_to_string(&file).expect("a file");
        assert!(serde_json::from_str::<Value>(&text).expect("JSON").is_object(), "{args:?}");
    }
    let output = ctl(service.control(), &["metrics", "--output", path]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(std::fs::read_to_string(&file).expect("a file").contains("# TYPE ix_flows gauge"));
    let output = ctl(service.control(), &["status", "--output", "/no/such/folder/x"]);
    assert!(errors(&output).contains("cannot write /no/such/folder/x"), "{}", errors(&output));
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_ix"));
    doctor.args(["doctor", "--output", path]).output().expect("it starts");
    let text = std::fs::read_to_string(&file).expect("a file");
    assert!(serde_json::from_str::<Value>(&text).expect("JSON")["checks"].is_array());
    service.finish(PATIENCE);
}
