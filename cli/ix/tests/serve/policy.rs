//! The controller on real dataplanes: threads that park without load and come back with it, beside
//! the dataplane and inside `ix run`, and controllers that die.
use crate::support;
use crate::support::process::Process;
use crate::support::traffic::Crowd;
use crate::support::{Nic, PATIENCE, SERVICE, TestNet, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

const SIZE: usize = 64;
/// The machine may be busy with other work: a turn of the loop may come late.
const SOON: Duration = Duration::from_secs(60);

/// Climbs early and comes down late, so that a busy machine does not matter.
const POLICY: &str = "name = \"test\"\nslo_us = 300000\n\
    [base]\ncores = 1\nthreads_per_core = 1\nclock = \"lowest\"\n\
    [ladder]\nadd = [\"everything\"]\n\
    [up]\nbusy_max = 0.5\n[down]\nbusy_max = 0.3\nwindow_ms = 300\nmargin = 1.0\nregret_s = 0\n";

fn policy(net: &TestNet) -> String {
    let file = net.file("policy.toml");
    std::fs::write(&file, POLICY).expect("written");
    file.display().to_string()
}

fn control(net: &TestNet, args: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("cp").arg("--control").arg(net.file("control.sock")).args(args);
    Process::start(command)
}

/// One request to the control socket.
fn ask(net: &TestNet, line: &str) -> Result<Value, String> {
    let stream = UnixStream::connect(net.file("control.sock")).expect("the control socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    writeln!(&stream, "{line}").expect("it listens");
    let mut answers = BufReader::new(&stream).lines().map(|line| line.expect("an answer"));
    let answer = answers.nth(1).expect("an answer after the greeting");
    let mut answer: Value = serde_json::from_str(&answer).expect("JSON");
    match answer.get_mut("ok").map(Value::take) {
        Some(ok) => Ok(ok),
        None => Err(answer["error"]["why"].as_str().unwrap_or("no reason").to_owned()),
    }
}

fn status(net: &TestNet) -> Value {
    ask(net, "status").expect("a status")
}

fn states(net: &TestNet) -> Vec<String> {
    let status = status(net);
    let state = |thread: usize| status["threads"][thread]["state"].as_str().map(str::to_owned);
    (0..2).map(|thread| state(thread).expect("a state")).collect()
}

/// Neither the controller nor a program waits for ever for a socket whose owner is stopped.
#[test]
fn a_socket_that_nobody_accepts_at_is_told_in_a_line() {
    let folder = std::env::temp_dir().join(format!("ix-stopped-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("control.sock");
    let listener = ix_sys::socket::listen_unix_closed(&path, 0).expect("a listener");
    let soon = Duration::from_millis(10);
    let connect = || ix_sys::socket::connect_unix_within(&path, soon);
    let full: Vec<_> = std::iter::from_fn(|| connect().ok()).take(10).collect();
    assert!(full.len() < 10, "it has no queue");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("cp").arg("--dry-run").arg("--control").arg(&path);
    let controller = Process::start(command);
    let said = controller.wait_for("ix: cannot control", PATIENCE);
    let tells = ["too many clients wait", "check that it is not stopped"];
    assert!(tells.iter().all(|words| said.contains(words)), "{said}");
    let (status, said) = controller.wait(PATIENCE);
    assert_eq!(status.code(), Some(1), "{said:?}");
    let since = Instant::now();
    let refused = libix::control::Control::connect(&path).expect_err("nobody accepts").to_string();
    assert!(refused.contains("too many clients wait"), "{refused}");
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    drop((listener, full));
    std::fs::remove_dir_all(folder).expect("removed");
}

#[track_caller]
fn runs(net: &TestNet, threads: usize) {
    let serves = |state: &str| state == "active" || state == "non-responsive";
    let count = || states(net).iter().filter(|state| serves(state)).count();
    let end = Instant::now() + SOON;
    while count() != threads {
        assert!(Instant::now() < end, "{threads} threads should run: {}", status(net));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As many messages as go, each compared, while `work` runs.
fn loaded(net: &TestNet, work: impl FnOnce() + Send) {
    Crowd { service: SERVICE, size: SIZE, turnover: false }.during(&net.client, work);
}

#[test]
fn without_load_a_thread_parks_and_with_load_it_comes_back() {
    let test = "without_load_a_thread_parks_and_with_load_it_comes_back";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    let controller = control(&net, &["--policy", &policy(&net)]);
    runs(&net, 1);
    for _ in 0..2 {
        loaded(&net, || runs(&net, 2));
        runs(&net, 1);
    }
    let said = controller.said();
    let decided = |word: &str| said.iter().filter(|line| line.contains(word)).count();
    assert!(decided("control: no clocks: ") <= 1, "{said:?}");
    assert!(decided("up to ") >= 2 && decided("down to ") >= 2, "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("busy ") && line.contains("; resume ")),
        "{said:?}"
    );
    // It ends when it is asked to, and leaves what it finds.
    controller.signal(libc::SIGTERM);
    let (status, said) = controller.wait(PATIENCE);
    assert!(status.success(), "{said:?}");
    runs(&net, 1);
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.drops(), 0, "{stats}");
}

#[test]
fn the_controller_inside_ix_run_does_the_same() {
    let test = "the_controller_inside_ix_run_does_the_same";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve_with(&["--policy", &policy(&net)], &[&SIZE.to_string()]);
    runs(&net, 1);
    loaded(&net, || runs(&net, 2));
    runs(&net, 1);
    // It is in charge, and another one hears so.
    let second = control(&net, &["--policy", "energy"]);
    let (status, said) = second.wait(PATIENCE);
    let pid = service.process.pid();
    assert_eq!(status.code(), Some(1), "{said:?}");
    assert!(
        said.iter().any(|line| line.contains(&format!("process {pid}; end process"))),
        "{said:?}"
    );
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.drops(), 0, "{stats}");
}

#[test]
fn a_controller_that_is_killed_leaves_the_dataplane_running_and_another_goes_on() {
    let test = "a_controller_that_is_killed_leaves_the_dataplane_running_and_another_goes_on";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    let policy = policy(&net);
    loaded(&net, || {
        for _ in 0..5 {
            let controller = control(&net, &["--policy", &policy]);
            controller.wait_for("ix: control: ix-echo", SOON);
            // Dropped: killed, at whatever it is doing.
        }
    });
    eventually("it is forgotten", || status(&net)["controller"].is_null());
    let controller = control(&net, &["--policy", &policy]);
    controller.wait_for("ix: control: ix-echo", SOON);
    runs(&net, 1);
    service.finish(PATIENCE);
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_it_would_do() {
    let test = "a_dry_run_changes_nothing_and_says_what_it_would_do";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    let dry = control(&net, &["--policy", &policy(&net), "--dry-run"]);
    let line = dry.wait_for("ix: control: ix-echo", SOON);
    assert!(line.contains("took over 2×1"), "{line}");
    let line = dry.wait_for("ix: control: dry run: ix-echo", SOON);
    assert!(line.contains("down to 1×1") && line.ends_with("park 1"), "{line}");
    assert_eq!(states(&net), ["active", "active"]);
    service.finish(PATIENCE);
}

#[test]
fn the_policy_may_change_while_it_runs() {
    let test = "the_policy_may_change_while_it_runs";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    let file = policy(&net);
    let controller = control(&net, &["--policy", &file, "--json"]);
    let said = |what: &str| {
        let lines = controller.said();
        let objects = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        objects.filter(|object| object.to_string().contains(what)).count()
    };
    runs(&net, 1);
    eventually("states", || said("\"event\":\"state\"") > 0);
    std::fs::write(&file, POLICY.replace("slo_us = 300000", "slo_us = 0")).expect("written");
    controller.signal(libc::SIGHUP);
    eventually("nonsense is refused", || said("slo_us: 0 is not between") == 1);
    std::fs::write(&file, POLICY.replace("\"test\"", "\"other\"")).expect("written");
    eventually("read by itself", || said("took over 1×1, policy other") == 1);
    let refused = ask(&net, "{\"do\":\"policy\",\"slo_us\":-1}").expect_err("nonsense");
    assert!(refused.contains("slo_us: -1 is not between"), "{refused}");
    ask(&net, "{\"do\":\"policy\",\"slo_us\":123456}").expect("heard");
    eventually("as asked", || said("policy other, at most 123456 µs, for") == 1);
    eventually("reported", || status(&net)["controller"]["slo_us"] == 123_456.0);
    runs(&net, 1);
    service.finish(PATIENCE);
}

#[test]
fn one_that_does_not_answer_holds_nobody_up() {
    let test = "one_that_does_not_answer_holds_nobody_up";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    let controller = control(&net, &["--policy", &policy(&net)]);
    runs(&net, 1);
    service.process.signal(libc::SIGSTOP);
    let line = controller.wait_for("ix: control: ix-echo (", SOON);
    assert!(line.contains("took over"), "{line}");
    eventually("it is said", || {
        controller
            .said()
            .iter()
            .any(|line| line.contains("does not answer") || line.contains("is gone"))
    });
    service.process.signal(libc::SIGCONT);
    loaded(&net, || runs(&net, 2));
    service.finish(PATIENCE);
}

#[test]
fn wrong_input_is_told_in_one_line_before_anything_is_touched() {
    let refuses = |args: &[&str], words: &[&str]| {
        let output = support::command::ix(&[&["cp"], args].concat());
        let text = support::command::errors(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{args:?}: {text}"));
    };
    refuses(&["--policy", "/nowhere.toml"], &["/nowhere.toml", "energy, consolidation, minmax"]);
    refuses(&["--slo-us", "0"], &["cannot use --slo-us: 0 is not between", "write microseconds"]);
    refuses(&["--pid", "1"], &["process 1 has none that this user may reach", "--control"]);
    refuses(
        &["--control", "/nowhere.sock"],
        &["/nowhere.sock", "check that its `ix run` is running"],
    );
    refuses(&["--background", "999999999"], &["`999999999`: no "]);
    refuses(&["--background", "/no/such/group"], &["`/no/such/group`: no c"]);
    let cpus = &["--background", "1", "--background-cpus"][..];
    refuses(&[cpus, &["4000"]].concat(), &["no hardware thread 4000", "choose from 0"]);
    refuses(&[cpus, &["2-1"]].concat(), &["`2-1` is not a list of hardware threads", "2-7"]);
    let file = std::env::temp_dir().join(format!("ix-wrong-{}.toml", std::process::id()));
    for (text, key) in [("x = 1", "line 1: unknown field `x`"), ("slo_us = [", "line 1")] {
        std::fs::write(&file, text).expect("written");
        let name = file.display().to_string();
        refuses(&["--policy", &name], &[&name, key, "`ix cp --print-policy energy` prints"]);
    }
    std::fs::remove_file(&file).expect("gone");
    let run = ["run", "--nic", "tap:ixt0", "--addr", "10.9.0.2/24", "--policy", "/nowhere.toml"];
    let output = support::command::ix(&[&run[..], &["--", "/bin/true"]].concat());
    assert!(support::command::errors(&output).contains("cannot read the policy /nowhere.toml"));
    assert!(!output.status.success());
}

#[test]
fn the_policies_are_printed_as_files_that_are_read() {
    for name in ["energy", "consolidation", "minmax"] {
        let output = support::command::ix(&["cp", "--print-policy", name]);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains(&format!("name = \"{name}\"")) && text.starts_with("# "), "{text}");
    }
}
