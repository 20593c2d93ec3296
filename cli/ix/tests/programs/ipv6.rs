//! Debian's programs on IX by IPv6, as they come: memcached at all addresses of both families, and
//! `curl`.
use crate::support::{self, CLIENT_V6, Nic, PATIENCE, SERVICE, SERVICE_V6, Service, TestNet};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

const MEMCACHED_PORT: u16 = 11211;

fn start(net: &TestNet, program: &[&str]) -> Service {
    let flags = net.flags_v6();
    let service = net.start_env(&[], &flags.each_ref().map(String::as_str), program);
    net.enable_v6();
    service
}

/// One exchange of memcached's text protocol.
fn exchange(stream: &mut TcpStream, request: &str, answer: &str) {
    stream.write_all(request.as_bytes()).expect("write");
    let mut back = vec![0; answer.len()];
    stream.read_exact(&mut back).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&back), answer);
}

#[test]
fn memcached_serves_both_families_as_it_comes() {
    let test = "memcached_serves_both_families_as_it_comes";
    if Command::new("memcached").arg("-V").output().is_err() {
        return skip(test, Need::Program("apt-get install memcached"), "no memcached");
    }
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = start(&net, &["memcached", "-u", "nobody", "-m", "64", "-t", "2"]);
        let connect = |to: SocketAddr| {
            let attempt = || net.client.run(|| TcpStream::connect_timeout(&to, PATIENCE));
            let mut stream = None;
            support::eventually("memcached listens", || {
                stream = attempt().ok();
                stream.is_some()
            });
            let stream = stream.expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream
        };
        let mut by_v6 = connect((SERVICE_V6, MEMCACHED_PORT).into());
        let mut by_v4 = connect((*SERVICE.ip(), MEMCACHED_PORT).into());
        exchange(&mut by_v6, "set k 0 0 5\r\nhello\r\n", "STORED\r\n");
        exchange(&mut by_v4, "get k\r\n", "VALUE k 0 5\r\nhello\r\nEND\r\n");
        let connections = service.client().ask("{\"do\":\"connections\"}").expect("connections");
        let connections = connections["connections"].as_array().expect("a list");
        let peers: Vec<&str> = connections.iter().filter_map(|one| one["peer"].as_str()).collect();
        for stream in [&by_v6, &by_v4] {
            let own = stream.local_addr().expect("an address").to_string();
            assert!(peers.contains(&own.as_str()), "{own} is not IX's: {peers:?} ({nic:?})");
        }
        drop((by_v6, by_v4));
        service.process.signal(libc::SIGTERM);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{status}: {said:#?}");
    }
}

#[test]
fn curl_fetches_by_ipv6() {
    let test = "curl_fetches_by_ipv6";
    if Command::new("curl").arg("-V").output().is_err() {
        return skip(test, Need::Program("apt-get install curl"), "no curl");
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    net.enable_v6();
    let listener = net.client.run(|| TcpListener::bind((CLIENT_V6, 0))).expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let page: String = (0..100_000u32).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let served = page.clone();
    let server = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().expect("a connection");
        let mut request = [0; 1000];
        let _ = stream.read(&mut request).expect("a request");
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", served.len());
        stream.write_all(head.as_bytes()).expect("write");
        stream.write_all(served.as_bytes()).expect("write");
        peer
    });
    let url = format!("http://[{CLIENT_V6}]:{port}/");
    let service = start(&net, &["curl", "-6", "-sS", "--max-time", "30", &url]);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success() && said.join("\n").contains(&page), "{status}: {said:#?}");
    assert_eq!(server.join().expect("served").ip(), SERVICE_V6, "it came from IX");
}
