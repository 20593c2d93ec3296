//! The program on Linux sockets, from the outside, over loopback.
use ix_testbed::server::{Server, free_address};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

struct Echo(Server);

impl Echo {
    fn start(args: &[&str]) -> Echo {
        let at = free_address();
        let mut command = program(args);
        command.args(["--linux", "--addr", "127.0.0.1", "--port", &at.port().to_string()]);
        Echo(Server::start(command, at))
    }

    fn client(&self, args: &[&str]) -> Output {
        let to = self.0.at.to_string();
        program(&["--client", &to, "--linux", "--json"]).args(args).output().unwrap()
    }

    fn row(&self, args: &[&str]) -> Value {
        let output = self.client(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix-echo"));
    command.args(args).env_remove("IX_ABI");
    command
}

const SHORT: [&str; 4] = ["--seconds", "0.5", "--warmup", "0.05"];

#[test]
fn echo_measures() {
    let server = Echo::start(&["64"]);
    let row = server.row(&[&SHORT[..], &["--connections", "3", "--depth", "2"]].concat());
    assert!(row["msgs_per_s"].as_f64().unwrap() > 100.0, "{row}");
    assert!(
        row["p50_us"].as_f64().unwrap() > 0.0 && row["p99_us"].as_f64() >= row["p50_us"].as_f64()
    );
    assert_eq!(
        (&row["errors"], &row["size"], &row["connections"]),
        (&0.into(), &64.into(), &3.into())
    );
}

#[test]
fn echo_on_several_threads_with_long_messages_and_spinning() {
    let server = Echo::start(&["100000", "--threads", "2"]);
    let args = ["--size", "100000", "--connections", "4", "--threads", "2", "--spin"];
    let row = server.row(&[&SHORT[..], &args].concat());
    assert_eq!(row["errors"], 0);
    assert!(row["messages"].as_u64().unwrap() > 0);
}

#[test]
fn connections_that_are_reset_after_a_few_messages() {
    let server = Echo::start(&["64"]);
    let args = ["--messages-per-connection", "2", "--connections", "4"];
    let row = server.row(&[&SHORT[..], &args].concat());
    let number = |name: &str| row[name].as_u64().unwrap();
    assert_eq!(row["errors"], 0);
    assert!(number("connections_opened") > 10);
    assert!(number("messages") <= 2 * number("connections_opened") + 8);
}

#[test]
fn connections_that_end_by_fin() {
    let server = Echo::start(&["64"]);
    let args = ["--messages-per-connection", "2", "--connections", "4", "--close", "fin"];
    let row = server.row(&[&SHORT[..], &args].concat());
    assert_eq!(row["errors"], 0);
    assert!(row["connections_opened"].as_u64().unwrap() > 10, "{row}");
    let server = Echo::start(&["64", "--messages-per-connection", "2"]);
    let row = server.row(&[&SHORT[..], &args[..4], &["--close", "wait"]].concat());
    assert_eq!(row["errors"], 0);
    assert!(row["connections_opened"].as_u64().unwrap() > 10, "{row}");
}

#[test]
fn few_messages_under_way_on_many_connections() {
    let server = Echo::start(&["64"]);
    for spin in [&["--spin"][..], &[]] {
        let args = ["--connections", "300", "--in-flight", "8"];
        let row = server.row(&[&SHORT[..], &args, spin].concat());
        assert_eq!((&row["errors"], &row["connections_opened"]), (&0.into(), &300.into()));
        assert!(row["msgs_per_s"].as_f64().unwrap() > 100.0, "{row}");
    }
    let output = server.client(&["--connections", "3", "--in-flight", "2", "--size", "70000"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("at most 16384 bytes"));
}

#[test]
fn datagrams_are_echoed() {
    for more in [&[][..], &["--spin"]] {
        let server = Echo::start(&[&["1024", "--udp"][..], more].concat());
        let args = ["--udp", "--size", "1024", "--depth", "16"];
        let row = server.row(&[&SHORT[..], &args, more].concat());
        // On a machine that does other things an answer may come when it was given up.
        assert!(row["errors"].as_u64() <= row["lost"].as_u64(), "{row}");
        assert!(row["msgs_per_s"].as_f64().unwrap() > 100.0, "{row}");
    }
    let nobody = program(&["--client", "127.0.0.1:1", "--udp", "--linux", "--seconds", "0.1"])
        .output()
        .unwrap();
    assert!(String::from_utf8(nobody.stderr).unwrap().contains("no message returned"));
}

#[test]
fn bulk_each_way() {
    let server = Echo::start(&["bulk"]);
    for (direction, sent, received) in
        [("send", 20_000_000, 0), ("recv", 0, 20_000_000), ("both", 20_000_000, 20_000_000)]
    {
        let row = server.row(&["--bulk", direction, "--bytes", "20000000"]);
        assert_eq!((&row["bytes_sent"], &row["bytes_received"]), (&sent.into(), &received.into()));
        assert!(row["mbit_per_s"].as_f64().unwrap() > 1.0);
    }
}

#[test]
fn an_answer_is_held_until_the_message_is_whole() {
    let server = Echo::start(&["10", "--max-conn", "1"]);
    let mut stream = TcpStream::connect(server.0.at).unwrap();
    stream.write_all(b"012345678").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut answer = [0; 20];
    assert!(stream.read(&mut answer).is_err(), "answered too early");
    stream.write_all(b"9abc").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.read_exact(&mut answer[..10]).unwrap();
    assert_eq!(&answer[..10], b"0123456789");
    // A second connection is one too many.
    let mut refused = TcpStream::connect(server.0.at).unwrap();
    refused.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(!matches!(refused.read(&mut answer), Ok(1..)));
    drop(stream);
}

#[test]
fn errors_are_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let listen = ["64", "--linux", "--addr", "127.0.0.1", "--port", &port];
    for args in [&listen[..], &["64"], &["--client", "127.0.0.1:1", "--linux", "--seconds", "0.1"]]
    {
        let output = program(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("ix-echo: ") && text.lines().count() <= 2, "{text}");
    }
    // A child of a program on IX inherits the variable, but not the dataplane.
    for stale in ["0000000000000000", "0000000000001000", "nonsense"] {
        let output = program(&["64"]).env("IX_ABI", stale).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{stale}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("no dataplane of this process"));
    }
    let wrong_size = Echo::start(&["32"]);
    let output = wrong_size.client(&["--size", "31", "--seconds", "0.2"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("no message returned"));
}
