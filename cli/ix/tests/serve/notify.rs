//! What a service manager hears of `ix run`, by the test's own socket in systemd's place.
use crate::support::traffic::{close, echo};
use crate::support::{Nic, PATIENCE, Service, TestNet, build_echo};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The manager's bound on silence.
const BOUND: Duration = Duration::from_secs(1);

/// A socket in the manager's place. It has a file, because names without one end with the network
/// namespace.
fn manager(net: &TestNet) -> (UnixDatagram, PathBuf) {
    let path = net.file("notify");
    (UnixDatagram::bind(&path).expect("bound"), path)
}

/// The next message within this time.
fn hears(socket: &UnixDatagram, within: Duration) -> Option<String> {
    socket.set_read_timeout(Some(within)).expect("set");
    let mut bytes = [0; 512];
    let len = socket.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

/// Waits until it hears a message that begins so.
fn waits_for(socket: &UnixDatagram, start: &str) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if hears(socket, PATIENCE).is_some_and(|text| text.starts_with(start)) {
            return;
        }
    }
    panic!("no {start} within {PATIENCE:?}");
}

fn start(net: &TestNet, socket: &Path, program: &[&str]) -> Service {
    let (bound, socket) = (BOUND.as_micros().to_string(), socket.to_str().expect("text"));
    net.start_env(&[("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", &bound)], &[], program)
}

#[test]
fn a_service_is_ready_when_it_serves_and_is_heard_until_its_end() {
    let test = "a_service_is_ready_when_it_serves_and_is_heard_until_its_end";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let (socket, path) = manager(&net);
        let program = build_echo();
        let service = start(&net, &path, &[program.to_str().expect("text"), "64"]);
        waits_for(&socket, "READY=1");
        // Nothing else was waited for.
        let mut stream = net.connect();
        echo(&mut stream, 1, 64);
        for _ in 0..3 {
            let heard = hears(&socket, BOUND).expect("it lives");
            assert_eq!(heard, "WATCHDOG=1", "{nic:?}");
        }
        close(stream);
        service.finish(PATIENCE);
        waits_for(&socket, "STOPPING=1");
    }
}

#[test]
fn a_program_without_a_dataplane_is_never_ready_and_knows_no_manager() {
    let test = "a_program_without_a_dataplane_is_never_ready_and_knows_no_manager";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (socket, path) = manager(&net);
    let script = "env | grep -c -e NOTIFY_SOCKET -e WATCHDOG; sleep 1; echo done";
    let service = start(&net, &path, &["sh", "-c", script]);
    let (status, lines) = service.process.wait(PATIENCE);
    assert!(status.success() && lines.iter().any(|line| line == "0"), "{status} {lines:#?}");
    let heard: Vec<String> = std::iter::from_fn(|| hears(&socket, BOUND / 10)).collect();
    assert!(heard.iter().all(|text| !text.contains("READY")), "{heard:#?}");
    assert_eq!(heard.last().map(String::as_str), Some("STOPPING=1"), "{heard:#?}");
}

#[test]
fn a_manager_that_cannot_be_told_is_one_line() {
    let test = "a_manager_that_cannot_be_told_is_one_line";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let service = start(&net, Path::new("/nonexistent/notify"), &["true"]);
    let (status, lines) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(125), "{lines:#?}");
    assert!(lines.len() == 1 && lines[0].contains("service manager"), "{lines:#?}");
}
