//! Programs that change their limits, descriptors or mappings: each goes on, or ends alone with one
//! line, and its run and others go on.
use crate::support::memif::MemifNet;
use crate::support::process::Process;
use crate::support::{Nic, PATIENCE, SERVICE, TestNet};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

const PYTHON: &str = "/usr/bin/python3";

/// Serves one connection, does what it was told, and serves another one.
const SERVE: &str = "
import ctypes, os, resource, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('10.88.0.2', 7))
listener.listen(5)
print('ready', flush=True)
def serve():
    peer, _ = listener.accept()
    while True:
        bytes = peer.recv(100)
        if not bytes: return peer.close()
        peer.sendall(bytes)
def forks():
    for _ in range(1000):
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
def closes():
    os.closerange(3, 1024)
    try: listener.accept()
    except OSError as e: print('closed', e.errno, flush=True)
    os._exit(0)
def unmaps():
    unmap = ctypes.CDLL(None).munmap
    unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for line in open('/proc/self/maps'):
        if '/memfd:ix-' in line and 'posix' not in line:
            start, end = (int(word, 16) for word in line.split()[0].split('-'))
            unmap(start, end - start)
def limits(resource_kind, most):
    return lambda: resource.setrlimit(resource_kind, (most, most))
does = {
    'forks': forks, 'closes': closes, 'unmaps': unmaps,
    'address-space': limits(resource.RLIMIT_AS, 64 << 20),
    'data': limits(resource.RLIMIT_DATA, 1 << 20),
    'descriptors': limits(resource.RLIMIT_NOFILE, 16),
    'locked': limits(resource.RLIMIT_MEMLOCK, 0),
}
serve()
does[sys.argv[1]]()
print('done', flush=True)
serve()
print('served', flush=True)
";

fn ask() {
    let mut stream = TcpStream::connect(SERVICE).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(b"request").expect("sent");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"request");
}

#[test]
fn a_program_that_changes_its_limits_is_served_or_ends_alone() {
    let name = "a_program_that_changes_its_limits_is_served_or_ends_alone";
    if !Path::new(PYTHON).exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let start = |what: &str| {
        let service = net.start_env(&[], &["--user", "65534"], &[PYTHON, "-c", SERVE, what]);
        service.process.wait_for("ready", PATIENCE);
        net.client.run(ask);
        service
    };
    for what in ["forks", "address-space", "data", "descriptors", "locked"] {
        let service = start(what);
        service.process.wait_for("done", PATIENCE);
        net.client.run(ask);
        let (status, said) = service.process.wait(PATIENCE);
        let served = said.iter().any(|line| line == "served");
        assert!(status.success() && served, "{what}: {status} {said:#?}");
    }
    // A program that closes its descriptors has none left, as on Linux.
    let (status, said) = start("closes").process.wait(PATIENCE);
    let is_told = said.contains(&format!("closed {}", libc::EBADF));
    assert!(status.success() && is_told, "{status} {said:#?}");
    // One that unmaps what it shares ends by that, and its run says so in a line.
    let (status, said) = start("unmaps").process.wait(PATIENCE);
    let lines = said.iter().filter(|line| line.contains("SIGSEGV")).count();
    assert!(!status.success() && lines == 1, "{status} {said:#?}");
}

/// Waits for a connection that does not come.
const WAITS: &str = "
import socket
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(5)
listener.settimeout(0.2)
try: listener.accept()
except TimeoutError: print('waited', flush=True)
";

/// The image's heap is a reservation of address space, of which a limit may leave little.
#[test]
fn a_run_with_little_address_space_starts() {
    let name = "a_run_with_little_address_space_starts";
    if !Path::new(PYTHON).exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = MemifNet::new(name, 1) else { return };
    let nic = format!("memif:{}", net.path().display());
    for kib in ["200000", "1000000", "30000000"] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_ix")).args(["run", "--domain", "process", "--nic", &nic]);
        command.args(["--addr", "10.88.0.2/24", "--", PYTHON, "-c", WAITS]);
        let (status, said) = Process::start(command).wait(PATIENCE);
        let waited = said.iter().any(|line| line == "waited");
        assert!(status.success() && waited, "{kib}: {status} {said:#?}");
    }
}
