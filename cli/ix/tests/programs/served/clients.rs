//! Programs that execute others for their connections: clients with helpers, inetd, and socket
//! activation.
use super::{Program, folder, has, run, start};
use crate::support::process::Process;
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, TestNet, eventually};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;

pub const GIT: Program = Program {
    name: "git over HTTP",
    version: "2.39.5",
    started: "git clone http://...",
    test: "git_clones_over_http",
    shown: "a clone, which `git-remote-http` fetches",
    watch: "names are looked up over Linux",
};

pub const APT: Program = Program {
    name: "apt",
    version: "2.6.1",
    started: "apt-get update",
    test: "apt_updates_from_a_server_on_linux",
    shown: "an update by its method for http, a program of its own",
    watch: "as git",
};

pub const IPERF3: Program = Program {
    name: "iperf3",
    version: "3.12",
    started: "iperf3 -s",
    test: "iperf3_measures_both_ways",
    shown: "four streams each way",
    watch: "nothing",
};

pub const INETD: Program = Program {
    name: "inetd",
    version: "openbsd-inetd 0.20221205",
    started: "/usr/sbin/inetd -i FILE",
    test: "inetd_starts_a_program_for_each_connection",
    shown: "twenty connections, each the standard input and output of a `cat` of its own",
    watch: "the programs that it starts have IX if they are dynamically linked",
};

pub const ACTIVATED: Program = Program {
    name: "socket activation",
    version: "systemd-socket-activate 252",
    started: "systemd-socket-activate -l 10.0.0.2:80 PROGRAM",
    test: "a_program_is_activated_by_its_socket",
    shown: "a listener that a program finds as descriptor 3 (`LISTEN_FDS`)",
    watch: "the activating program must run under `ix run`, too",
};

const GIT_FILE: &str = "/usr/bin/git";

/// A web server on Linux for the files of a folder.
fn web_server(net: &TestNet, folder: &Path) -> Process {
    let mut server = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    server.args(["httpd", "--linux", "--port", "8001"]).arg(folder);
    let server = Process::start(server);
    server.wait_for("ready", PATIENCE);
    server
}

/// Runs a program that fetches from a web server on Linux for the files of a folder; false, loudly,
/// where it cannot run.
#[track_caller]
fn fetches_over_ix(test: &str, folder: &Path, words: &[&str]) -> bool {
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return false };
    let _server = web_server(&net, folder);
    let service = net.start_env(&[], &["--domain", "process"], words);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("IX")), "over IX: {said:#?}");
    true
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn git_clones_over_http() {
    let test = "git_clones_over_http";
    if !has(test, &[GIT_FILE], "git") {
        return;
    }
    let folder = folder(test);
    let git = |words: &[&str]| {
        let mut git = Command::new(GIT_FILE);
        git.args(["-c", "user.name=ix", "-c", "user.email=ix@ix", "-C"]).arg(&folder).args(words);
        run(git)
    };
    git(&["init", "-q", "work"]);
    for n in 0..20 {
        let name = folder.join(format!("work/file{n}"));
        std::fs::write(name, format!("{n} ").repeat(5000 * n)).expect("a file");
        git(&["-C", "work", "add", "."]);
        git(&["-C", "work", "commit", "-q", "-m", "more"]);
    }
    git(&["clone", "-q", "--bare", "work", "served"]);
    git(&["-C", "served", "update-server-info"]);
    let to = folder.join("copy");
    let from = format!("http://{CLIENT}:8001/served");
    let words = [GIT_FILE, "clone", "-q", &from, to.to_str().expect("text")];
    if !fetches_over_ix(test, &folder, &words) {
        return;
    }
    let log = |of: &str| git(&["-C", of, "log", "--format=%H"]);
    assert_eq!(log("copy"), log("work"));
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn apt_updates_from_a_server_on_linux() {
    let test = "apt_updates_from_a_server_on_linux";
    if !has(test, &["/usr/bin/apt-get"], "apt") {
        return;
    }
    let folder = folder(test);
    for name in ["served", "lists/partial", "cache/archives/partial", "state"] {
        std::fs::create_dir_all(folder.join(name)).expect("a folder");
    }
    let at = folder.display();
    let package = "Package: nothing\nVersion: 1\nArchitecture: all\nMaintainer: ix\n\
                   Filename: ./nothing.deb\nSize: 0\nDescription: nothing\n\n";
    std::fs::write(folder.join("served/Packages"), package.repeat(2000)).expect("an index");
    let source = format!("deb [trusted=yes] http://{CLIENT}:8001 served/\n");
    std::fs::write(folder.join("sources.list"), source).expect("a source");
    let options = [
        format!("Dir::Etc::SourceList={at}/sources.list"),
        "Dir::Etc::SourceParts=/dev/null".into(),
        format!("Dir::State={at}/state"),
        format!("Dir::State::Lists={at}/lists"),
        format!("Dir::Cache={at}/cache"),
        "APT::Sandbox::User=root".into(),
        "Acquire::Languages=none".into(),
    ];
    let mut words = vec!["/usr/bin/apt-get", "update"];
    options.iter().for_each(|option| words.extend(["-o", option]));
    if !fetches_over_ix(test, &folder, &words) {
        return;
    }
    let lists = std::fs::read_dir(folder.join("lists")).expect("lists").flatten();
    let names: Vec<_> = lists.map(|list| list.file_name()).collect();
    assert!(names.iter().any(|name| name.to_string_lossy().contains("Packages")), "{names:?}");
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn iperf3_measures_both_ways() {
    let test = "iperf3_measures_both_ways";
    if !has(test, &["/usr/bin/iperf3"], "iperf3") {
        return;
    }
    let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    let words = ["/usr/bin/iperf3", "--forceflush", "-s", "-B", &at, "-p", &port];
    let Some((net, service)) = start(test, &[], &words) else { return };
    service.process.wait_for("Server listening", PATIENCE);
    for way in [&[][..], &["-R"]] {
        let mut client = net.client.command("/usr/bin/iperf3", None);
        client.args(["-c", &at, "-p", &port, "-t", "3", "-P", "4"]).args(way);
        let said = run(client);
        assert!(said.contains("iperf Done"), "{said}");
    }
    let stats = service.stats();
    assert!(stats.total("accepted") >= 10, "it was IX that served: {stats}");
}

/// A connection whose program echoes all of it.
fn echoed() -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&SERVICE.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let sent: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect();
    let mut reader = stream.try_clone()?;
    let back = std::thread::scope(|scope| {
        let reads = scope.spawn(move || {
            let mut back = Vec::new();
            reader.read_to_end(&mut back).map(|_| back)
        });
        stream.write_all(&sent)?;
        stream.shutdown(Shutdown::Write)?;
        reads.join().expect("a reader")
    })?;
    if back == sent { Ok(()) } else { Err(std::io::Error::other(format!("{} bytes", back.len()))) }
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn inetd_starts_a_program_for_each_connection() {
    let test = "inetd_starts_a_program_for_each_connection";
    if !has(test, &["/usr/sbin/inetd"], "openbsd-inetd") {
        return;
    }
    let file = folder(test).join("inetd.conf");
    let line = format!("{SERVICE} stream tcp nowait root /bin/cat cat\n").replacen(':', ":", 1);
    let line = line.replace(&SERVICE.to_string(), &format!("{}:echo", SERVICE.ip()));
    std::fs::write(&file, line).expect("a configuration");
    let words = ["/usr/sbin/inetd", "-i", file.to_str().expect("text")];
    let Some((net, service)) = start(test, &[], &words) else { return };
    net.client.run(|| {
        eventually("it serves", || echoed().is_ok());
        (0..20).for_each(|n| echoed().unwrap_or_else(|error| panic!("connection {n}: {error}")));
    });
    let stats = service.stats();
    assert!(stats.total("accepted") >= 20, "it was IX that served: {stats}");
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn a_program_is_activated_by_its_socket() {
    let test = "a_program_is_activated_by_its_socket";
    if !has(test, &["/usr/bin/systemd-socket-activate", "/usr/bin/python3"], "systemd python3") {
        return;
    }
    let program = "
import os, socket
assert os.environ['LISTEN_FDS'] == '1' and os.environ['LISTEN_PID'] == str(os.getpid())
listener = socket.socket(fileno=3)
while True:
    stream = listener.accept()[0]
    while got := stream.recv(4096): stream.sendall(got)
    stream.close()
";
    let at = SERVICE.to_string();
    let words = ["/usr/bin/systemd-socket-activate", "-l", &at, "/usr/bin/python3", "-c", program];
    let Some((net, service)) = start(test, &[], &words) else { return };
    net.client.run(|| {
        eventually("it serves", || echoed().is_ok());
        (0..20).for_each(|n| echoed().unwrap_or_else(|error| panic!("connection {n}: {error}")));
    });
    let stats = service.stats();
    assert!(stats.total("accepted") >= 20, "it was IX that served: {stats}");
}
