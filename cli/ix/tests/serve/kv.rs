//! The key-value server on IX, asked by Linux: libmemcached's own tests, its Python client beside
//! Debian's memcached, large values without a copy, datagrams.

use crate::support;
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};

const MISSING: Need<'_> =
    Need::Program("apt-get install memcached libmemcached-tools python3-pylibmc");

/// Starts the server that the command carries inside itself.
fn serve(net: &TestNet, arguments: &[&str]) -> Service {
    let mut program = vec![env!("CARGO_BIN_EXE_ix"), "kv", "-p", "7", "-U", "7"];
    program.extend(arguments);
    let service = net.start(&program);
    service.process.wait_for("ready", PATIENCE);
    service
}

fn ask(stream: &mut TcpStream, question: &[u8], answer: &[u8]) {
    stream.write_all(question).expect("ask");
    let mut said = vec![0; answer.len()];
    stream.read_exact(&mut said).expect("answered");
    let shown = String::from_utf8_lossy(&said[..said.len().min(200)]).into_owned();
    assert!(said == answer, "to {:?}: {shown:?}", &question[..question.len().min(40)]);
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ at >> 8) as u8).collect()
}

#[test]
fn libmemcacheds_own_tests_pass() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("libmemcacheds_own_tests_pass", nic, 1) else { return };
        let service = serve(&net, &["-m", "16"]);
        let at = SERVICE.ip().to_string();
        let mut command = net.client.command("memccapable", None);
        let Ok(output) = command.args(["-h", &at, "-p", "7"]).output() else {
            skip("libmemcacheds_own_tests_pass", MISSING, "no memccapable");
            return;
        };
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("All tests passed"), "{nic:?}: {said}\n{}", service.process);
        service.finish(PATIENCE);
    }
}

#[test]
fn libmemcacheds_client_sees_what_it_sees_of_memcached() {
    let name = "libmemcacheds_client_sees_what_it_sees_of_memcached";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/kv/tests/client.py");
    let client = |at: String| {
        let output = net.client.command("/usr/bin/python3", None).args([script, &at]).output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let there =
        net.client.command("/usr/bin/python3", None).args(["-c", "import pylibmc"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        skip(name, MISSING, "no pylibmc");
        return;
    }
    let service = serve(&net, &["-m", "16"]);
    let ours = client(SERVICE.to_string());
    let own = support::CLIENT.to_string();
    let mut command = net.client.command("memcached", None);
    let Ok(mut memcached) = command.args(["-u", "nobody", "-l", &own, "-p", "11311"]).spawn()
    else {
        skip(name, MISSING, "no memcached to compare with");
        return;
    };
    let at = SocketAddrV4::new(support::CLIENT, 11311);
    support::eventually("memcached listens", || net.client.run(|| TcpStream::connect(at)).is_ok());
    let theirs = client(at.to_string());
    memcached.kill().expect("kill");
    memcached.wait().expect("wait");
    assert_eq!(ours, theirs);
    assert!(ours.lines().count() > 60);
    service.finish(PATIENCE);
}

#[test]
fn two_threads_share_one_table_and_lend_large_values() {
    let name = "two_threads_share_one_table_and_lend_large_values";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 2) else { return };
    let service = serve(&net, &["-m", "24", "-c", "20"]);
    let mut streams: Vec<TcpStream> = (0..20).map(|_| net.connect()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        let (key, len) = (format!("key{number}"), 1 << number);
        let set = [format!("set {key} 0 0 {len}\r\n").as_bytes(), &value(len), b"\r\n"].concat();
        ask(stream, &set, b"STORED\r\n");
    }
    for round in 0..3 {
        for (number, stream) in streams.iter_mut().enumerate() {
            let number = (number + 7 * round + 1) % 20;
            let (key, len) = (format!("key{number}"), 1usize << number);
            let head = format!("VALUE {key} 0 {len}\r\n");
            let one = [head.as_bytes(), &value(len), b"\r\n"].concat();
            let answer = [&one[..], &one, b"END\r\n"].concat();
            ask(stream, format!("get {key} none {key}\r\n").as_bytes(), &answer);
        }
    }
    // One connection too many, and a place that becomes free.
    let mut said = String::new();
    net.connect().read_to_string(&mut said).expect("told");
    assert_eq!(said, "ERROR Too many open connections\r\n");
    // A client that goes away in the midst of a large answer gives its leases back: the items that
    // were under them can be replaced for ever.
    for _ in 0..40 {
        let mut stream = streams.pop().expect("a stream");
        stream.write_all(&b"get key19\r\n".repeat(20)).expect("ask");
        let set = [&b"set key19 0 0 524288 noreply\r\n"[..], &value(1 << 19), b"\r\n"].concat();
        streams[0].write_all(&set).expect("set");
        ask(&mut streams[0], b"get none\r\n", b"END\r\n");
        drop(stream);
        let mut said = [0; 7];
        support::eventually("a place is free", || {
            let mut stream = net.connect();
            stream.write_all(b"version\r\n").expect("ask");
            let free = stream.read_exact(&mut said).is_ok() && &said == b"VERSION";
            if free {
                // The rest of the line.
                let mut rest = [0; 64];
                let _ = stream.read(&mut rest);
                streams.push(stream);
            }
            free
        });
    }
    drop(streams);
    service.finish(PATIENCE);
}

#[test]
fn datagrams() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("datagrams", nic, 1) else { return };
        let service = serve(&net, &["-m", "16"]);
        let mut stream = net.connect();
        let set = [&b"set large 0 0 20000\r\n"[..], &value(20_000), b"\r\n"].concat();
        ask(&mut stream, &set, b"STORED\r\n");
        let socket = net.client.run(|| UdpSocket::bind((support::CLIENT, 0))).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        socket.connect(SERVICE).expect("connect");
        socket.send(b"\0\x07\0\0\0\x01\0\0get large\r\n").expect("ask");
        let mut parts = Vec::new();
        loop {
            let mut buf = [0; 2000];
            let n = socket.recv(&mut buf).expect("answered");
            assert_eq!((buf[0], buf[1]), (0, 7));
            parts.push((buf[3], buf[8..n].to_vec()));
            if parts.len() == usize::from(buf[5]) {
                break;
            }
        }
        parts.sort();
        let said: Vec<u8> = parts.into_iter().flat_map(|part| part.1).collect();
        let expected = [&b"VALUE large 0 20000\r\n"[..], &value(20_000), b"\r\nEND\r\n"].concat();
        assert!(said == expected, "{nic:?}: {} bytes", said.len());
        drop(stream);
        service.finish(PATIENCE);
    }
}
