//! Programs in C on IX: the example of `libix-c`, the raw contract, and every function of the event
//! loop, with real Linux at the other end.

use crate::support::raw::{Raw, ring_doorbells};
use crate::support::stats::Stats;
use crate::support::traffic::{close, echo};
use crate::support::{
    CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, build_others, connect, eventually,
};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../app/libix-c");

const NAMED: &str = "libix.so.0";

/// Builds the library next to the command; returns its folder.
fn build() -> PathBuf {
    static ONCE: Once = Once::new();
    let folder = build_others();
    ONCE.call_once(|| {
        // Programs look for it by the name that it has inside.
        let named = folder.join(NAMED);
        let _ = std::fs::remove_file(&named);
        std::os::unix::fs::symlink("libix_c.so", &named).expect("a link");
    });
    folder
}

/// Compiles a program as `words` say; `None`, said loudly, where there is no compiler.
pub fn compile(test: &str, words: &[&str], source: &str) -> Option<PathBuf> {
    let (library, compiler) = (build(), words[0]);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{compiler}"));
    let mut cc = Command::new(compiler);
    cc.args(&words[1..]).args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.arg(format!("-I{LIBRARY}/include")).arg(format!("{LIBRARY}/{source}"));
    if words.contains(&"-DSTATIC") {
        cc.args(["-xnone"]).arg(library.join("libix_c.a"));
        cc.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]);
    } else {
        cc.arg("-xnone").arg(library.join(NAMED)).arg(format!("-Wl,-rpath,{}", library.display()));
        cc.arg("-lpthread");
    }
    match cc.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{source} does not compile: {said}");
            Some(program)
        }
        Err(e) => {
            let need = Need::Program("apt-get install gcc g++ libc6-dev");
            skip(test, need, format_args!("{compiler}: {e}"));
            None
        }
    }
}

/// The same dialogue with any echo server; returns what its dataplane has counted.
fn talk(net: &TestNet, service: &Service) -> Stats {
    for id in 0..4 {
        let mut stream = net.client.run(connect);
        for round in 0..50 {
            echo(&mut stream, id * 100 + round, 64);
        }
        close(stream);
    }
    service.comes_to_rest(PATIENCE)
}

#[test]
fn the_example_echoes_as_ix_echo_does() {
    let test = "the_example_echoes_as_ix_echo_does";
    let Some(program) = compile(test, &["cc"], "examples/echo.c") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve(&["64"]);
        let rust = talk(&net, &service);
        service.process.terminate();
        let service = net.start(&[program.to_str().expect("text"), "7"]);
        service.process.wait_for("ready", PATIENCE);
        let c = talk(&net, &service);
        // Not packets or bytes: how many acknowledgements Linux sends is a matter of time.
        for what in ["knocks", "accepted", "closed"] {
            assert_eq!(c.total(what), rust.total(what), "{what}: {c}\n{rust}");
        }
        // Long messages, with back-pressure.
        let mut stream = net.client.run(connect);
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let (mut writer, data) = (stream.try_clone().expect("clone"), sent.clone());
        let writes = std::thread::spawn(move || writer.write_all(&data).expect("write"));
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).expect("the echo");
        assert!(back == sent, "what came back differs");
        writes.join().expect("the writer");
        close(stream);
        service.comes_to_rest(PATIENCE);
        // Its handler of the signal ends the loop.
        service.process.signal(libc::SIGTERM);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{status}: {said:#?}");
    }
}

#[test]
fn the_raw_contract_serves_from_c() {
    let test = "the_raw_contract_serves_from_c";
    let Some(program) = compile(test, &["cc"], "tests/programs/raw.c") else { return };
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.start(&[program.to_str().expect("text")]);
    service.process.wait_for("ready", PATIENCE);
    talk(&net, &service);
    service.finish(PATIENCE);
}

/// A port that nobody has, of TCP nor of UDP; nobody else is in this namespace to take it.
fn free_port() -> u16 {
    loop {
        let tcp = TcpListener::bind("0.0.0.0:0").expect("a listener");
        let port = tcp.local_addr().expect("an address").port();
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// The next datagram, who sent it, and the hop limit and type of service of its IP header.
fn receive_with_header(socket: &UdpSocket) -> (Vec<u8>, SocketAddr, [u8; 2]) {
    for option in [libc::IP_RECVTTL, libc::IP_RECVTOS] {
        let on: libc::c_int = 1;
        let len = size_of_val(&on) as libc::socklen_t;
        let (fd, value) = (socket.as_raw_fd(), (&raw const on).cast());
        // SAFETY: a socket that lives, and a number of that length.
        let set = unsafe { libc::setsockopt(fd, libc::IPPROTO_IP, option, value, len) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    let mut bytes = vec![0; 100];
    let from = socket.peek_from(&mut bytes).expect("a datagram").1;
    let mut control = [0u64; 16];
    // SAFETY: all-zero is a message header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    (message.msg_iov, message.msg_iovlen) = (&mut piece, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: all that the header points to lives here and is as long as it says.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, 0) };
    bytes.truncate(n.try_into().expect("a datagram"));
    let mut header = [0; 2];
    // SAFETY: a header that the kernel has just filled; so in what follows, where its parts are
    // read.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !next.is_null() {
        // SAFETY: as above; of both kinds the first octet of the value is looked at.
        unsafe {
            let value = libc::CMSG_DATA(next).read();
            match (*next).cmsg_type {
                libc::IP_TTL => header[0] = value,
                libc::IP_TOS => header[1] = value,
                _ => {}
            }
            next = libc::CMSG_NXTHDR(&message, next);
        }
    }
    (bytes, from, header)
}

#[test]
fn every_function_does_what_the_header_says() {
    let test = "every_function_does_what_the_header_says";
    for words in [&["cc", "-xc"][..], &["c++", "-xc++"], &["gcc", "-xc", "-DSTATIC"]] {
        let Some(program) = compile(test, words, "tests/programs/calls.c") else { continue };
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let (listener, socket) = net.client.run(|| {
            let any = ("0.0.0.0", 0);
            (TcpListener::bind(any).expect("a listener"), UdpSocket::bind(any).expect("a socket"))
        });
        let tcp = format!("{CLIENT}:{}", listener.local_addr().expect("an address").port());
        let udp = format!("{CLIENT}:{}", socket.local_addr().expect("an address").port());
        let closed = format!("{CLIENT}:{}", net.client.run(free_port));
        let serves = std::thread::spawn(move || {
            let (datagram, from, header) = receive_with_header(&socket);
            assert_eq!(header, [7, 46 << 2], "hop limit and type of service of {datagram:?}");
            socket.send_to(&datagram, from).expect("an answer");
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut buffer = [0; 700];
            loop {
                match stream.read(&mut buffer).expect("bytes") {
                    0 => break,
                    n => stream.write_all(&buffer[..n]).expect("the echo"),
                }
            }
        });
        let own = format!("{}:0", SERVICE.ip());
        let service = net.start(&[program.to_str().expect("text"), &tcp, &udp, &closed, &own]);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success() && said.contains(&"ok".to_owned()), "{words:?}: {said:#?}");
        serves.join().expect("the peer");
    }
}

#[test]
fn a_program_in_c_brings_its_own_protocol() {
    let test = "a_program_in_c_brings_its_own_protocol";
    for words in [&["cc", "-xc"][..], &["c++", "-xc++"]] {
        let Some(program) = compile(test, words, "tests/programs/packets.c") else { continue };
        for nic in Nic::ALL {
            let Some(net) = TestNet::new(test, nic, 1) else { return };
            let service = net.start(&[program.to_str().expect("text")]);
            service.process.wait_for("ready", PATIENCE);
            let raw = Raw::open(&net);
            let question = b"a question";
            assert_eq!(raw.ask(question, |answer| answer == question), question);
            // The second one is answered in a foreign name, which does not leave.
            let done = || service.process.said().iter().any(|line| line == "ok");
            eventually("it is done", || {
                raw.try_send(b"another");
                done()
            });
            let (status, said) = service.process.wait(PATIENCE);
            assert!(status.success(), "{words:?}: {said:#?}");
        }
    }
}

/// As from Rust (`every_doorbell_rings`).
#[test]
fn every_doorbell_rings_in_c() {
    let test = "every_doorbell_rings_in_c";
    let Some(program) = compile(test, &["cc"], "tests/programs/bells.c") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        ring_doorbells(&net, net.start(&[program.to_str().expect("text")]));
    }
}

#[test]
fn without_a_dataplane_it_says_so_in_a_line() {
    let test = "without_a_dataplane_it_says_so_in_a_line";
    let Some(program) = compile(test, &["cc"], "examples/echo.c") else { return };
    let output = Command::new(program).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said, "echo: not running under `ix run` (IX_ABI is not set)\n");
}
