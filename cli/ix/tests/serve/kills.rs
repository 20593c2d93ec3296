//! `kill -9` of program, dataplane and `ix run`, under load, again and again. After each the port
//! is served again, and nothing is left of what was killed.
use crate::support::process::{is_alive, open_files, signal};
use crate::support::traffic::message;
use crate::support::{Ends, Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DOMAIN: [&str; 2] = ["--domain", "process"];
/// Clients that echo without a pause.
const CLIENTS: u64 = 3;
/// Echoes before the next kill.
const UNDER_WAY: u64 = 20;
/// A dataplane is started again so often in a minute.
const DEATHS: usize = 5;
/// After its broker a run is over within this time.
pub(super) const BROKER: Duration = Duration::from_secs(2);

/// Echoes until it is told to end; connects again whenever its connection fails.
fn client(echoes: &AtomicU64, ends: &AtomicBool, id: u64) {
    let wait = Duration::from_millis(300);
    while !ends.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect_timeout(&SERVICE.into(), wait) else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        stream.set_read_timeout(Some(wait)).expect("a timeout");
        let sent = message(id, 64);
        let mut back = vec![0; sent.len()];
        while !ends.load(Ordering::Relaxed)
            && stream.write_all(&sent).is_ok()
            && stream.read_exact(&mut back).is_ok()
        {
            assert!(back == sent, "the answer differs");
            echoes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The memory that a process shares with others of its run.
fn shared_memory(process: i32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("maps");
    maps.lines().filter(|line| line.contains("/memfd:ix-")).count()
}

/// What of a run must not grow with each dataplane.
fn held(service: &Service) -> [usize; 4] {
    let (broker, program) = (service.process.pid(), service.program());
    [open_files(broker), open_files(program), shared_memory(broker), shared_memory(program)]
}

/// The lock of the dataplane's user, while somebody has it.
fn user_of(dataplane: i32) -> PathBuf {
    let status = std::fs::read_to_string(format!("/proc/{dataplane}/status")).expect("status");
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a user");
    PathBuf::from("/run/ix/users").join(uid.split_whitespace().next().expect("a number"))
}

/// Whether this process took the lock, and it is still held. Another run may have taken it since.
fn is_held_of(path: &PathBuf, broker: i32) -> bool {
    let Ok(inode) = std::fs::metadata(path).map(|file| file.ino()) else { return false };
    let locks = std::fs::read_to_string("/proc/locks").expect("locks");
    let inode = format!(":{inode}");
    locks.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.any(|word| word == broker.to_string()) && words.any(|word| word.ends_with(&inode))
    })
}

/// Kills each of the three so often.
fn kills(name: &str, times: usize) {
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let (echoes, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for id in 0..CLIENTS {
            let (net, echoes, ends) = (&net, &echoes, &ends);
            scope.spawn(move || net.client.run(|| client(echoes, ends, id)));
        }
        let _end = Ends(&ends);
        let is_served = || {
            let before = echoes.load(Ordering::Relaxed);
            eventually("the port is served", || {
                echoes.load(Ordering::Relaxed) >= before + UNDER_WAY
            });
        };
        for round in 0..times.div_ceil(DEATHS) {
            let (mut first, in_this_round) = (None, DEATHS.min(times - round * DEATHS));
            let mut service = net.serve_with(&DOMAIN, &["64"]);
            for nth in 1..=in_this_round {
                is_served();
                let dataplane = service.dataplane();
                signal(dataplane, libc::SIGKILL);
                let line = "ix: the dataplane ended (killed by SIGKILL)";
                service.process.wait_for_nth(line, nth, PATIENCE);
                assert!(!is_alive(dataplane));
                is_served();
                // A request for statistics is a connection for a moment.
                let least = *first.get_or_insert_with(|| held(&service));
                eventually(&format!("no more descriptors and memory than {least:?}"), || {
                    held(&service).iter().zip(least).all(|(now, least)| *now <= least)
                });
            }
            for kill in 0..2 * in_this_round {
                is_served();
                let all = [service.process.pid(), service.program(), service.dataplane()];
                let user = user_of(all[2]);
                let is_apart = all[2] != all[1];
                assert!(!is_apart || is_held_of(&user, all[0]), "{user:?} is not locked");
                let is_broker = kill % 2 == 0;
                signal(all[usize::from(!is_broker)], libc::SIGKILL);
                let since = Instant::now();
                eventually("no process is left", || all[1..].iter().all(|p| !is_alive(*p)));
                let took = since.elapsed();
                assert!(!is_broker || took < BROKER, "{took:?} after the broker");
                service.process.wait(PATIENCE);
                assert!(!is_apart || !is_held_of(&user, all[0]), "{user:?} is locked");
                service = net.serve_with(&DOMAIN, &["64"]);
            }
            is_served();
            service.process.terminate();
        }
    });
    // The next program could not be put there, nor the interface be removed in peace.
    let (namespace, link) = net.service_link();
    eventually("no XDP program is left", || {
        let mut show = namespace.command("ip", None);
        let shown = show.args(["-details", "link", "show", link]).output().expect("ip");
        assert!(shown.status.success(), "{shown:?}");
        !String::from_utf8_lossy(&shown.stdout).contains("xdp")
    });
}

#[test]
fn whoever_is_killed_nothing_is_left() {
    kills("whoever_is_killed_nothing_is_left", 30);
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn whoever_is_killed_a_thousand_times_nothing_is_left() {
    kills("whoever_is_killed_a_thousand_times_nothing_is_left", 1000);
}
