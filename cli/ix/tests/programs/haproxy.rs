//! Debian's haproxy, unmodified, on IX: the load balancer of the Arrakis paper in front of two web
//! servers, with cookies and many short connections, driven by `ab` and `ix load`.

use crate::support;
use crate::support::process::Process;
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet};
use ix_skip::{Need, skip, skip_part};
use std::io::{Read, Write};
use std::process::Command;

const PORT: u16 = 80;
/// How the line begins that `IX_POSIX_CALLS` asks for.
const FORWARDED: &str = "ix: calls forwarded to Linux: ";

/// A web server on Linux with a page that is its name, and one that all servers have.
fn back_end(net: &TestNet, name: &str, port: u16) -> Process {
    let pages = net.file(name);
    std::fs::create_dir_all(&pages).expect("a folder");
    std::fs::write(pages.join("name.txt"), name).expect("a page");
    std::fs::write(pages.join("same.txt"), "same ".repeat(200)).expect("a page");
    let mut command = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    command.args(["httpd", "--linux", "--port", &port.to_string()]).arg(pages);
    let process = Process::start(command);
    process.wait_for("ready", PATIENCE);
    process
}

/// haproxy, with these flags, in front of two servers.
fn balancer(net: &TestNet, flags: &[&str]) -> Service {
    let file = net.file("haproxy.cfg");
    // With several, they wake each other over Linux's pipes.
    let threads = if flags == ["-db"] { 1 } else { 2 };
    let config = format!(
        "global\n nbthread {threads}\ndefaults\n mode http\n timeout connect 20s\n timeout client 20s\n timeout server 20s\n\
         frontend web\n bind {}:{PORT}\n default_backend servers\n\
         backend servers\n balance roundrobin\n cookie SRV insert indirect nocache\n \
         server a {CLIENT}:8001 cookie a\n server b {CLIENT}:8002 cookie b\n",
        SERVICE.ip()
    );
    std::fs::write(&file, config).expect("a configuration");
    let words = [&["haproxy", "-f", file.to_str().expect("text")], flags].concat();
    let mut service = net.start_env(&[("IX_POSIX_CALLS", "1")], &[], &words);
    support::eventually("haproxy answers", || {
        service.process.check();
        get(net, "").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    });
    service
}

/// One request on a connection of its own, with this header; the whole answer.
fn get(net: &TestNet, header: &str) -> Option<String> {
    let at = (*SERVICE.ip(), PORT).into();
    let stream = net.client.run(|| std::net::TcpStream::connect_timeout(&at, PATIENCE));
    let mut stream = stream.ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request =
        format!("GET /name.txt HTTP/1.1\r\nHost: ix\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn haproxy_balances_on_ix() {
    let test = "haproxy_balances_on_ix";
    if Command::new("haproxy").arg("-v").output().is_err() {
        skip(test, Need::Program("apt-get install haproxy apache2-utils"), "no haproxy");
        return;
    }
    // In the foreground; as a daemon; with a master and a worker.
    for (nic, flags) in [(Nic::Tap, &["-db"][..]), (Nic::Afxdp, &["-D"]), (Nic::Tap, &["-W"])] {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let _servers = [back_end(&net, "a", 8001), back_end(&net, "b", 8002)];
        let service = balancer(&net, flags);
        // Without a cookie they take turns; with one it decides.
        let first = get(&net, "").expect("an answer");
        let second = get(&net, "").expect("an answer");
        let named = |answer: &str| answer.chars().last();
        assert_ne!(named(&first), named(&second), "{first}\n{second}");
        for name in ["a", "b", "a", "a", "b"] {
            let answer = get(&net, &format!("Cookie: SRV={name}\r\n")).expect("an answer");
            assert!(answer.ends_with(name), "asked for {name}: {answer}");
        }
        let url = format!("http://{}:{PORT}/same.txt", SERVICE.ip());
        for keep in [&[][..], &["-k"]] {
            let words = [&["-q", "-n", "3000", "-c", "16"], keep, &[&url]].concat();
            let Ok(output) = net.client.command("ab", None).args(words).output() else {
                skip_part(test, Need::Program("apt-get install apache2-utils"), "no ab");
                break;
            };
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("Complete requests:      3000"), "{flags:?}: {said}");
            assert!(said.contains("Failed requests:        0"), "{flags:?}: {said}");
        }
        let mut load = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
        load.args(["load", &format!("{}:{PORT}", SERVICE.ip()), "--protocol", "http"]);
        load.args(["--path", "/same.txt", "--connections", "32", "--seconds", "0.5"]);
        let output = load.output().expect("ix load");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stats = service.stats();
        assert!(stats.total("accepted") > 100, "it was IX that served: {stats}");
        drop(_servers);
        // Connections to the servers and from clients are all gone: no flow and no frame is left.
        service.comes_to_rest(PATIENCE);
        let in_front = flags == ["-db"];
        service.process.signal(if in_front { libc::SIGUSR1 } else { libc::SIGTERM });
        let (_, said) = service.process.wait(PATIENCE);
        if in_front {
            // Connections came and went by the thousand without a call to Linux for each.
            let forwarded = said.iter().find_map(|line| line.strip_prefix(FORWARDED));
            let count = forwarded.and_then(|said| said.split(' ').next()?.parse::<u64>().ok());
            let accepted = stats.total("accepted");
            assert!(count.is_some_and(|count| count < accepted / 2), "{accepted}: {said:#?}");
        }
    }
}
