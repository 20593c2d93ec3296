//! Servers that answer wrongly, slowly, or not at all: each a clear line and a status, and nothing
//! hangs.

use crate::support::{Ran, free_port, generator, load, ran, server};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const QUICK: &str = "--connections 4 --seconds 0.5 --warmup 0 --quiet";

/// Echoes what `change` makes of each piece.
fn echo(mut stream: TcpStream, mut change: impl FnMut(&mut Vec<u8>)) {
    let mut buf = vec![0; 64 << 10];
    while let Ok(n) = stream.read(&mut buf)
        && n > 0
    {
        let mut piece = buf[..n].to_vec();
        change(&mut piece);
        if stream.write_all(&piece).is_err() {
            return;
        }
    }
}

fn says(ran: &Ran, status: i32, words: &str) {
    assert_eq!(ran.status, status, "{}", ran.errors);
    assert!(ran.errors.contains(words), "`{words}` is not in: {}", ran.errors);
    assert!(ran.seconds < 30.0, "it took {} s", ran.seconds);
}

#[test]
fn a_good_server_is_no_error() {
    let at = server(|stream, _| echo(stream, |_| ()));
    let ran = load(at, QUICK);
    assert_eq!((ran.status, ran.number("errors")), (0, 0.0), "{}", ran.errors);
    assert!(ran.number("p99_us") >= ran.number("p50_us"));
}

#[test]
fn wrong_bytes() {
    let flips = AtomicU64::new(0);
    let flips = Arc::new(flips);
    let at = server(move |stream, _| {
        let flips = Arc::clone(&flips);
        echo(stream, move |piece| {
            if flips.fetch_add(1, Ordering::Relaxed) % 20 == 19 {
                piece[3] ^= 1;
            }
        });
    });
    let ran = load(at, QUICK);
    says(&ran, 4, "errors `wrong_value`, the first: the echo differs");
    assert!(ran.number("wrong_value") >= 1.0 && ran.number("msgs_per_s") > 0.0);
    assert_eq!(load(at, &format!("{QUICK} --no-verify")).status, 0);
}

#[test]
fn a_server_that_closes_midway() {
    let at = server(|stream, _| {
        let mut left = 10;
        let stop = stream.try_clone().expect("clone");
        echo(stream, move |_| {
            left -= 1;
            if left == 0 {
                let _ = stop.shutdown(Shutdown::Both);
            }
        });
    });
    let ran = load(at, QUICK);
    assert_eq!(ran.status, 4, "{}", ran.errors);
    assert!(ran.number("closed") + ran.summary()["reset"].as_f64().unwrap_or(0.0) >= 1.0);
}

#[test]
fn a_server_that_is_silent() {
    let at = server(|mut stream, _| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let ran = load(at, &format!("{QUICK} --timeout 0.3"));
    says(&ran, 1, "no reply in 0.3 s");
}

#[test]
fn a_server_that_stops_answering_midway() {
    let at = server(|stream, _| {
        let mut left = 50;
        echo(stream, move |_| {
            left -= 1;
            if left == 0 {
                thread::sleep(Duration::from_secs(60));
            }
        });
    });
    let ran = load(at, &format!("{QUICK} --timeout 0.3 --seconds 1"));
    says(&ran, 4, "errors `no_answer`, the first: no reply in 0.3 s");
    let open = load(at, &format!("{QUICK} --rate 2000"));
    assert!(open.number("unfinished") > 0.0 && open.summary()["reached"] == false);
    assert!(open.number("p99_us") > 100_000.0, "their age counts: {}", open.summary());
}

#[test]
fn a_slow_server_does_not_reach_the_rate() {
    let at = server(|stream, _| {
        echo(stream, |_| thread::sleep(Duration::from_millis(20)));
    });
    let ran = load(at, &format!("{QUICK} --rate 1000 --seconds 1"));
    says(&ran, 0, "the rate was NOT reached");
    assert_eq!(ran.summary()["reached"], false);
    assert!(ran.number("msgs_per_s") < 300.0);
    assert!(ran.number("p99_us") > 200_000.0, "they were due long before they were sent");
}

#[test]
fn nobody_there() {
    let at = format!("127.0.0.1:{}", free_port()).parse().expect("address");
    let ran = load(at, QUICK);
    says(&ran, 1, "refused");
    assert!(ran.errors.contains("is the server running?"), "{}", ran.errors);
    assert_eq!(ran.errors.trim_end().lines().count(), 1, "{}", ran.errors);
}

#[test]
fn a_server_that_dies_midway() {
    let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let begin = Instant::now();
    let kept = Arc::clone(&streams);
    let at = server(move |stream, _| {
        if begin.elapsed() > Duration::from_millis(700) {
            return;
        }
        kept.lock().expect("lock").push(stream.try_clone().expect("clone"));
        echo(stream, |_| ());
    });
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(700));
        for stream in streams.lock().expect("lock").iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
    let ran = load(at, "--connections 4 --seconds 2 --warmup 0 --quiet");
    assert_eq!(ran.status, 4, "{}", ran.errors);
    assert!(ran.number("errors") >= 4.0);
}

#[test]
fn answers_of_other_protocols() {
    let at = server(|mut stream, _| {
        let mut buf = [0; 4096];
        while let Ok(n) = stream.read(&mut buf)
            && n > 0
            && stream.write_all(b"220 mail.example ESMTP\r\n").is_ok()
        {}
    });
    for protocol in ["memcached", "memcached-binary", "http"] {
        let ran = load(at, &format!("--protocol {protocol} --no-preload {QUICK}"));
        says(&ran, 1, "220 mail.example");
        let ran = load(at, &format!("--protocol {protocol} {QUICK}"));
        assert_eq!(ran.status, 1, "{}", ran.errors);
    }
}

#[test]
fn pages() {
    let pages = AtomicU64::new(0);
    let pages = Arc::new(pages);
    let at = server(move |mut stream, _| {
        let mut buf = [0; 4096];
        while let Ok(n) = stream.read(&mut buf)
            && n > 0
        {
            let requests = buf[..n].windows(4).filter(|four| *four == b"\r\n\r\n").count();
            for _ in 0..requests {
                // Every 50th page is another one.
                let page = if pages.fetch_add(1, Ordering::Relaxed) % 50 == 49 { "b" } else { "a" };
                let page = page.repeat(3000);
                let head = "HTTP/1.1 200 OK\r\ncontent-LENGTH: 3000\r\n\r\n";
                if stream.write_all(head.as_bytes()).is_err()
                    || stream.write_all(page.as_bytes()).is_err()
                {
                    return;
                }
            }
        }
    });
    let ran = load(at, &format!("--protocol http --depth 4 {QUICK}"));
    says(&ran, 4, "the page differs from the first reply");
    assert!(ran.number("msgs_per_s") > 0.0);
    assert_eq!(load(at, &format!("--protocol http --no-verify {QUICK}")).status, 0);
}

#[test]
fn latency_that_stops_a_run() {
    let at = server(|stream, _| {
        echo(stream, |_| thread::sleep(Duration::from_millis(3)));
    });
    let ran = load(at, "--connections 2 --seconds 20 --warmup 0 --stop-latency 50:1000");
    assert_eq!(ran.status, 0, "{}", ran.errors);
    assert!(ran.summary()["stopped"].as_str().is_some_and(|why| why.contains("above 1000")));
    assert!(ran.seconds < 10.0);
}

#[test]
fn wrong_command_lines_say_what_to_do() {
    for (words, says) in [
        (&["127.0.0.1:7", "--depth", "0"][..], "at least 1"),
        (&["127.0.0.1"], "write HOST:PORT"),
        (&["127.0.0.1:7", "--rate", "-5"], "unexpected argument"),
        (&["127.0.0.1:7", "--key-size", "gauss:1"], "is not a distribution"),
        (&["127.0.0.1:7", "--nic", "tap:x"], "--addr"),
        (&[], "TARGET"),
    ] {
        let begin = Instant::now();
        let ran = ran(&generator().args(words).output().expect("runs"), begin);
        assert_eq!(ran.status, 2, "{words:?}: {}", ran.errors);
        assert!(ran.errors.contains(says), "{words:?}: {}", ran.errors);
    }
}
