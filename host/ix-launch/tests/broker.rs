//! What binds broker and program together: configuration, refusals, signals, death.
use crate::common::{begin, boot, start};
use ix_launch::{Exit, Occurrence, ServeError, SignalForwarding, memfd, serve};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_configuration_that_makes_no_sense_is_one_line() {
    let mut child = start("/bin/true", &[]).expect("starts");
    let page = memfd(c"ix-controller").expect("memfd");
    let mut wrong = begin();
    wrong.config.batch = 0;
    let error = serve(&mut child, wrong, &[page.as_fd()], &mut |_, _| Ok(())).expect_err("no");
    assert!(matches!(error, ServeError::Refused(_)));
    let text = error.to_string();
    assert!(text.contains("out of bounds") && !text.contains('\n'), "{text}");
    assert_eq!(child.wait().expect("ended"), Exit::Status(1));
}

#[test]
fn missing_descriptors_are_told() {
    let mut child = start("/bin/true", &[]).expect("starts");
    let error = serve(&mut child, begin(), &[], &mut |_, _| Ok(())).expect_err("no page");
    assert!(error.to_string().contains("control page"), "{error}");
}

#[test]
fn other_descriptors_are_waited_for_at_the_same_time() {
    let mut child = start("sleep", &["10"]).expect("starts");
    boot(&mut child);
    let (reader, writer) = std::io::pipe().expect("pipe");
    assert!(matches!(child.next(&[reader.as_fd()], 1).expect("next"), Occurrence::Nothing));
    drop(writer);
    assert!(matches!(child.next(&[reader.as_fd()], 1000).expect("next"), Occurrence::Readable(0)));
    child.kill();
    assert_eq!(child.wait().expect("ended"), Exit::Signal(libc::SIGKILL));
}

#[test]
fn signals_to_the_broker_go_on_to_the_program() {
    let script = "trap 'exit 9' TERM; : > \"$1\"; while :; do sleep 0.02; done";
    let name = format!("{}/trap-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let mut child = start("sh", &["-c", script, "sh", &name]).expect("starts");
    boot(&mut child);
    let forwarding = SignalForwarding::to(child.leader()).expect("forwards");
    assert!(SignalForwarding::to(child.leader()).is_err(), "one at a time");
    while !std::path::Path::new(&name).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: our own handler is in place.
    unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    assert_eq!(child.wait().expect("ended"), Exit::Status(9));
    drop(forwarding);
    std::fs::remove_file(name).expect("removes");
}

#[test]
fn the_program_dies_with_its_broker() {
    let own = std::env::current_exe().expect("own path");
    let mut broker = Command::new(own)
        .args(["--exact", "broker::a_broker_that_will_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(broker.stdout.take().expect("piped")).lines();
    let is_pid = |line: std::io::Result<String>| line.ok()?.strip_prefix("pid=")?.parse().ok();
    let pid: i32 = { lines }.find_map(is_pid).expect("pid");
    let is_alive = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(is_alive());
    broker.kill().expect("kill");
    broker.wait().expect("wait");
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_alive() {
        assert!(Instant::now() < deadline, "process {pid} outlives its broker");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Run by the test above.
#[test]
#[ignore = "part of another test"]
fn a_broker_that_will_be_killed() {
    let mut child = start("sleep", &["60"]).expect("starts");
    boot(&mut child);
    println!("\npid={}", child.pid());
    child.wait().expect("ends");
}
