//! The memif device against DPDK's (Debian: `dpdk-dev`, `librte-net-memif23`), in both roles.

use crate::ends::{End, frame, path};
use ix_skip::{Need, skip};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// testpmd spins on a CPU: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A testpmd that sends back what comes in.
struct Testpmd {
    child: Child,
    _turn: MutexGuard<'static, ()>,
}

impl Testpmd {
    /// Starts it with a memif of this role; `None`, loudly, where it is not installed.
    fn start(test: &str, role: &str, socket: &str, mode: &str) -> Option<Testpmd> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let device = format!("net_memif0,role={role},socket={socket},socket-abstract=no");
        let child = Command::new("dpdk-testpmd")
            .args(["--no-huge", "-m", "256", "--no-pci", "-l", "0,1", "--no-telemetry"])
            .args([&format!("--file-prefix=ix-{}-{test}", std::process::id())])
            .args([&format!("--vdev={device}"), "--", "--total-num-mbufs=8192"])
            .args(["--disable-link-check", "--auto-start", &format!("--forward-mode={mode}")])
            .stdin(Stdio::piped()) // It ends when a line or the end comes in.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Testpmd { child, _turn: turn }),
            Err(e) => {
                let packages = "apt-get install dpdk-dev librte-net-memif23 librte-mempool-ring23";
                skip(test, Need::Program(packages), format_args!("dpdk-testpmd: {e}"));
                None
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a link: DPDK takes seconds to start.
fn wait_for_link(end: &mut End) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !end.is_up() {
        assert!(Instant::now() < limit, "no link with DPDK; said {:?}", end.said);
        end.service();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(end.said_last("peer connected (DPDK"), "{:?}", end.said);
}

/// Sends `count` frames of all lengths and compares what comes back, in order. testpmd may lose
/// frames before it forwards, so the first is sent until it comes back.
fn echo(end: &mut End, count: u64, as_sent_back: impl Fn(Vec<u8>) -> Vec<u8>) {
    let made = |i: u64| frame(i, 60 + (i as usize * 131) % 1455);
    let limit = Instant::now() + Duration::from_secs(60);
    while end.receive(0).is_empty() {
        assert!(Instant::now() < limit, "DPDK sends nothing back");
        end.send(0, &made(1 << 20));
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(100));
    while !end.receive(0).is_empty() {}
    let (mut sent, mut back) = (0, 0);
    while back < count {
        assert!(Instant::now() < limit, "DPDK sent back {back} of {sent}");
        while sent < count && sent - back < 200 {
            assert!(end.host.send(0, &made(sent)));
            sent += 1;
        }
        end.host.kick(0);
        for got in end.receive(0) {
            assert!(got == as_sent_back(made(back)), "frame {back} of {} bytes", got.len());
            back += 1;
        }
        std::thread::yield_now();
    }
}

fn swapped(mut frame: Vec<u8>) -> Vec<u8> {
    for i in 0..6 {
        frame.swap(i, i + 6);
    }
    frame
}

#[test]
fn our_client_and_a_dpdk_server() {
    let path = path("dpdk-server");
    let Some(peer) = Testpmd::start("dpdk-server", "server", &path, "io") else { return };
    let mut end = End::open(&format!("memif:{path},role=client"));
    wait_for_link(&mut end);
    echo(&mut end, 100_000, |frame| frame);
    // It dies, and another one takes its place.
    drop(peer);
    end.until("the peer is gone", |end| end.said_last("peer gone") || end.said_last("no server"));
    assert_eq!(end.host.nics[0].frames_held(), (0, 0), "all frames are back");
    let _ = std::fs::remove_file(&path);
    let Some(_peer) = Testpmd::start("dpdk-server-2", "server", &path, "macswap") else { return };
    wait_for_link(&mut end);
    echo(&mut end, 20_000, swapped);
    assert_eq!(end.host.nics[0].drops(), Default::default());
    end.host.assert_nothing_leaks();
    let _ = std::fs::remove_file(&path); // testpmd is killed and leaves it
}

#[test]
fn our_server_and_a_dpdk_client() {
    let path = path("dpdk-client");
    let mut end = End::open(&format!("memif:{path},role=server"));
    for (mode, count) in [("io", 100_000), ("macswap", 20_000)] {
        let test = format!("dpdk-client-{mode}");
        let Some(peer) = Testpmd::start(&test, "client", &path, mode) else { return };
        wait_for_link(&mut end);
        if mode == "io" {
            echo(&mut end, count, |frame| frame);
        } else {
            echo(&mut end, count, swapped);
        }
        drop(peer);
        end.until("the peer is gone", |end| end.said_last("peer gone"));
    }
    assert_eq!(end.host.nics[0].drops().rx_invalid, 0);
    end.host.assert_nothing_leaks();
}
