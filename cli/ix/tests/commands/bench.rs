//! Every benchmark, small: its rows are there, its figures are figures, and what fails is named.
use crate::support::PATIENCE;
use crate::support::command::{errors, ix, may_make_links};
use crate::support::turn::Turn;
use ix_skip::{Need, skip, skip_part};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Where one test puts its results; gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("ix-bench-{test}-{}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }

    fn read(&self, bench: &str) -> Value {
        let text = std::fs::read_to_string(self.0.join(format!("{bench}.json"))).expect("a file");
        serde_json::from_str(&text).expect("JSON")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Rows of both systems, each with a rate that is one and without errors.
#[track_caller]
fn check(result: &Value, bench: &str, rate: &str) {
    assert_eq!(result["bench"], bench);
    let command = result["command"].as_str().expect("text");
    assert!(command.contains(&format!(" bench {bench}")), "{command}");
    let rows = result["rows"].as_array().expect("rows");
    for system in ["ix", "linux"] {
        assert!(rows.iter().any(|row| row["system"] == system), "{bench}: no row of {system}");
    }
    // Where a datagram's time goes on Linux is a table of its own, without a rate.
    for row in rows.iter().filter(|row| row.get("total_ns").is_none()) {
        assert!(row[rate].as_f64() > Some(0.0), "{bench}: {row}");
        // A datagram may be lost, and is counted.
        let clean = row.get("errors").is_none_or(|errors| errors == 0.0);
        assert!(clean || bench == "udp-echo", "{bench}: {row}");
        assert!(row["settings"].as_str().is_some_and(|text| text.contains("pinned")), "{row}");
    }
}

/// Benchmarks of `ix bench all` that the three tests below run, and those that have tests of their
/// own.
const RUN_BELOW: [&[&str]; 3] = [
    &["echo", "pingpong", "short", "connscaling", "batch"],
    &["churn", "bulk"],
    &["pareto", "dynamic", "gate", "migration"],
];
const RUN_ALONE: [&str; 13] = [
    "memcached",
    "memcached-udp",
    "kv-steps",
    "http",
    "udp-echo",
    "wakeup",
    "rates",
    "sharing",
    "elastic",
    "loss",
    "fairness",
    "hostile",
    "soak",
];

/// `ix` with these arguments, when fewer than two benchmarks run: a third would leave none the time
/// for an answer.
fn bench(args: &[&str]) -> Output {
    let _turn = Turn::part(2);
    ix(args)
}

/// `ix bench all` of these; where its results are.
fn all(test: &str, names: &[&str]) -> Option<Folder> {
    if !may_make_links(test) {
        return None;
    }
    let folder = Folder::new(test);
    let (only, dir) = (names.join(","), folder.path());
    let mut args = vec!["bench", "all", "--quick", "--only", &only, "--dir", dir];
    // Long enough for a message to come back on a machine that does other things too.
    args.extend(["--seconds", "0.4", "--client", "linux", "--device", "tap"]);
    let output = bench(&args);
    let text = errors(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("benchmarks in") && text.contains("left"), "{text}");
    Some(folder)
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn messages_and_connections_are_measured() {
    let Some(folder) = all("messages_and_connections_are_measured", RUN_BELOW[0]) else { return };
    for bench in RUN_BELOW[0] {
        check(&folder.read(bench), bench, "msgs_per_s");
    }
    let page = std::fs::read_to_string(folder.0.join("report.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains("ix bench short"));
    let rows = folder.read("short")["rows"].clone();
    assert!(rows[0]["connections_per_s"].as_f64() > Some(0.0) && rows[0]["cores"] == 1, "{rows}");
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn bulk_data_and_churn_are_measured() {
    let Some(folder) = all("bulk_data_and_churn_are_measured", RUN_BELOW[1]) else { return };
    check(&folder.read("churn"), "churn", "msgs_per_s");
    check(&folder.read("bulk"), "bulk", "mbit_per_s");
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn models_walls_and_migrations_are_measured() {
    let test = "models_walls_and_migrations_are_measured";
    let Some(folder) = all(test, RUN_BELOW[2]) else { return };
    for bench in RUN_BELOW[2] {
        let result = folder.read(bench);
        assert_eq!(result["bench"], *bench);
        assert!(result["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{result}");
    }
}

/// A tap has one end of IX only: the program whose calls are measured.
#[test]
#[ignore = "long; .ci/run nightly"]
fn calls_of_sockets_are_measured_over_a_tap() {
    if !may_make_links("calls_of_sockets_are_measured_over_a_tap") {
        return;
    }
    let args = ["bench", "gate", "--quick", "--device", "tap", "--domain", "none", "--json"];
    let output = bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = result["rows"].as_array().expect("rows");
    for call in ["recv", "send", "epoll_wait"] {
        let is_its = |row: &&Value| row["what"] == format!("sockets: {call}");
        let row = rows.iter().find(is_its).unwrap_or_else(|| panic!("no {call}: {result}"));
        assert!(row["ns"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn memcached_is_measured() {
    if !may_make_links("memcached_is_measured") {
        return;
    }
    // `ix bench kv-steps` has the other server.
    let args = ["bench", "memcached", "--quick", "--server", "posix", "--seconds", "0.4"];
    let output = bench(&[&args[..], &["--client", "linux", "--device", "tap", "--json"]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let memcached: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = memcached["rows"].as_array().expect("rows");
    for workload in ["etc", "usr"] {
        for point in ["unloaded", "closed loop", "rate", "p99 under 500 µs"] {
            let is = |row: &&Value| row["workload"] == workload && row["point"] == point;
            assert!(
                rows.iter().any(|row| is(&row) && row["system"] == "memcached on ix"),
                "{point}"
            );
        }
    }
    let hits = |row: &Value| row.get("hit_rate").is_none_or(|rate| rate.as_f64() > Some(0.98));
    assert!(rows.iter().all(hits), "{memcached}");
}

/// The rows of a benchmark over a path with faults, of these points if any are named; `None`,
/// loudly, where it cannot run.
fn over_a_path(test: &str, bench: &str, points: &[&str]) -> Option<Vec<Value>> {
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, Need::Root, "AF_XDP needs root");
        return None;
    }
    if !may_make_links(test) {
        return None;
    }
    let points = points.join(",");
    let mut args = vec!["bench", bench, "--quick", "--seconds", "1", "--json", "-"];
    if !points.is_empty() {
        args.extend(["--only", &points]);
    }
    let output = self::bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["bench"], bench);
    let rows = value["rows"].as_array().expect("rows").clone();
    assert!(rows.iter().all(|row| row["mbit_per_s"].as_f64() > Some(0.0)), "{rows:?}");
    Some(rows)
}

#[test]
fn goodput_under_loss_is_measured_of_both_on_one_path() {
    let test = "goodput_under_loss_is_measured_of_both_on_one_path";
    // `.ci/run` measures the others.
    let Some(rows) = over_a_path(test, "loss", &["out-10ms-0%", "out-10ms-1%"]) else { return };
    let at = |system: &str, percent: f64| {
        let point = format!("out-10ms-{percent}%");
        let is = |row: &&Value| row["system"] == system && row["point"] == point;
        rows.iter().find(is).unwrap_or_else(|| panic!("{system} at {percent} %: {rows:?}"))
    };
    for percent in [0.0, 1.0] {
        assert_eq!(at("ix", percent)["congestion"], "cubic");
        assert!(at("ix", percent)["client"] == "linux");
    }
    assert!(at("ix", 1.0)["lost_packets"].is_number());
    assert_eq!(at("ix", 0.0)["lost_packets"], 0.0);
    if rows.iter().any(|row| row["system"] == "linux") {
        assert!(at("ix", 1.0)["ratio_to_linux"].as_f64() > Some(0.0));
    }
}

#[test]
fn fairness_is_measured_among_ix_and_against_linux() {
    let Some(rows) =
        over_a_path("fairness_is_measured_among_ix_and_against_linux", "fairness", &[])
    else {
        return;
    };
    for row in &rows {
        let index = row["jain_index"].as_f64().expect("an index");
        assert!(index > 1.0 / row["connections"].as_f64().expect("flows") - 1e-9, "{row}");
        assert!(index <= 1.0 + 1e-9, "{row}");
    }
    assert!(rows.iter().any(|row| row["system"] == "ix" && row["ix_flows"] == 4));
}

/// Small crowds of slow, half-open and closed peers. Of what they leave behind the benchmark itself
/// fails; how fast the client is beside them, only a quiet machine tells.
#[test]
fn an_honest_client_is_served_beside_hostile_peers() {
    let test = "an_honest_client_is_served_beside_hostile_peers";
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, Need::Root, "packets made by hand need root");
        return;
    }
    if !may_make_links(test) {
        return;
    }
    let args = ["bench", "hostile", "--quick", "--domain", "process", "--json", "-"];
    let output = bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = value["rows"].as_array().expect("rows");
    for system in ["ix", "linux"] {
        for crowd in ["none", "all", "gone"] {
            let is = |row: &&Value| row["system"] == system && row["crowd"] == crowd;
            let row = rows.iter().find(is).unwrap_or_else(|| panic!("{system}, {crowd}: {rows:?}"));
            assert!(row["msgs_per_s"].as_f64() > Some(100.0), "{row}");
        }
    }
    let ix = |crowd: &str, figure: &str| {
        let is = |row: &&Value| row["system"] == "ix" && row["crowd"] == crowd;
        rows.iter()
            .find(is)
            .and_then(|row| row[figure].as_f64())
            .unwrap_or_else(|| panic!("{rows:?}"))
    };
    // All are there: those that read slowly, and those that never open their windows.
    assert!(ix("all", "flows") >= 1_101.0 && ix("all", "half_open") > 0.0, "{rows:?}");
    assert_eq!((ix("none", "flows"), ix("gone", "flows")), (1.0, 1.0));
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn handover_and_weights_of_a_shared_interface_are_measured() {
    let test = "handover_and_weights_of_a_shared_interface_are_measured";
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, Need::Root, "AF_XDP needs root");
        return;
    }
    if !may_make_links(test) {
        return;
    }
    let args = ["bench", "rates", "--quick", "--only", "handover,weights", "--json", "-"];
    let output = bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = value["rows"].as_array().expect("rows");
    let of = |what: &str| rows.iter().filter(|row| row["what"] == what).count();
    assert_eq!((of("handover"), of("weights")), (4, 2), "{rows:?}");
    let measured = |row: &Value| match row["what"].as_str() {
        Some("handover") => row["p50_ms"].as_f64() > Some(0.0),
        _ => row["ratio"].as_f64() > Some(0.0),
    };
    assert!(rows.iter().all(measured), "{rows:?}");
}

#[test]
fn udp_echo_says_where_the_time_goes() {
    if !may_make_links("udp_echo_says_where_the_time_goes") {
        return;
    }
    let args = ["bench", "udp-echo", "--quick", "--size", "64", "--client", "linux", "--json", "-"];
    let output = bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check(&value, "udp-echo", "msgs_per_s");
    let rows = value["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["system"] == "ix").expect("a row of IX");
    let ns = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
    let parts = ["receive_ns", "stack_in_ns", "gate_ns", "app_ns", "stack_out_ns", "transmit_ns"];
    assert!(parts.iter().map(|key| ns(key)).sum::<f64>() <= ns("total_ns") * 1.001);
    assert!(ns("gate_ns") > 0.0 && ns("stack_in_ns") > 0.0, "{row}");
    let linux = rows.iter().find(|row| row["system"] == "linux").expect("a row of Linux");
    assert!(linux["total_ns"].as_f64() > Some(0.0) && linux.get("gate_ns").is_none(), "{linux}");
    for kind in ["running", "idle"] {
        let server = format!("one a call, {kind}");
        let row = rows.iter().find(|row| row["server"] == server.as_str()).expect("its parts");
        assert!(row["gate_ns"].as_f64() > Some(0.0) && row["stack_in_ns"].is_number(), "{row}");
    }
    let drives = |row: &Value| row["server"] == "driver" && row["msgs_per_s"].as_f64() > Some(0.0);
    let may_drive = rows.iter().any(|row| row["device"] == "afxdp");
    assert_eq!(rows.iter().any(drives), may_drive, "{rows:?}");
}

/// What Arrakis' figures need: several processes with vNICs, all steps to the native interface,
/// waking.
#[test]
fn arrakis_figures_have_all_their_rows() {
    if !may_make_links("arrakis_figures_have_all_their_rows") {
        return;
    }
    let rows = |words: &str| {
        let words: Vec<&str> = words.split(' ').chain(["--quick", "--json", "-"]).collect();
        let output = bench(&[&["bench"], &words[..]].concat());
        assert!(output.status.success(), "{words:?}: {}", errors(&output));
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        value["rows"].as_array().expect("rows").clone()
    };
    // Of so many sockets some have an answer in a second, however busy the machine is.
    let steps = rows("kv-steps --device tap --connections 64 --seconds 1");
    assert_eq!(steps.len(), 6, "{steps:?}");
    assert!(steps.iter().all(|row| row["msgs_per_s"].as_f64() > Some(0.0)), "{steps:?}");
    let wakes = rows("wakeup --device tap --seconds 0.1");
    // Three of them with an idle loop that polls, where that may be asked for.
    assert!([8, 12].contains(&wakes.len()), "{wakes:?}");
    assert!(wakes.iter().all(|row| row["wake_p50_us"].as_f64() > Some(0.0)), "{wakes:?}");
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        skip_part("two processes", Need::Root, "only root shares an interface");
        return;
    }
    let two = rows("memcached-udp --server native --processes 2 --connections 64 --seconds 1");
    let of = |system: &str| two.iter().filter(|row| row["system"] == system).count();
    assert!(of("ix") == 1 && of("linux") > 0, "{two:?}");
    assert!(two.iter().all(|row| row["processes"] == 2), "{two:?}");
    assert!(two.iter().all(|row| row["msgs_per_s"].as_f64() > Some(0.0)), "{two:?}");
}

/// What sharing the address of Linux costs IX, and Linux beside it.
#[test]
fn what_sharing_an_address_costs_is_measured() {
    let test = "what_sharing_an_address_costs_is_measured";
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return skip(test, Need::Root, "AF_XDP needs root");
    }
    if !may_make_links(test) {
        return;
    }
    let words = ["bench", "sharing", "--quick", "--seconds", "0.2", "--json", "-"];
    let output = bench(&words);
    assert!(output.status.success(), "{}", errors(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = value["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5, "{value}");
    assert!(rows.iter().all(|row| row["msgs_per_s"].as_f64() > Some(0.0)), "{value}");
    let set_against = rows.iter().filter(|row| row["of_reference"].as_f64() > Some(0.0));
    assert_eq!(set_against.count(), 2, "{value}");
}

/// Processes whose command line has this in it.
fn processes_with(text: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("proc").flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.parse::<i32>().ok();
    let has = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    };
    all.filter_map(|entry| number(entry.file_name())).filter(has).collect()
}

#[test]
fn a_server_that_dies_midway_is_named_and_nothing_stays() {
    let _turn = Turn::part(2);
    if !may_make_links("a_server_that_dies_midway_is_named_and_nothing_stays") {
        return;
    }
    // A size that no other test uses tells our server from theirs.
    let size = "777";
    let mut bench = Command::new(env!("CARGO_BIN_EXE_ix"))
        .args(["bench", "echo", "--device", "tap", "--client", "linux", "--seconds", "20"])
        .args(["--size", size, "--connections", "1"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the command starts");
    let server = format!("echo {size} --port");
    let end = std::time::Instant::now() + PATIENCE;
    let clients = || processes_with(&format!("--size {size} --connections 1 --seconds 20 --json"));
    while processes_with(&server).is_empty() || clients().is_empty() {
        assert!(std::time::Instant::now() < end, "the server does not come up");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for pid in processes_with(&server) {
        // SAFETY: signals a process that our command has started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    let started = std::time::Instant::now();
    while bench.try_wait().expect("wait").is_none() {
        assert!(started.elapsed() < PATIENCE, "it hangs");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = bench.wait_with_output().expect("output");
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("ix: ") && last.contains("server ended too early"), "{text}");
    assert!(processes_with(&server).is_empty() && clients().is_empty(), "something stays");
}

#[test]
fn failures_of_one_do_not_stop_the_others() {
    let folder = Folder::new("unknown");
    let output = ix(&["bench", "all", "--only", "echo,nothing", "--dir", folder.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("nothing"), "{}", errors(&output));
    // It names all that there are: each is run by a test here.
    let told = errors(&output);
    let names = told.rsplit("choose from ").next().expect("the names").trim().split(", ");
    let tested: Vec<&str> = RUN_BELOW.concat().into_iter().chain(RUN_ALONE).collect();
    let untested: Vec<&str> = names.filter(|name| !tested.contains(name)).collect();
    assert!(untested.is_empty(), "{untested:?} of {told}");
}

/// haproxy on Linux and on IX, with both kinds of connections; calls that IX's lets through are
/// counted. Over memif what stands behind it is on IX, too.
#[test]
fn requests_by_busy_second_are_measured_of_haproxy() {
    let test = "requests_by_busy_second_are_measured_of_haproxy";
    if Command::new("haproxy").arg("-v").output().is_err() {
        skip(test, Need::Program("apt-get install haproxy"), "no haproxy");
        return;
    }
    if !may_make_links(test) {
        return;
    }
    for device in ["tap", "memif"] {
        let arguments = ["--quick", "--seconds", "0.5", "--device", device, "--json", "-"];
        let output = bench(&[&["bench", "http"], &arguments[..]].concat());
        assert!(output.status.success(), "{}", errors(&output));
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rows = value["rows"].as_array().expect("rows");
        for (system, kind) in [("ix", "kept"), ("ix", "one a request"), ("linux", "kept")] {
            let is = |row: &Value| row["system"] == system && row["connection"] == kind;
            assert!(rows.iter().any(is), "{system} {kind}: {value}");
        }
        for row in rows {
            assert!(row["msgs_per_busy_s"].as_f64() > Some(0.0) && row["errors"] == 0.0, "{row}");
            let counted = row["forwarded_per_msg"].as_f64() > Some(0.0);
            assert_eq!(counted, row["system"] == "ix", "{row}");
        }
    }
}

/// Everything that a soak lets happen, once or twice each.
#[test]
#[ignore = "long; .ci/run nightly"]
fn a_short_soak_ends_with_a_good_verdict() {
    if !may_make_links("a_short_soak_ends_with_a_good_verdict") {
        return;
    }
    let (seconds, path) = ("16", std::env::temp_dir());
    let path = path.join(format!("ix-soak-{}.json", std::process::id()));
    let json = path.to_str().expect("text");
    let output = bench(&["bench", "soak", "--seconds", seconds, "--device", "tap", "--json", json]);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    let said = format!("{}{}", errors(&output), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    let rows = result["rows"].as_array().expect("rows");
    let whole = rows.last().expect("a row of the whole");
    assert_eq!((&result["bench"], &whole["verdict"]), (&"soak".into(), &"good".into()), "{said}");
    for happened in ["migrations", "program_kills", "link_flaps", "controller_kills", "samples"] {
        assert!(whole[happened].as_f64() > Some(0.0), "{happened}: {whole}");
    }
    assert!(rows[..rows.len() - 1].iter().all(|part| part["from_s"].is_number()), "{said}");
}

/// A length that is none, and a link whose clients could not be on Linux.
#[test]
fn a_soak_that_cannot_be_is_refused_at_once() {
    let output = ix(&["bench", "soak", "--hours", "-1"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    if may_make_links("a_soak_that_cannot_be_is_refused_at_once") {
        let output = ix(&["bench", "soak", "--device", "memif"]);
        assert!(errors(&output).contains("cannot soak a memif"), "{}", errors(&output));
        assert_eq!(output.status.code(), Some(1));
    }
}

/// An echo server on Linux's sockets by somebody else, below a shell that waits for it.
const PYTHON_ECHO: &str = "import asyncio, sys\n\
    async def echo(r, w):\n\
    \x20   while data := await r.read(65536): w.write(data)\n\
    async def main():\n\
    \x20   server = await asyncio.start_server(echo, sys.argv[1], int(sys.argv[2]))\n\
    \x20   await server.serve_forever()\n\
    asyncio.run(main())";

/// Rows of `ix bench peer` with these words; `None`, loudly, where it cannot run.
fn beside_a_peer(test: &str, words: &[&str]) -> Option<Vec<Value>> {
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, Need::Root, "AF_XDP needs root");
        return None;
    }
    let mut args =
        vec!["bench", "peer", "--quick", "--seconds", "0.4", "--connections", "4", "--json"];
    args.extend(words);
    let output = bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check(&result, "peer", "msgs_per_s");
    let rows = result["rows"].as_array().expect("rows").clone();
    Some(rows.into_iter().filter(|row| row["system"] != "ix" && row["system"] != "linux").collect())
}

#[test]
fn a_peer_on_linux_sockets_is_measured_and_ends_with_all_that_it_started() {
    let test = "a_peer_on_linux_sockets_is_measured_and_ends_with_all_that_it_started";
    let mark = format!("peer-of-{}", std::process::id());
    let script = format!("python3 -c \"$1\" {{address}} $IX_PEER_PORT {mark}; true");
    let words = ["--sockets", "--name", "asyncio", "--client", "linux", "--"];
    let words = [&words[..], &["sh", "-c", &script, "sh", PYTHON_ECHO]].concat();
    let Some(rows) = beside_a_peer(test, &words) else { return };
    assert_eq!(rows.len(), 2, "one for each kind of client: {rows:?}");
    for row in &rows {
        assert_eq!((&row["system"], &row["device"]), (&"asyncio".into(), &"veth".into()), "{row}");
        assert!(row["ratio_to_linux"].as_f64() > Some(0.0), "{row}");
    }
    let commands = std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("cmdline")).ok());
    let left: Vec<String> = commands.filter(|command| command.contains(&mark)).collect();
    assert!(left.is_empty(), "still there: {left:?}");
}

#[test]
fn a_peer_with_a_stack_of_its_own_is_measured_on_a_pair_and_on_a_memif() {
    let test = "a_peer_with_a_stack_of_its_own_is_measured_on_a_pair_and_on_a_memif";
    let ix = env!("CARGO_BIN_EXE_ix");
    for (device, nic) in [("afxdp", "afxdp:{interface}"), ("memif", "memif:{memif},role=server")] {
        let words = ["--device", device, "--client", "ix", "--name", "other", "--"];
        let stack = [ix, "run", "--nic", nic, "--addr", "{address}/{prefix}", "--cpus", "{cpu}"];
        let server = ["--domain", "none", "--", ix, "echo", "64", "--port", "{port}"];
        let words = [&words[..], &stack, &server].concat();
        let Some(rows) = beside_a_peer(test, &words) else { return };
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!((&rows[0]["system"], &rows[0]["client"]), (&"other".into(), &"ix".into()));
    }
}

#[test]
fn a_peer_that_cannot_be_measured_is_told_why() {
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        skip("a_peer_that_cannot_be_measured_is_told_why", Need::Root, "AF_XDP needs root");
        return;
    }
    let cases: [(&[&str], &str); 5] = [
        (&["--name", "linux", "--", "true"], "choose another --name"),
        (&["--device", "tap", "--", "true"], "only IX can use a tap's end"),
        (&["--device", "memif", "--sockets", "--", "true"], "do not reach a memif"),
        (&["--sockets", "--", "/nowhere/their-echo"], "/nowhere/their-echo"),
        (&["--sockets", "--", "false"], "peer false ended too early"),
    ];
    for (words, why) in cases {
        let output = bench(&[&["bench", "peer", "--quick", "--connections", "1"], words].concat());
        assert!(!output.status.success(), "{words:?}");
        assert!(errors(&output).contains(why), "{words:?}: {}", errors(&output));
    }
    let output = ix(&["bench", "peer", "--quick"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("COMMAND"), "{}", errors(&output));
}

#[test]
fn features_of_afxdp_are_measured_with_and_without() {
    let test = "features_of_afxdp_are_measured_with_and_without";
    if !may_make_links(test) {
        return;
    }
    if ix_sys::cpu::allowed().len() < 2 {
        skip(test, Need::Cpus(2), "each end needs a hardware thread of its own");
        return;
    }
    let only = "need-wakeup,busy poll,transmit checksum,payload apart,receive hash";
    let args = ["bench", "afxdp", "--quick", "--seconds", "0.05", "--only", only, "--json"];
    let output = bench(&args);
    assert!(output.status.success(), "{}", errors(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = result["rows"].as_array().expect("rows");
    for feature in only.split(',') {
        let its: Vec<&Value> = rows.iter().filter(|row| row["what"] == feature).collect();
        let is_measured = feature != "receive hash";
        assert_eq!(its.len(), if is_measured { 2 } else { 1 }, "{feature}: {result}");
        for row in its {
            assert_eq!(row["used"], feature == "need-wakeup", "{row}");
            assert!(row["why"].as_str().is_some_and(|why| !why.is_empty()), "{row}");
            let figures = ["trip_us_with", "trip_us_without", "gives_1", "gives_64"];
            let is_figure = |key: &&str| row[key].as_f64() > Some(0.0);
            assert_eq!(figures.iter().filter(|key| is_figure(key)).count() > 0, is_measured);
            assert!(!is_measured || figures.iter().all(is_figure), "{row}");
        }
    }
    let output = bench(&["bench", "afxdp", "--only", "busy"]);
    let text = errors(&output);
    assert!(!output.status.success() && text.contains("`busy`"), "{text}");
    assert!(text.contains("need-wakeup"), "{text}");
}
