//! The control socket with a dataplane that is none behind it, and clients of every kind.
use super::*;
use ix_problem::Problem;
use ix_proto::control::{
    Answer, CaptureStarted, Look, Refusal, Request, Role, Status, Topic, vnic,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Answers at once, but for `park`: thread 1 a moment later, thread 2 never.
#[derive(Default)]
struct Fake {
    looks: u64,
    parked: Vec<(Ticket, Instant)>,
}

impl Backend for Fake {
    fn name(&self) -> Name {
        Name { program: "fake".to_owned(), pid: 7 }
    }

    fn look(&mut self, topic: Topic) -> Result<Look, Refusal> {
        self.looks += 1;
        let program = format!("{topic:?}");
        Ok(Look::Running(Box::new(Status { program, now_us: self.looks, ..Status::default() })))
    }

    fn begin(&mut self, request: &Request, ticket: Ticket) -> Option<Response> {
        match request {
            Request::Park { thread: 1 } => {
                self.parked.push((ticket, Instant::now() + Duration::from_millis(30)));
                None
            }
            Request::Park { thread: 2 } => None,
            Request::Connections(query) => {
                Some(Ok(CaptureStarted { path: Some("x".repeat(query.max * 12)) }.into()))
            }
            Request::Park { thread } => Some(Err(Refusal::NoSuchThread(*thread, 3))),
            Request::Vnic => Some(Ok(vnic::View::Own(Box::default()).into())),
            _ => Some(Err(Refusal::Unsupported("do that"))),
        }
    }
}

/// Waits for the server as a broker does.
fn turn(server: &mut Server, fake: &mut Fake) {
    let _ = ix_sys::poll::is_readable(&server.fd(), Duration::from_millis(5));
    server.serve(fake, Instant::now());
    let (due, rest) = fake.parked.drain(..).partition(|(_, at)| *at <= Instant::now());
    fake.parked = rest;
    let due: Vec<(Ticket, Instant)> = due;
    due.into_iter().for_each(|(ticket, _)| server.answer(ticket, Ok(Answer::Done {})));
}

/// A server on a thread of its own, for as long as `f` runs.
fn with_server(f: impl FnOnce(&Path)) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("ix-control-{}-{}.sock", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let mut server = Server::listen(Some(&path), 0, &Access::default()).expect("listen");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut fake = Fake::default();
            while !ended.load(Relaxed) {
                turn(&mut server, &mut fake);
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&path)));
        ended.store(true, Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

fn raw(path: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(path).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    BufReader::new(stream)
}

fn line(reader: &mut BufReader<UnixStream>) -> Value {
    let mut text = String::new();
    reader.read_line(&mut text).expect("a line");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

fn say(reader: &BufReader<UnixStream>, text: &str) {
    reader.get_ref().write_all(text.as_bytes()).expect("write");
}

#[test]
fn the_greeting_says_who_is_there_and_what_one_may_do() {
    with_server(|path| {
        let hello = &line(&mut raw(path))["hello"];
        assert_eq!((&hello["protocol"], &hello["role"]), (&json!(1), &json!("operator")));
        assert_eq!((&hello["program"], &hello["pid"]), (&json!("fake"), &json!(7)));
        assert_eq!(line(&mut raw(&read_only(path)))["hello"]["role"], "read-only");
        let client = Client::connect(path).expect("connect");
        assert_eq!((client.hello().role, client.hello().pid), (Role::Operator, 7));
    });
}

#[test]
fn what_is_refused_is_counted_by_reason() {
    with_server(|path| {
        let (mut operator, mut reader) = (raw(path), raw(&read_only(path)));
        line(&mut operator);
        line(&mut reader);
        say(
            &reader,
            "{\"do\":\"park\",\"thread\":1}\n{\"do\":\"rate\",\"tx\":\"none\"}\nnonsense\n",
        );
        (0..3).for_each(|_| assert!(line(&mut reader)["error"].is_object()));
        say(&operator, "vnic\n");
        let refused = &line(&mut operator)["ok"]["refused"];
        assert_eq!(*refused, json!({ "bad-request": 1, "not-allowed": 2 }));
    });
}

/// Connects, says what it hears first, and asks.
const OUTSIDER: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
print(s.makefile().readline(), end='')
";

/// Root of a namespace has root's number, and so may open the file.
#[test]
fn who_is_in_another_user_namespace_is_no_operator() {
    let name = "who_is_in_another_user_namespace_is_no_operator";
    let apart = ["unshare", "--user", "--map-root-user"];
    let mut tried = std::process::Command::new(apart[0]);
    let can = tried
        .args(&apart[1..])
        .args(["python3", "-V"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !can {
        let need = ix_skip::Need::Program("apt install python3 util-linux");
        return ix_skip::skip(name, need, "no python3 in a user namespace");
    }
    let hears = |before: &[&str], path: &Path| -> Value {
        let words = [before, &["python3", "-c", OUTSIDER]].concat();
        let mut command = std::process::Command::new(words[0]);
        let output = command.args(&words[1..]).arg(path).output().expect("python3");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    };
    with_server(|path| {
        assert_eq!(hears(&[], path)["hello"]["role"], "operator");
        assert_eq!(hears(&apart, path)["error"]["code"], "foreign");
        assert_eq!(hears(&apart, &read_only(path))["hello"]["role"], "read-only");
        let mut operator = raw(path);
        line(&mut operator);
        say(&operator, "vnic\n");
        assert_eq!(line(&mut operator)["ok"]["refused"], json!({ "foreign": 1 }));
    });
}

#[test]
fn many_requests_are_answered_in_order() {
    with_server(|path| {
        let mut client = raw(path);
        line(&mut client);
        // The second takes its time; the others wait for it.
        say(&client, "stats\n{\"do\":\"park\",\"thread\":1}\nexplode\nstatus\n");
        assert_eq!(line(&mut client)["ok"]["program"], "Stats");
        assert_eq!(line(&mut client)["ok"], json!({}));
        assert_eq!(line(&mut client)["error"]["code"], "bad-request");
        assert_eq!(line(&mut client)["ok"]["program"], "Status");
        // A last line without its end.
        say(&client, "stats");
        client.get_ref().shutdown(std::net::Shutdown::Write).expect("half close");
        assert_eq!(line(&mut client)["ok"]["program"], "Stats");
        assert_eq!(client.read_to_string(&mut String::new()).expect("end"), 0);
    });
}

#[test]
fn a_late_answer_is_not_that_of_the_next_request() {
    let name = format!("ix-control-{}-late.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut server = Server::listen(Some(&path), 0, &Access::default()).expect("listen");
    let (mut fake, mut client) = (Fake::default(), raw(&path));
    let began = Instant::now();
    let begin = |server: &mut Server, fake: &mut Fake, at: Instant| {
        while fake.parked.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(10), "the request was not begun");
            server.serve(fake, at);
        }
        fake.parked.remove(0).0
    };
    say(&client, "{\"do\":\"park\",\"thread\":1}\n");
    let first = begin(&mut server, &mut fake, began);
    line(&mut client);
    let later = Instant::now() + Duration::from_secs(60);
    server.serve(&mut fake, later);
    assert_eq!(line(&mut client)["error"]["code"], "no-answer");
    say(&client, "{\"do\":\"park\",\"thread\":1}\n");
    let second = begin(&mut server, &mut fake, later);
    server.answer(first, Err(Refusal::Dataplane("late".to_owned())));
    server.answer(second, Ok(Answer::Done {}));
    assert_eq!(line(&mut client)["ok"], json!({}));
}

#[test]
fn the_read_only_socket_changes_nothing() {
    with_server(|path| {
        let mut client = Client::connect(&read_only(path)).expect("connect");
        assert!(client.ask(&Request::Status).is_ok());
        let refused = client.ask(&Request::Park { thread: 1 }).expect_err("refused").to_string();
        assert!(refused.contains("looking only") && refused.contains("operator"), "{refused}");
        assert!(client.ask(&Request::Stats).is_ok(), "still served");
    });
}

#[test]
fn errors_say_what_there_is() {
    with_server(|path| {
        let mut client = Client::connect(path).expect("connect");
        let refused = client.ask(&Request::Park { thread: 9 }).expect_err("refused").to_string();
        assert_eq!(refused, "no elastic thread 9; its threads are 0 to 2");
    });
}

#[test]
fn a_dataplane_that_does_not_answer_is_told_and_others_are_served() {
    with_server(|path| {
        let mut client = raw(path);
        line(&mut client);
        say(&client, "{\"do\":\"park\",\"thread\":2}\nstats\n");
        let asked = Instant::now();
        let mut other = Client::connect(path).expect("connect");
        assert!(other.ask(&Request::Stats).is_ok());
        assert!(asked.elapsed() < Duration::from_millis(1500), "others do not wait");
        assert_eq!(line(&mut client)["error"]["code"], "no-answer");
        assert_eq!(line(&mut client)["ok"]["program"], "Stats", "the next one has its turn");
    });
}

#[test]
fn snapshots_come_again_and_again() {
    with_server(|path| {
        let mut client = Client::connect(path).expect("connect");
        let subscribe = Request::Subscribe { to: Topic::Stats, interval_ms: 20 };
        client.ask(&subscribe).expect("subscribed");
        let looks: Vec<u64> =
            (0..4).map(|_| client.next_snapshot().expect("a snapshot").now_us).collect();
        assert!(looks.is_sorted_by(|a, b| a < b), "{looks:?}");
        // Other answers come between them.
        assert_eq!(client.status().expect("answer").program, "Status");
        client.ask(&Request::Unsubscribe).expect("unsubscribed");
    });
}

#[test]
fn rubbish_costs_nobody_but_its_sender() {
    with_server(|path| {
        let mut good = Client::connect(path).expect("connect");
        let mut endless = raw(path);
        line(&mut endless);
        // Part of it may find the socket closed.
        let _ = endless.get_ref().write_all(&vec![b'a'; 100_000]);
        assert_eq!(line(&mut endless)["error"]["code"], "too-long");
        let mut junk = raw(path);
        line(&mut junk);
        say(&junk, "\0\u{1}{}[]\"\n\n{\"do\":[[[[[[[\n");
        for _ in 0..3 {
            assert_eq!(line(&mut junk)["error"]["code"], "bad-request");
        }
        let half = raw(path);
        say(&half, "{\"do\":\"sta");
        drop(half);
        assert!(good.ask(&Request::Stats).is_ok());
    });
}

#[test]
fn who_does_not_read_is_not_waited_for() {
    with_server(|path| {
        let deaf = raw(path);
        say(&deaf, "{\"do\":\"subscribe\",\"interval_ms\":10}\n");
        for _ in 0..50 {
            say(&deaf, "{\"do\":\"connections\",\"max\":5000}\n");
        }
        let mut good = Client::connect(path).expect("connect");
        (0..20).for_each(|_| drop(good.ask(&Request::Stats).expect("an answer")));
    });
}

#[test]
fn more_clients_than_there_is_room_for_take_the_place_of_silent_ones() {
    with_server(|path| {
        let mut idle: Vec<_> = (0..40).map(|_| raw(path)).collect();
        let mut last = Client::connect(path).expect("there is room");
        assert!(last.ask(&Request::Stats).is_ok());
        line(&mut idle[0]);
        assert_eq!(line(&mut idle[0])["error"]["code"], "busy");
        // Those who may only look take no operator's place.
        let lookers: Vec<_> = (0..40).map(|_| raw(&read_only(path))).collect();
        assert!(last.ask(&Request::Stats).is_ok());
        drop(lookers);
    });
}

#[test]
fn another_version_is_named_with_ours() {
    let path: PathBuf = std::env::temp_dir().join(format!("ix-old-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).expect("bind");
    let connect = |hello: &str| -> Problem {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a client");
                let _ = stream.write_all(hello.as_bytes());
            });
            Client::connect(&path).expect_err("refused")
        })
    };
    let e = connect("{\"hello\":{\"protocol\":9,\"ix\":\"0.9.0\"}}\n").to_string();
    assert!(e.contains("ix 0.9.0 uses control protocol 9") && e.contains("protocol 1"), "{e}");
    let e = connect("SSH-2.0-OpenSSH\n").to_string();
    assert!(e.contains("cannot read"), "{e}");
    let e = connect("").to_string();
    assert!(e.contains("closed the connection"), "{e}");
    std::fs::remove_file(&path).expect("clean up");
}
