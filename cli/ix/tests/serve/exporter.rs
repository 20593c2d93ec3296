//! `ix exporter` from outside: dataplanes that serve, hang and die, clients that are slow, another
//! user, promtool, and a real Prometheus with the dashboard's queries.
use crate::support::command::errors;
use crate::support::process::Process;
use crate::support::traffic::{close, echo, http};
use crate::support::{CLIENT, Nic, PATIENCE, PREFIX, SERVICE, TestNet, eventually};
use crate::support::{build_echo, connect, connect_to};
use ix_skip::{Need, skip, skip_part};
use ix_testbed::Namespace;
use ix_testbed::prometheus::Samples;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The package with `prometheus` and `promtool`.
const PROMETHEUS: Need<'_> = Need::Program("apt-get install --no-install-recommends prometheus");
/// What a scrape may take if a dataplane hangs: a second, on a busy machine.
const BOUND: Duration = Duration::from_secs(5);

/// The exporter of these sockets, on the loopback address of the clients' namespace.
struct Exporter<'a> {
    at: &'a Namespace,
    process: Process,
    address: String,
}

impl Exporter<'_> {
    fn start<'a>(net: &'a TestNet, controls: &[&Path]) -> Exporter<'a> {
        net.client.set_up("lo", true).expect("a loopback device");
        let mut command = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
        command.args(["exporter", "--listen", "0"]);
        for control in controls {
            command.arg("--control").arg(control);
        }
        let process = Process::start(command);
        let start = "ix: metrics of all dataplanes at http://";
        let line = process.wait_for(start, PATIENCE);
        let address = line.trim_start_matches(start).trim_end_matches("/metrics").to_owned();
        Exporter { at: &net.client, process, address }
    }

    /// A scrape by a client with these fields in its head; the reply's head and body.
    fn get(&self, fields: &str) -> (String, String) {
        http(self.at, &self.address, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{fields}\r\n"))
    }

    /// A scrape that must not take long.
    #[track_caller]
    fn scrape(&self) -> Samples {
        let began = Instant::now();
        let (head, body) = self.get("");
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        Samples::parse(&body)
    }

    /// Whether it says that the dataplane of this program answers.
    #[track_caller]
    fn is_up(&self, pid: i32) -> Option<bool> {
        let up = self.scrape().sum("ix_dataplane_up", &[("pid", &pid.to_string())]);
        up.map(|up| up == 1.0)
    }

    fn threads(&self) -> usize {
        let path = format!("/proc/{}/task", self.process.pid());
        std::fs::read_dir(path).expect("its threads").count()
    }
}

/// `promtool` with this on its standard input must find nothing wrong.
#[track_caller]
fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        skip_part("promtool", PROMETHEUS, "no promtool");
        return;
    };
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "promtool {args:?}: {out}{}", errors(&output));
    assert_eq!(errors(&output), "", "promtool {args:?} has nothing to remark");
}

/// A file of docs/monitoring.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring").join(name)
}

#[test]
fn one_exporter_serves_all_dataplanes_and_none_spoils_the_others() {
    let test = "one_exporter_serves_all_dataplanes_and_none_spoils_the_others";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let (first, second) = (net.serve(&["64"]), net.serve_second(&["64"]));
    let pids = [first.program(), second.program()];
    let mut stream = net.connect();
    (0..20).for_each(|i| echo(&mut stream, i, 64));
    let exporter = Exporter::start(&net, &[first.control(), second.control()]);
    // Each series says whose it is.
    let samples = exporter.scrape();
    let text_pids = pids.map(|pid| pid.to_string());
    for (pid, device) in text_pids.iter().zip(["tap:ixt0", "tap:ixt1"]) {
        let labels = [("program", "ix-echo"), ("pid", pid.as_str())];
        assert_eq!(samples.sum("ix_dataplane_up", &labels), Some(1.0), "{pid}");
        assert_eq!(samples.sum("ix_dataplane_info", &labels), Some(1.0), "{pid}");
        let thread = [labels[0], labels[1], ("thread", "0")];
        assert!(samples.sum("ix_cycles_total", &thread).is_some_and(|n| n > 0.0), "{pid}");
        assert_eq!(samples.sum("ix_device_up", &[labels[1], ("device", device)]), Some(1.0));
    }
    assert_eq!(samples.sum("ix_build_info", &[]), Some(1.0));
    let of_first = [("pid", text_pids[0].as_str())];
    assert_eq!(samples.sum("ix_flows", &of_first), Some(1.0));
    // Every received packet is in the histogram, at the latest when its 10 ms are over.
    eventually("all packets have a delay", || {
        echo(&mut stream, 99, 64);
        let samples = exporter.scrape();
        let get = |name: &str| samples.sum(name, &of_first).expect("there");
        let counted = get("ix_packet_delay_seconds_count");
        counted >= 20.0
            && counted <= get("ix_received_packets_total")
            && get("ix_packet_delay_seconds_sum") > 0.0
    });
    // What promtool does not like, a server might not take.
    let (head, text) = exporter.get("");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    promtool(&["check", "metrics"], &text);
    let (head, text) = exporter.get("Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(head.contains("Content-Type: application/openmetrics-text"), "{head}");
    assert!(text.ends_with("\n# EOF\n"));
    // More clients than it serves at a time, which say little or nothing.
    let slow: Vec<TcpStream> = net.client.run(|| {
        let connect = |i: usize| {
            let mut stream = TcpStream::connect(&exporter.address).expect("connect");
            let said = ["", "GET /metrics HTTP/1.1\r\nHo", "\0\0\r\n\r\n"][i % 3];
            stream.write_all(said.as_bytes()).expect("write");
            stream
        };
        (0..40).map(connect).collect()
    });
    assert_eq!(exporter.is_up(pids[0]), Some(true));
    drop(slow);
    // One hangs: it is missing, and says so, and holds one thread of the exporter.
    second.process.signal(libc::SIGSTOP);
    // An answer of the last moment is good for a moment more.
    eventually("it is down", || exporter.is_up(pids[1]) == Some(false));
    for _ in 0..3 {
        let samples = exporter.scrape();
        let hung = [("pid", text_pids[1].as_str()), ("program", "ix-echo")];
        assert_eq!(samples.sum("ix_dataplane_up", &hung), Some(0.0));
        assert_eq!(samples.sum("ix_flows", &hung), None);
        assert_eq!(samples.sum("ix_flows", &of_first), Some(1.0));
    }
    assert!(exporter.threads() <= 2, "{}", exporter.threads());
    exporter.process.wait_for("ix: no answer from", PATIENCE);
    second.process.signal(libc::SIGCONT);
    eventually("it is back", || exporter.is_up(pids[1]) == Some(true));
    exporter.process.wait_for("ix: the dataplane of process", PATIENCE);
    // One is killed, and leaves its socket; another one ends as it should.
    first.process.signal(libc::SIGKILL);
    eventually("it is down", || exporter.is_up(pids[0]) == Some(false));
    assert_eq!(exporter.is_up(pids[1]), Some(true));
    drop(stream);
    second.finish(PATIENCE);
    eventually("it is not there any more", || exporter.is_up(pids[1]) != Some(true));
    let samples = exporter.scrape();
    assert_eq!(samples.sum("ix_cycles_total", &[("pid", text_pids[1].as_str())]), None);
    assert_eq!(samples.sum("ix_build_info", &[]), Some(1.0), "it goes on");
}

#[test]
fn the_exporter_needs_no_rights_but_the_read_only_sockets() {
    let test = "the_exporter_needs_no_rights_but_the_read_only_sockets";
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, Need::Root, "it must become another user");
        return;
    }
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let (namespace, link) = net.service_link();
    let config = format!(
        "host_addr = \"{}/{PREFIX}\"\ncpu = {:?}\ndevices = [\"tap:{link}\"]\n\
         [control]\nread_only_mode = \"0666\"\n",
        SERVICE.ip(),
        net.cpus()
    );
    let mut service = net.start_with(&config, &[build_echo().to_str().expect("text"), "64"]);
    service.raise_tap(namespace, link, CLIENT, PREFIX);
    service.process.wait_for("ready", PATIENCE);
    // Others must come as far as the sockets, and to a command that they may run.
    let folder = service.control().parent().expect("a folder");
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("chmod");
    let ix = folder.join("ix");
    std::fs::copy(env!("CARGO_BIN_EXE_ix"), &ix).expect("copy the command");
    let as_nobody = || {
        let mut command = Command::new(&ix);
        command.args(["exporter", "--once", "--control"]).arg(folder).uid(65534).gid(65534);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", errors(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), errors(&output))
    };
    let pid = service.program().to_string();
    let (text, _) = as_nobody();
    let samples = Samples::parse(&text);
    assert_eq!(samples.sum("ix_dataplane_up", &[("pid", &pid)]), Some(1.0), "{text}");
    assert!(samples.sum("ix_cycles_total", &[("pid", &pid)]).is_some());
    // Without the right it says so, and has nothing.
    let read_only = service.control().with_extension("ro.sock");
    std::fs::set_permissions(read_only, PermissionsExt::from_mode(0o600)).expect("chmod");
    let (text, said) = as_nobody();
    assert!(said.contains("ermission denied"), "{said}");
    assert!(!text.contains("ix_cycles_total"), "{text}");
    service.finish(PATIENCE);
}

#[test]
fn the_rules_are_right_and_each_of_them_fires() {
    promtool(&["check", "rules", shipped("ix-alerts.yml").to_str().expect("text")], "");
    promtool(&["check", "config", shipped("prometheus.yml").to_str().expect("text")], "");
    promtool(&["test", "rules", shipped("ix-alerts-tests.yml").to_str().expect("text")], "");
}

/// Where it listens, in a namespace of its own.
const SERVER: &str = "127.0.0.1:9090";

/// A real Prometheus that scrapes the exporter.
struct Prometheus<'a> {
    at: &'a Namespace,
    process: Process,
}

impl Prometheus<'_> {
    /// `None`, said loudly, where there is none.
    fn start<'a>(test: &str, net: &'a TestNet, exporter: &Exporter) -> Option<Prometheus<'a>> {
        if Command::new("prometheus").arg("--version").output().is_err() {
            skip(test, PROMETHEUS, "no prometheus");
            return None;
        }
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: ix, static_configs: [{{targets: ['{}']}}]}}]\n",
            shipped("ix-alerts.yml").display(),
            exporter.address
        );
        let (file, data) = (net.file("prometheus.yml"), net.file("prometheus"));
        std::fs::write(&file, config).expect("write the configuration");
        let mut command = net.client.command("prometheus", None);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg(format!("--web.listen-address={SERVER}"));
        let server = Prometheus { at: &net.client, process: Process::start(command) };
        // It listens some time before it answers.
        eventually("Prometheus is ready", || {
            net.client.run(|| TcpStream::connect(SERVER)).is_ok()
                && http(server.at, SERVER, "GET /-/ready HTTP/1.0\r\n\r\n").0.contains(" 200 ")
        });
        Some(server)
    }

    /// What its API answers.
    #[track_caller]
    fn ask(&self, path: &str) -> Value {
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: x\r\n\r\n");
        let (_, body) = http(self.at, SERVER, &request);
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer} {}", self.process);
        answer["data"].clone()
    }

    /// The series that a query finds.
    #[track_caller]
    fn query(&self, query: &str) -> Vec<Value> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.ask(&format!("query?query={escaped}"))["result"].as_array().expect("a list").clone()
    }

    /// Waits until a query finds something.
    #[track_caller]
    fn finds(&self, query: &str) {
        let what = format!("a result of {query}");
        eventually(&what, || !self.query(query).is_empty());
    }
}

/// Names of our metrics in a query.
fn metrics_of(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ix_")).collect()
}

#[test]
fn a_real_prometheus_finds_something_with_each_query_of_dashboard_and_rules() {
    let test = "a_real_prometheus_finds_something_with_each_query_of_dashboard_and_rules";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.serve_with(&["--policy", "energy"], &["64"]);
    let second = net.serve_second(&["64"]);
    let exporter = Exporter::start(&net, &[service.control(), second.control()]);
    let Some(server) = Prometheus::start(test, &net, &exporter) else { return };
    let pid = service.program().to_string();
    std::thread::scope(|scope| {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let load = scope.spawn(|| {
            let end = end;
            let mut streams = net.client.run(|| [connect(), connect_to(crate::support::SECOND)]);
            // Until the other side is gone, however it ends.
            while end.recv_timeout(Duration::from_millis(5)).is_err_and(|e| e == TIMEOUT) {
                streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
            }
            streams.into_iter().for_each(close);
        });
        queries_find(&server, &exporter);
        drop(ended);
        load.join().expect("the load");
    });
    // The server itself says that it took every scrape, as OpenMetrics.
    assert!(server.query("up{job=\"ix\"} == 1").len() == 1, "{}", server.process);
    // What an operator must be woken for, seen by the server.
    service.process.signal(libc::SIGSTOP);
    let silent = format!("ix_dataplane_up{{pid=\"{pid}\"}} == 0");
    server.finds(&silent);
    server.finds(&format!("ALERTS{{alertname=\"IxDataplaneSilent\",pid=\"{pid}\"}}"));
    service.process.signal(libc::SIGCONT);
    eventually("it answers again", || server.query(&silent).is_empty());
    service.finish(PATIENCE);
    second.finish(PATIENCE);
}

const TIMEOUT: std::sync::mpsc::RecvTimeoutError = std::sync::mpsc::RecvTimeoutError::Timeout;

/// Each query of the dashboard, and each metric of the rules, finds something under a load.
fn queries_find(server: &Prometheus<'_>, exporter: &Exporter<'_>) {
    server.finds("count_over_time(ix_dataplane_up[10s]) >= 4");
    let text = exporter.get("").1;
    // Not every machine counts what its hardware does.
    let is_there = |name: &str| {
        let there = text.contains(&format!("\n{name}"));
        assert!(there || name.starts_with("ix_hardware_"), "there is no {name}");
        there
    };
    let file = std::fs::read_to_string(shipped("ix-dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&file).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets: Vec<Value> = panels.iter().flat_map(|panel| list(&panel["targets"])).collect();
    assert!(targets.len() > 20, "{}", targets.len());
    for target in &targets {
        // As Grafana does with its variables; a label that is not there does not match these.
        let query = target["expr"].as_str().expect("a query");
        let query = query.replace("$__rate_interval", "10s");
        let query = query.replace("$instance", ".+").replace("$program", ".+");
        assert!(!query.contains('$'), "an unknown variable: {query}");
        let names = metrics_of(&query);
        assert!(!names.is_empty(), "{query}");
        if names.into_iter().all(is_there) {
            server.finds(&query);
        }
    }
    for variable in list(&dashboard["templating"]["list"]) {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let (of, label) = query.trim_start_matches("label_values(").rsplit_once(',').expect("two");
        let label = label.trim_matches([' ', ')']);
        let of = of.replace("$instance", ".+");
        server.finds(&format!("count by ({label}) ({of}) > 0"));
    }
    let groups = list(&server.ask("rules?type=alert")["groups"]);
    let rules: Vec<Value> = groups.iter().flat_map(|group| list(&group["rules"])).collect();
    assert!(rules.len() > 10, "{}", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        let query = rule["query"].as_str().expect("a query");
        for name in metrics_of(query).into_iter().filter(|name| is_there(name)) {
            server.finds(&format!("count({name})"));
        }
        // All is well, whatever a busy machine makes of the delays.
        let name = rule["name"].as_str().unwrap_or_default();
        assert!(rule["state"] != "firing" || name.starts_with("IxDelay"), "{rule}");
    }
}
