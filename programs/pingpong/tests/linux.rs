//! The program on Linux sockets, from the outside, over loopback.
use ix_testbed::server::{Server, free_address};
use serde_json::Value;
use std::process::Command;

fn pingpong(args: &[&str]) -> Server {
    let at = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix-pingpong"));
    command.args(["--linux", "--addr", "127.0.0.1", "--port", &at.port().to_string()]).args(args);
    Server::start(command, at)
}

#[test]
fn sweeps_blocking_and_spinning() {
    for mode in [&[][..], &["--spin"]] {
        let server = pingpong(mode);
        // Twice: the server goes on after a client.
        for _ in 0..2 {
            let output = Command::new(env!("CARGO_BIN_EXE_ix-pingpong"))
                .args(["--linux", "--json", "--seconds", "0.02", "--sizes", "1,64,3000000"])
                .args(["--client", &server.at.to_string()])
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
