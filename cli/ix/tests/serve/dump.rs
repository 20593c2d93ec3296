//! `ix ctl dump` and `--output`: what a report of a fault has, and what it must not have.
use crate::support::command::errors;
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, TestNet, eventually};
use ix_skip::{Need, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

/// An argument of the program.
const SECRET: &str = "hunter2";

/// A variable of the program's environment.
const OF_ENVIRONMENT: &str = "hunter3";
/// What peers say to each other; a name for each protocol, and long ones and short ones.
const SAID: [&[u8]; 3] = [b"AUTH hunter4", b"hunter5.example", b"x hunter6"];

/// Serves connections and datagrams.
// It runs as the program of `ix run`, and has no use for its argument.
const PROGRAM: &str = "
import select, socket
listener = socket.create_server(('10.88.0.2', 7))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('10.88.0.2', 7))
all = [listener, datagrams]
print('ready', flush=True)
while True:
    for one in select.select(all, [], [])[0]:
        if one is listener:
            all.append(listener.accept()[0])
        elif one is datagrams:
            datagrams.sendto(*datagrams.recvfrom(4096))
        elif data := one.recv(4096):
            one.sendall(data)
        else:
            all.remove(one)
";

/// Says the words over all protocols for as long as `work` runs: short messages, which fit beside
/// headers.
fn while_peers_talk<T>(net: &TestNet, work: impl FnOnce() -> T) -> T {
    let (began, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = net.connect();
            let datagrams = net.client.run(|| UdpSocket::bind((CLIENT, 0))).expect("a socket");
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(SAID[0]).expect("sent");
                stream.read_exact(&mut [0; 12]).expect("it comes back");
                for words in &SAID[1..] {
                    datagrams.send_to(words, SERVICE).expect("sent");
                    datagrams.recv(&mut [0; 100]).expect("it comes back");
                }
                began.store(true, Ordering::Relaxed);
            }
        });
        eventually("peers talk", || began.load(Ordering::Relaxed));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        done
    })
}

/// The bytes of packets, and how many there are.
fn packets(pcapng: &[u8]) -> (Vec<u8>, usize) {
    const PACKET: u32 = 6;
    let word = |at: usize| u32::from_le_bytes(pcapng[at..at + 4].try_into().expect("four"));
    let (mut at, mut bytes, mut count) = (0, Vec::new(), 0);
    while at < pcapng.len() {
        if word(at) == PACKET {
            bytes.extend(&pcapng[at + 28..at + 28 + word(at + 20) as usize]);
            count += 1;
        }
        at += word(at + 4) as usize;
    }
    (bytes, count)
}

fn has(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|some| some == words)
}

fn ctl(control: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    let command = command.arg("ctl").args(args).arg("--control").arg(control);
    command.output().expect("the command starts")
}

/// The files of an archive, read by tar(1).
fn files(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let tar = |args: &[&str]| {
        let output = Command::new("tar").arg("-f").arg(archive).args(args).output().expect("tar");
        assert!(output.status.success(), "{}", errors(&output));
        output.stdout
    };
    let names = String::from_utf8(tar(&["-t"])).expect("names");
    let name = |line: &str| line.strip_prefix("ix-dump/").expect("one folder").to_owned();
    names.lines().map(|line| (name(line), tar(&["-x", "-O", line]))).collect()
}

#[test]
fn a_dump_is_one_file_without_secrets() {
    let test = "a_dump_is_one_file_without_secrets";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let python = "/usr/bin/python3";
    if Command::new(python).arg("-V").output().is_err() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return;
    }
    let env = [("DATABASE_PASSWORD", OF_ENVIRONMENT)];
    let service = net.start_env(&env, &[], &[python, "-c", PROGRAM, "--requirepass", SECRET]);
    service.process.wait_for("ready", PATIENCE);
    let file = net.file("dump.tar");
    let path = file.to_str().expect("text");
    // One that everybody may read is there.
    std::fs::write(&file, "old").expect("a file");
    let everybody = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&file, everybody).expect("a mode");
    let dump = |flags: &[&str]| {
        let words = [&["dump", "--output", path, "--capture", "0.3"], flags].concat();
        let output = while_peers_talk(&net, || ctl(service.control(), &words));
        assert!(output.status.success(), "{}", errors(&output));
    };
    dump(&[]);
    let mode = file.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "it says much about the machine");
    let told = files(&file);
    let names: Vec<&str> = told.keys().map(String::as_str).collect();
    let expected = [
        "README",
        "about.json",
        "capture.pcapng",
        "connections.json",
        "doctor.json",
        "metrics.txt",
        "stats.json",
        "status.json",
        "vnic.json",
    ];
    assert_eq!(names, expected);
    let json = |name: &str| -> Value { serde_json::from_slice(&told[name]).expect(name) };
    assert!(json("connections.json")["total"].as_u64().expect("a number") >= 1);
    assert!(json("doctor.json")["checks"].is_array());
    let about = json("about.json");
    assert_eq!(about["ix"], env!("CARGO_PKG_VERSION"));
    let log = about["log"].as_array().expect("lines");
    assert!(log.iter().any(|line| line.to_string().contains("device tap:")), "{log:?}");
    for line in ["listening on", "receiving datagrams on"] {
        let line = format!("Z program: {line} {SERVICE}: IX\"");
        assert!(log.iter().any(|said| said.to_string().ends_with(&line)), "{line}: {log:?}");
    }
    let times = log.iter().map(|line| line.as_str().and_then(|line| line.split(' ').next()));
    assert!(times.is_sorted(), "{log:?}");
    assert!(about["config"].as_str().expect("a file").contains("host_addr"));
    let command: Vec<&str> =
        about["command"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert!(command.ends_with(&["/usr/bin/python3", "…"]), "{command:?}");
    let (bytes, count) = packets(&told["capture.pcapng"]);
    assert!(count > 20 && bytes.len() > 40 * count, "{count} packets of {} bytes", bytes.len());
    // The keys of sequence numbers and hashes go to the dataplane and nowhere else.
    let key = std::fs::read("/run/ix/isn-key").unwrap_or_default();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let listed = key.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    let keys = [&key[..], hex.as_bytes(), listed.as_bytes()];
    for (name, bytes) in &told {
        for secret in [&[SECRET.as_bytes(), OF_ENVIRONMENT.as_bytes()], &SAID[..], &keys].concat() {
            let secret = secret.strip_prefix(b"AUTH ").unwrap_or(secret);
            let words = String::from_utf8_lossy(secret);
            assert!(secret.is_empty() || !has(bytes, secret), "{name} has {words}");
        }
        let text = String::from_utf8_lossy(bytes).replace(char::is_whitespace, "");
        assert!(listed.is_empty() || !text.contains(&listed), "{name} has a key");
    }
    dump(&["--all"]);
    let mut all = files(&file);
    let about = String::from_utf8(all.remove("about.json").expect("there")).expect("text");
    assert!(about.contains(SECRET), "it was asked for: {about}");
    let (bytes, _) = packets(&all["capture.pcapng"]);
    for words in SAID {
        assert!(has(&bytes, words), "it was asked for");
    }
    // Who may only look gets the rest, and the reasons.
    let read_only = service.control().with_extension("ro.sock");
    let output = ctl(&read_only, &["dump", "--output", path]);
    assert!(output.status.success() && errors(&output).contains(".missing"), "{}", errors(&output));
    let told = files(&file);
    let why = String::from_utf8_lossy(&told["about.json.missing"]).into_owned();
    assert!(why.contains("looking only"), "{why}");
    assert!(told.contains_key("stats.json"));
    service.process.signal(libc::SIGKILL);
}

#[test]
fn results_go_to_a_file_as_well() {
    let Some(net) = TestNet::new("results_go_to_a_file_as_well", Nic::Tap, 1) else { return };
    let service = net.serve(&["64"]);
    let file = net.file("out");
    let path = file.to_str().expect("text");
    for args in [&["status"][..], &["threads"], &["connections"], &["vnic"], &["stats"], &["rate"]]
    {
        let output = ctl(service.control(), &[args, &["--output", path]].concat());
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
        assert!(!output.stdout.is_empty() && output.stdout[0] != b'{', "the text is printed too");
        let text = std::fs::read_to_string(&file).expect("a file");
        assert!(serde_json::from_str::<Value>(&text).expect("JSON").is_object(), "{args:?}");
    }
    let output = ctl(service.control(), &["metrics", "--output", path]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(std::fs::read_to_string(&file).expect("a file").contains("# TYPE ix_flows gauge"));
    let output = ctl(service.control(), &["status", "--output", "/no/such/folder/x"]);
    assert!(errors(&output).contains("cannot write /no/such/folder/x"), "{}", errors(&output));
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_ix"));
    doctor.args(["doctor", "--output", path]).output().expect("it starts");
    let text = std::fs::read_to_string(&file).expect("a file");
    assert!(serde_json::from_str::<Value>(&text).expect("JSON")["checks"].is_array());
    service.finish(PATIENCE);
}
