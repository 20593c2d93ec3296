//! Each socket of an unmodified program is said to be IX's or Linux's.
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, TestNet};
use ix_skip::{Need, skip};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

/// Listens, binds and connects on either side, some of it twice and some of it in a child. At the
/// end its standard error is another file.
const PROGRAM: &str = "
import os, socket, sys, time
own, peer, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
def listen(host, port, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, port))
    s.listen()
    return s
kept = [listen(own, 7), listen('0.0.0.0', 8), listen('127.0.0.1', 9)]
kept[0].close()
kept.append(listen(own, 7))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((own, 53))
if os.fork() == 0:
    listen('127.0.0.1', 9 + 1)
    os._exit(0)
os.wait()
kept.append(listen('127.0.0.1', 9 + 1))
for host in [peer, peer, '127.0.0.1']:
    s = socket.create_connection((host, port))
    s.close()
file = os.open(sys.argv[4], os.O_RDWR | os.O_CREAT)
os.dup2(file, 2)
kept.append(listen(own, 77))
print('done', flush=True)
";

/// What standard error has is JSON, a line each, the program's own library included.
#[test]
fn messages_are_json_if_that_is_wanted() {
    let test = "messages_are_json_if_that_is_wanted";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let words = ["/usr/bin/python3", "-c", "import socket; socket.create_server(('10.88.0.2', 7))"];
    if Command::new(words[0]).arg("-V").output().is_err() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return;
    }
    let service = net.start_env(&[], &["--log-format", "json"], &words);
    let (_, said) = service.process.wait(PATIENCE);
    let lines: Vec<serde_json::Value> = said
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    let says = |words: &str| {
        let at = lines.iter().find(|line| line["message"].as_str().is_some_and(|m| m == words));
        let at = at.unwrap_or_else(|| panic!("nothing says `{words}`: {said:#?}"));
        assert_eq!(at["level"], "info");
        assert_eq!(at["time"].as_str().map(str::len), Some("2026-01-01T00:00:00.000Z".len()));
    };
    says("listening on 10.88.0.2:7: IX");
    assert!(
        lines.iter().any(|line| line["message"].as_str().is_some_and(|m| m.starts_with("domain ")))
    );
}

#[test]
fn each_listener_is_said_to_be_ixs_or_linuxs() {
    let test = "each_listener_is_said_to_be_ixs_or_linuxs";
    let python = "/usr/bin/python3";
    if Command::new(python).arg("-V").output().is_err() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return;
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (namespace, _) = net.service_link();
    namespace.set_up("lo", true).expect("loopback");
    let listener = net.client.run(|| TcpListener::bind((CLIENT, 0))).expect("a listener");
    let port = listener.local_addr().expect("a name").port();
    let local = namespace.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    let _local = local.expect("a listener");
    let (own, peer, port) = (SERVICE.ip().to_string(), CLIENT.to_string(), port.to_string());
    let own_file = net.file("own");
    std::fs::write(&own_file, "").expect("a file");
    // Whoever the program runs as.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&own_file, mode).expect("rights");
    let file = own_file.to_str().expect("text");
    let service = net.start(&[python, "-c", PROGRAM, &own, &peer, &port, file]);
    service.process.wait_for("done", PATIENCE);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    let whose: Vec<&str> = said
        .iter()
        .filter_map(|line| line.strip_prefix("ix: "))
        .filter(|line| ["listening ", "receiving ", "first "].iter().any(|s| line.starts_with(s)))
        .collect();
    let expected = [
        format!("listening on {own}:7: IX"),
        "listening on 0.0.0.0:8: IX, and Linux on the loopback and its own addresses".to_owned(),
        "listening on 127.0.0.1:9: Linux (loopback)".to_owned(),
        format!("receiving datagrams on {own}:53: IX"),
        "listening on 127.0.0.1:10: Linux (loopback)".to_owned(),
        format!("first connection to {peer}:{port}: IX"),
        format!("first connection to 127.0.0.1:{port}: Linux (loopback)"),
    ];
    assert_eq!(whose, expected, "{said:#?}");
    assert_eq!(std::fs::read_to_string(own_file).expect("a file"), "", "it is the program's own");
}
