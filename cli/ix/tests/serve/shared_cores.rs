//! Two dataplanes on the same cores under one controller.
use crate::support::process::{Process, signal};
use crate::support::traffic::Crowd;
use crate::support::{Nic, PATIENCE, SECOND, SERVICE, Service, TestNet};
use ix_skip::{Need, skip, skip_part};
use ix_testbed::cpu;
use std::net::SocketAddrV4;
use std::process::Command;
use std::time::{Duration, Instant};

const SIZE: usize = 64;
/// The machine may be busy with other work: a turn of the loop may come late.
const SOON: Duration = Duration::from_secs(60);
/// So many cores at most: each thread has a queue, and more show nothing else.
const CORES_MAX: usize = 3;

/// Climbs early and comes down late, so that a busy machine does not matter.
const POLICY: &str = "name = \"test\"\nslo_us = 300000\n\
    [base]\ncores = 1\nthreads_per_core = 1\nclock = \"lowest\"\n[ladder]\nadd = [\"cores\"]\n\
    [up]\nbusy_max = 0.5\n[down]\nbusy_max = 0.3\nwindow_ms = 300\nmargin = 1.0\nregret_s = 0\n";

fn control(net: &TestNet, dataplanes: [&Service; 2]) -> Process {
    let file = net.file("policy.toml");
    std::fs::write(&file, POLICY).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("cp").arg("--policy").arg(file);
    for dataplane in dataplanes {
        command.arg("--control").arg(dataplane.control());
    }
    Process::start(command)
}

/// Threads that run.
fn running(service: &Service, threads: usize) -> Vec<usize> {
    let stats = service.stats();
    (0..threads).filter(|thread| stats.state(*thread) == "active").collect()
}

fn loaded(net: &TestNet, service: SocketAddrV4, work: impl FnOnce() + Send) {
    Crowd { service, size: SIZE, turnover: false }.during(&net.client, work);
}

#[test]
fn load_takes_its_cores_along_and_who_dies_leaves_them() {
    let test = "load_takes_its_cores_along_and_who_dies_leaves_them";
    let cores = cpu::allowed().len().min(CORES_MAX);
    if cores < 2 {
        skip(test, Need::Cpus(2), "one CPU");
        return;
    }
    if cores < CORES_MAX {
        skip_part(test, Need::Cpus(CORES_MAX), "with two CPUs each dataplane keeps its only one");
    }
    let Some(net) = TestNet::alone(test, Nic::Tap, cores) else { return };
    let a = net.serve(&[&SIZE.to_string()]);
    let b = net.serve_second(&[&SIZE.to_string()]);
    let parted = |of_a: usize, of_b: usize| {
        let end = Instant::now() + SOON;
        loop {
            let (at_a, at_b) = (running(&a, cores), running(&b, cores));
            let apart = at_a.iter().all(|thread| !at_b.contains(thread));
            if apart && (at_a.len(), at_b.len()) == (of_a, of_b) {
                return;
            }
            assert!(Instant::now() < end, "{of_a} and {of_b} cores, not {at_a:?} and {at_b:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let controller = control(&net, [&a, &b]);
    parted(1, 1);
    for _ in 0..2 {
        loaded(&net, SERVICE, || parted(cores - 1, 1));
        loaded(&net, SECOND, || parted(1, cores - 1));
    }
    // Killed, and another one: it picks both up.
    drop(controller);
    let controller = control(&net, [&a, &b]);
    let took_over = || {
        let said = controller.said();
        said.iter().filter(|line| line.contains("took over ")).count()
    };
    let end = Instant::now() + SOON;
    while took_over() < 2 {
        assert!(Instant::now() < end, "{controller}");
        std::thread::sleep(Duration::from_millis(20));
    }
    loaded(&net, SECOND, || parted(1, cores - 1));
    signal(b.program(), libc::SIGKILL);
    let (status, said) = b.process.wait(PATIENCE);
    assert!(!status.success(), "{said:?}");
    loaded(&net, SERVICE, || {
        let end = Instant::now() + SOON;
        while running(&a, cores).len() < cores {
            assert!(Instant::now() < end, "all cores are its own now: {controller}");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(controller.said().iter().any(|line| line.contains("has ended")), "{controller}");
    let stats = a.finish(PATIENCE);
    assert_eq!(stats.drops(), 0, "{stats}");
}
