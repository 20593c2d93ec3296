//! io_uring: Linux makes its operations by itself and knows no socket of IX, so IX makes those that
//! wait for one.
use crate::support::command::errors;
use crate::support::process::Process;
use crate::support::{Nic, PATIENCE, SERVICE, TestNet, connect, eventually};
use ix_skip::{Need, skip_part};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../app/libix-posix/tests/programs/uring.c");
/// What liburing's header is called, which says that the library can be linked.
const LIBRARY: &str = "/usr/include/liburing.h";

/// How the program makes the calls: its name, and the compiler's flags.
const WAYS: [(&str, &[&str]); 3] = [
    ("by the C library", &[]),
    ("as liburing", &["-DOWN", "-Wl,--no-as-needed", "-luring"]),
    ("statically", &["-static"]),
];

/// The program, built so.
fn build(name: &str, flags: &[&str]) -> PathBuf {
    let file = name.replace(' ', "-");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("uring-{file}"));
    let mut command = Command::new("cc");
    command.args(["-O1", "-w", "-o"]).arg(&program).arg(SOURCE).args(flags);
    let output = command.output().expect("cc runs");
    assert!(output.status.success(), "{}", errors(&output));
    program
}

/// What becomes of each operation on Linux, and on IX if that is something else.
const STEPS: [(&str, &str, &str); 23] = [
    ("polled", "made", "Operation not permitted"),
    ("file", "5 hello", "5 hello"),
    ("pipe", "done", "done"),
    ("file closed", "done", "done"),
    ("probe of read", "1", "1"),
    ("probe of recv", "1", "1"),
    ("registered", "done", "Operation not supported"),
    ("added", "done", "done"),
    ("added again", "File exists", "File exists"),
    ("accept", "done", "done"),
    ("poll", "done", "done"),
    ("recv", "done", "done"),
    ("send", "done", "done"),
    ("in vain", "Timer expired", "Timer expired"),
    ("ended", "Operation canceled", "Operation canceled"),
    ("end", "done", "done"),
    ("accept 0", "done", "done"),
    ("goes on 0", "1", "1"),
    ("accept 1", "done", "done"),
    ("goes on 1", "1", "1"),
    ("shut down", "done", "done"),
    ("closed", "done", "done"),
    ("closed again", "Bad file descriptor", "Bad file descriptor"),
];

/// Operations that wait for a socket of IX are made, whether a thread asks Linux for completions or
/// polls its ring. Files are Linux's as ever. What only Linux has is an error, which a line says.
#[test]
fn programs_with_io_uring_have_sockets_of_ix() {
    let test = "programs_with_io_uring_have_sockets_of_ix";
    for (name, flags) in WAYS {
        if flags.contains(&"-luring") && !Path::new(LIBRARY).exists() {
            let need = Need::Program("apt-get install liburing-dev");
            skip_part(test, need, format_args!("no {LIBRARY}"));
            continue;
        }
        let program = build(name, flags);
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let file = net.file("hello");
        std::fs::write(&file, "hello, file").expect("a file");
        let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
        let words = [program.to_str().expect("text"), &at, &port, file.to_str().expect("text")];
        let service = net.start_env(&[], &["--domain", "process"], &words);
        service.process.wait_for("ready", PATIENCE);
        net.client.run(|| {
            let mut stream = connect();
            stream.write_all(b"a message").expect("sent");
            let mut room = [0; 9];
            stream.read_exact(&mut room).expect("an answer");
            assert_eq!(&room, b"a message");
            service.process.wait_for("again", PATIENCE);
            // The program waits for its ring alone.
            drop([connect(), connect()]);
            stream.shutdown(Shutdown::Write).expect("shut down");
            assert_eq!(stream.read(&mut room).expect("the end"), 0);
        });
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{name}: {said:#?}");
        for (step, _, on_ix) in STEPS {
            assert!(said.contains(&format!("{step}: {on_ix}")), "{name}, {step}: {said:#?}");
        }
        for word in ["uses io_uring for a socket of IX", "IORING_SETUP_SQPOLL"] {
            let told = said.iter().filter(|line| line.contains(word)).count();
            assert_eq!(told, 1, "{name}: {said:#?}");
        }
    }
}

/// The same program where there is no IX: the steps are Linux's own answers.
#[test]
fn the_steps_of_io_uring_are_linuxs() {
    let program = build("on Linux", &[]);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("uring-hello");
    std::fs::write(&file, "hello, file").expect("a file");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = port.local_addr().expect("an address");
    drop(port);
    let mut command = Command::new(program);
    command.args(["127.0.0.1", &at.port().to_string()]).arg(&file);
    let server = Process::start(command);
    eventually("it has begun", || {
        let said = server.said();
        said.iter().any(|line| line == "ready" || line.starts_with("failed: io_uring_setup"))
    });
    if server.said().iter().any(|line| line.starts_with("failed: io_uring_setup")) {
        let need = Need::Kernel("sysctl kernel.io_uring_disabled=0");
        return skip_part("io_uring on Linux", need, "Linux makes no ring");
    }
    let mut stream = TcpStream::connect(at).expect("connected");
    stream.write_all(b"a message").expect("sent");
    let mut room = Vec::new();
    server.wait_for("again", PATIENCE);
    drop([TcpStream::connect(at), TcpStream::connect(at)]);
    stream.shutdown(Shutdown::Write).expect("shut down");
    stream.read_to_end(&mut room).expect("an answer");
    assert_eq!(room, b"a message");
    let (status, said) = server.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    for (step, on_linux, _) in STEPS {
        assert!(said.contains(&format!("{step}: {on_linux}")), "{step}: {said:#?}");
    }
}
