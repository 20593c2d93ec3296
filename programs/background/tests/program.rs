//! The program from the outside.
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ix-background")).args(arguments).output().expect("starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn reports_are_json_lines_with_the_whole_at_the_end() {
    let output = run(&[
        "--threads",
        "2",
        "--bytes",
        "100000",
        "--seconds",
        "0.4",
        "--interval",
        "0.1",
        "--json",
    ]);
    assert!(output.status.success());
    let stdout = text(&output.stdout);
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (whole, each) = lines.split_last().expect("lines");
    assert!(!each.is_empty());
    assert!(each.iter().all(|line| line["threads"] == 2 && line["bytes_per_s"].is_number()));
    assert_eq!(whole["whole"], true);
    assert!(whole["bytes_per_s"].as_f64().expect("rate") > 0.0);
    assert!(whole["seconds"].as_f64().expect("time") >= 0.4);
    // The parts make the whole.
    let mut before = 0.0;
    let bytes: f64 = each
        .iter()
        .map(|line| {
            let at = line["at_s"].as_f64().expect("time");
            let part = (at - before) * line["bytes_per_s"].as_f64().expect("rate");
            before = at;
            part
        })
        .sum();
    let all =
        whole["seconds"].as_f64().expect("time") * whole["bytes_per_s"].as_f64().expect("rate");
    assert!((bytes / all - 1.0).abs() < 0.01, "{bytes} and {all}");
}

#[test]
fn a_hardware_thread_that_is_not_there_is_named() {
    let output = run(&["--cpus", "100000", "--bytes", "1", "--seconds", "0.1"]);
    assert!(!output.status.success());
    let told = text(&output.stderr);
    assert!(told.contains("100000") && told.contains("--cpus"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn an_array_larger_than_memory_is_refused_in_one_line() {
    let output = run(&["--bytes", "1099511627777"]);
    assert!(!output.status.success(), "more than a TB is no array");
    let output = run(&["--seconds", "0"]);
    assert!(!output.status.success() && text(&output.stderr).contains("seconds"));
}
