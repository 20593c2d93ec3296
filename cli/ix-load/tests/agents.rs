//! A master and its agents, on loopback.

use crate::support::{Running, generator, load, memcached, ran, server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// An agent, and where it waits.
fn agent(words: &[&str]) -> (Running, SocketAddr) {
    let mut command = generator();
    command.args(["agent", "--listen", "127.0.0.1:0"]).args(words);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let at = line.trim().rsplit(' ').next().expect("a word").parse().expect("an address");
    (Running(child), at)
}

fn echo() -> SocketAddr {
    server(|mut stream, _| {
        let mut buf = [0; 4096];
        while let Ok(n) = stream.read(&mut buf)
            && n > 0
            && stream.write_all(&buf[..n]).is_ok()
        {}
    })
}

#[test]
fn two_agents_make_the_load_and_the_master_measures() {
    let Some((_memcached, at)) = memcached(&["-m", "64"]) else { return };
    let (_one, first) = agent(&["--once"]);
    let (_two, second) = agent(&[]);
    let words = "--protocol memcached --workload usr --records 1000 --connections 5 --rate 600";
    let words = format!("{words} --seconds 2 --warmup 0.5 --agents {first},{second}");
    let words = format!("{words} --measure-connections 3 --measure-rate 200");
    let ran = load(at, &words);
    assert_eq!(ran.status, 0, "{}", ran.errors);
    assert_eq!(ran.rows.len(), 3, "two seconds and the summary");
    assert!((450.0..750.0).contains(&ran.number("msgs_per_s")), "{}", ran.summary());
    assert!((120.0..280.0).contains(&ran.number("measure_msgs_per_s")), "{}", ran.summary());
    assert_eq!(ran.number("hit_rate"), 1.0);
    assert_eq!(ran.summary()["partial"], false);
    // The second agent serves another master.
    let again = load(at, &format!("--protocol memcached --seconds 0.5 -q --agents {second}"));
    assert_eq!(again.status, 0, "{}", again.errors);
}

#[test]
fn an_agent_that_disappears_makes_the_result_partial() {
    let at = echo();
    let (_one, first) = agent(&[]);
    let (two, second) = agent(&[]);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(1800));
        drop(two);
    });
    let words = "--connections 4 --rate 400 --seconds 4 --warmup 0 -q";
    let ran = load(at, &format!("{words} --agents {first},{second} --measure-connections 2"));
    assert_eq!(ran.status, 4, "{}", ran.errors);
    assert_eq!(ran.summary()["partial"], true);
    assert!(ran.errors.contains(&format!("the agent {second} disappeared")), "{}", ran.errors);
    assert_eq!(ran.rows.len(), 5, "the seconds after it are there");
    assert!(ran.rows[3]["msgs_per_s"].as_f64().expect("rate") < 300.0);
}

#[test]
fn agents_that_cannot_do_it_say_why() {
    let (_one, first) = agent(&[]);
    let gone = format!("127.0.0.1:{}", crate::support::free_port());
    let at = echo();
    let ran = load(at, &format!("--seconds 1 --agents {first},{gone}"));
    assert_eq!(ran.status, 1);
    assert!(ran.errors.contains(&format!("cannot reach the agent {gone}")), "{}", ran.errors);
    // The server is not there for anybody.
    let nobody = gone.parse().expect("address");
    let words = format!("--seconds 1 --measure-connections 0 --agents {first}");
    let ran = load(nobody, &words);
    assert_eq!(ran.status, 1, "{}", ran.errors);
    assert!(ran.errors.contains("refused"), "{}", ran.errors);
}

#[test]
fn an_agent_survives_masters_that_speak_nonsense_or_leave() {
    let (_agent, at) = agent(&[]);
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"{}\n", b"\"go\"\n", b"\n", &[0xff; 3000]] {
        let mut stream = TcpStream::connect(at).expect("connect");
        stream.write_all(nonsense).expect("write");
    }
    let run = r#"{"run":{"version":999,"args":[],"part":0,"of":1}}"#;
    let mut stream = TcpStream::connect(at).expect("connect");
    writeln!(stream, "{run}").expect("write");
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).expect("read");
    assert!(answer.contains("version 999"), "{answer}");
    // A master that is killed in the middle of its run.
    let target = echo();
    let mut master = generator();
    master.arg(target.to_string()).args(["--seconds", "30", "-q", "--agents", &at.to_string()]);
    let mut master = Running(master.stderr(Stdio::null()).spawn().expect("starts"));
    thread::sleep(Duration::from_millis(700));
    master.0.kill().expect("killed");
    let begin = Instant::now();
    let words = ["--seconds", "0.5", "-q", "--json", "-", "--agents", &at.to_string()];
    let output = generator().arg(target.to_string()).args(words).output().expect("runs");
    let ran = ran(&output, begin);
    assert_eq!(ran.status, 0, "{}", ran.errors);
}
