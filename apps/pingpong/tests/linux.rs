//! The program on Linux sockets, from the outside, over loopback.
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

struct Server(Child, String);

impl Server {
    fn start(args: &[&str]) -> Server {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ix-pingpong"))
            .args(["--linux", "--addr", "127.0.0.1", "--port", &free.port().to_string()])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line:?}");
        Server(child, free.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn sweeps_blocking_and_spinning() {
    for mode in [&[][..], &["--spin"]] {
        let server = Server::start(mode);
        // Twice: the server goes on after a client.
        for _ in 0..2 {
            let output = Command::new(env!("CARGO_BIN_EXE_ix-pingpong"))
                .args(["--linux", "--json", "--seconds", "0.02", "--sizes", "1,64,3000000"])
                .args(["--client", &server.1])
                .args(mode)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            let rows = json["rows"].as_array().unwrap();
            assert!(rows.iter().map(|row| row["size"].as_u64().unwrap()).eq([1, 64, 3_000_000]));
            for row in rows {
                let number = |name: &str| row[name].as_f64().unwrap();
                assert!((number("one_way_us") * 2.0 - number("p50_us")).abs() < 0.01);
                assert!(number("mbit_per_s") > 0.0 && number("messages") >= 5.0);
            }
        }
    }
}

#[test]
fn not_under_ix_is_one_line() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ix-pingpong")).env_remove("IX_ABI").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("not running under `ix run`") && text.lines().count() == 1, "{text}");
}
