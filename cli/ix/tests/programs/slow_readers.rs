//! Clients that read slowly: their windows are closed most of the time, and Linux, which has no
//! memory for what was sent before, takes its window back.
use super::posix::compile;
use crate::support::{Nic, PATIENCE, SERVICE, TestNet, connect_to};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const READERS: usize = 300;
const WANTED: usize = 2_000_000;
/// Each reader reads so much each time.
const BYTES: usize = 1024;
const PAUSE: Duration = Duration::from_millis(100);
const ROUNDS: usize = 80;
/// The longest that another client may wait for [`WANTED`]: the machine may be busy.
const OTHERS: Duration = Duration::from_secs(5);

fn ask(stream: &mut TcpStream) {
    stream.write_all(format!("{WANTED}\n").as_bytes()).expect("ask");
}

/// A client that reads as fast as it can, again and again; returns the longest time of one.
fn fetch_until(net: &TestNet, end: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    let mut back = vec![0; WANTED];
    while !end.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let mut stream = net.client.run(|| connect_to(SERVICE));
        ask(&mut stream);
        stream.read_exact(&mut back).expect("another client is served");
        longest = longest.max(begin.elapsed());
        std::thread::sleep(PAUSE);
    }
    longest
}

/// What the slowest of the readers has got after all rounds.
fn read_slowly(readers: &mut [TcpStream]) -> usize {
    let mut got = vec![0; readers.len()];
    let begin = Instant::now();
    for round in 1..=ROUNDS as u32 {
        for (stream, got) in readers.iter_mut().zip(&mut got) {
            match stream.read(&mut [0; BYTES]) {
                Ok(bytes) => *got += bytes,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => panic!("a reader: {e}"),
            }
        }
        std::thread::sleep((begin + round * PAUSE).saturating_duration_since(Instant::now()));
    }
    got.into_iter().min().unwrap_or(0)
}

fn slow_readers(test: &str, nic: Nic) {
    let Some(program) = compile(test, "fill") else { return };
    let Some(net) = TestNet::busy(test, nic, 1) else { return };
    let mut service = net.start(&[program.to_str().expect("text"), "7", "edge"]);
    service.process.wait_for("ready", PATIENCE);
    let mut readers: Vec<_> = (0..READERS)
        .map(|_| {
            let mut stream = net.client.run(|| connect_to(SERVICE));
            ask(&mut stream);
            stream.set_nonblocking(true).expect("an option");
            stream
        })
        .collect();
    let end = AtomicBool::new(false);
    let (least, longest) = std::thread::scope(|scope| {
        let other = scope.spawn(|| fetch_until(&net, &end));
        let least = read_slowly(&mut readers);
        end.store(true, Ordering::Relaxed);
        (least, other.join().expect("another client"))
    });
    let stats = service.stats();
    let [holes, again] = ["tcp.pmtu_black_hole", "tcp.retransmits"].map(|name| stats.total(name));
    eprintln!("{test}: {least} bytes, others {longest:.0?}, {again} retransmits, {holes} holes");
    assert_eq!(holes, 0, "a closed window is no path that drops long segments");
    assert!(least >= BYTES * ROUNDS * 9 / 10, "a reader got {least} bytes");
    assert!(longest < OTHERS, "another client waited for {longest:?}");
    drop(readers);
    service.process.check();
    service.finish(PATIENCE);
}

#[test]
fn slow_readers_are_no_black_hole_over_afxdp() {
    slow_readers("slow_readers_are_no_black_hole_over_afxdp", Nic::Afxdp);
}

#[test]
fn slow_readers_are_no_black_hole_over_tap() {
    slow_readers("slow_readers_are_no_black_hole_over_tap", Nic::Tap);
}
