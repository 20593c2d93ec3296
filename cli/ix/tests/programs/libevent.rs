//! Programs written for libevent, linked with `libix-event`, on IX; at the other end the same
//! programs with libevent itself, on Linux. And Debian's memcached, which finds our library under
//! libevent's name.

use crate::support::process::Process;
use crate::support::{
    CLIENT, Nic, PATIENCE, SERVICE, TestNet, build_others, connect_to, eventually,
};
use ix_skip::{Need, skip, skip_part};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

const MEMCACHED_TOOLS: Need<'_> = Need::Program("apt-get install memcached libmemcached-tools");

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../app/libix-event/tests/programs");
/// What a client of lines says when all went well.
const ALL_HEARD: &str = "50 of 50 heard all, 0 failed, 0 live";
/// memcached's port.
const MEMCACHED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, 2), 11211);

/// Builds the library next to the command; returns a folder where programs find it under its own
/// name and libevent's.
fn library() -> PathBuf {
    static ONCE: Once = Once::new();
    let built = build_others();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libevent");
    ONCE.call_once(|| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("a folder");
        for name in ["libix_event.so.0", "libevent-2.1.so.7"] {
            let library = built.join("libix_event.so");
            std::os::unix::fs::symlink(library, folder.join(name)).expect("a link");
        }
    });
    folder
}

/// Compiles a program against libevent (for Linux) and against our library; `None`, said loudly,
/// where libevent is not installed.
fn compile(test: &str, name: &str) -> Option<(String, String)> {
    let folder = library();
    let compile = |which: &str, libraries: &[&str]| {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{which}"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-o"]).arg(&program).arg(format!("{PROGRAMS}/{name}.c"));
        let done = cc.args(libraries).arg("-lpthread").output().ok()?.status.success();
        done.then(|| program.to_str().expect("text").to_owned())
    };
    let ours = folder.join("libix_event.so.0");
    let path = format!("-Wl,-rpath,{}", folder.display());
    let both = compile("libevent", &["-levent"])
        .zip(compile("ours", &[ours.to_str().expect("text"), &path]));
    if both.is_none() {
        let need = Need::Program("apt-get install gcc libevent-dev");
        skip(test, need, "no compiler or libevent");
    }
    both
}

#[test]
fn a_line_server_on_ix_answers_libevents_client() {
    let test = "a_line_server_on_ix_answers_libevents_client";
    let Some((theirs, ours)) = compile(test, "lines") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.start(&[&ours, "server", "10.88.0.2:7"]);
        service.process.wait_for("ready", PATIENCE);
        let mut client = net.client.command(&theirs, None);
        client.args(["client", &SERVICE.to_string(), "50"]);
        let (status, said) = Process::start(client).wait(PATIENCE);
        let heard_all = status.success() && said == [ALL_HEARD];
        assert!(heard_all, "{nic:?}, {status}: {said:#?}\n{}{}", service.stats(), service.process);
        let stats = service.comes_to_rest(PATIENCE);
        assert_eq!(stats.total("accepted"), 50, "it was IX that served: {stats}");
        service.process.signal(libc::SIGTERM);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{said:#?}");
        assert!(said.contains(&"served 950, 0 live".to_owned()), "{said:#?}");
    }
}

#[test]
fn a_client_on_ix_talks_to_libevents_line_server() {
    let test = "a_client_on_ix_talks_to_libevents_line_server";
    let Some((theirs, ours)) = compile(test, "lines") else { return };
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let mut server = net.client.command(&theirs, None);
    server.args(["server", "0.0.0.0:7700"]);
    let server = Process::start(server);
    server.wait_for("ready", PATIENCE);
    let at = format!("{CLIENT}:7700");
    let service = net.start(&[&ours, "client", &at, "50"]);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success() && said.contains(&ALL_HEARD.to_owned()), "{status}: {said:#?}");
}

#[test]
fn sockets_and_threads_of_the_program_work_on_ix() {
    let test = "sockets_and_threads_of_the_program_work_on_ix";
    let Some((_, ours)) = compile(test, "workers") else { return };
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.start(&[&ours, "7", "2"]);
    service.process.wait_for("ready", PATIENCE);
    let mut streams: Vec<_> = (0..8).map(|_| net.client.run(|| connect_to(SERVICE))).collect();
    // More than fits, so that it waits for room to write.
    let sent: Vec<u8> = (0..1_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    for stream in &mut streams {
        let (mut writer, data) = (stream.try_clone().expect("clone"), sent.clone());
        let writes = std::thread::spawn(move || writer.write_all(&data).expect("write"));
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).expect("the echo");
        assert!(back == sent, "what came back differs");
        writes.join().expect("the writer");
    }
    drop(streams);
    let stats = service.comes_to_rest(PATIENCE);
    assert_eq!(stats.total("accepted"), 8, "it was IX that served: {stats}");
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success() && said.contains(&"ticked: 1".to_owned()), "{status}: {said:#?}");
}

#[test]
fn memcached_runs_with_our_library_under_libevents_name() {
    let test = "memcached_runs_with_our_library_under_libevents_name";
    if Command::new("memcached").arg("-V").output().is_err() {
        skip(test, MEMCACHED_TOOLS, "no memcached");
        return;
    }
    let folder = library();
    let at = MEMCACHED.ip().to_string();
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let env = [("LD_LIBRARY_PATH", folder.to_str().expect("text"))];
    let program = ["memcached", "-u", "nobody", "-l", &at, "-m", "64", "-t", "2"];
    let mut service = net.start_env(&env, &[], &program);
    eventually("memcached listens", || net.client.run(|| TcpStream::connect(MEMCACHED)).is_ok());
    service.process.check();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", service.program()));
    let maps = maps.expect("the program runs");
    assert!(maps.contains("libix_event.so") && !maps.contains("libevent-2.1.so"), "{maps}");
    let mut words = net.client.command("memccapable", None);
    match words.args(["-h", &at, "-p", "11211"]).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("All tests passed"), "{said}");
        }
        Err(_) => skip_part(test, MEMCACHED_TOOLS, "no memccapable"),
    }
    let mut load = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    load.args(["load", &MEMCACHED.to_string(), "--protocol", "memcached", "--json", "-"]);
    let output = load.args(["--seconds", "0.5", "--connections", "64"]).output().expect("ix load");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stats = service.comes_to_rest(PATIENCE);
    assert!(stats.total("accepted") > 64, "it was IX that served: {stats}");
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{status}: {said:#?}");
}
