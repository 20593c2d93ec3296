//! The program on Linux sockets, from the outside, over loopback.
use ix_skip::{Need, skip};
use ix_testbed::server::{Server, free_address};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

struct Httpd(Server);

impl Httpd {
    fn start(args: &[&str]) -> Httpd {
        let at = free_address();
        let mut command = program(args);
        command.args(["--linux", "--addr", "127.0.0.1", "--port", &at.port().to_string()]);
        Httpd(Server::start(command, at))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.0.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.0.at)
    }

    /// What comes back until the server closes, the dates taken out.
    fn says(&self, requests: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().filter(|line| !line.starts_with("Date: ")).collect::<Vec<_>>().join("\n")
    }
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix-httpd"));
    command.args(args).env_remove("IX_ABI");
    command
}

/// A real client; `None`, said loudly, where it is not installed.
fn client(test: &str, name: &str, package: &str, args: &[&str]) -> Option<Output> {
    match Command::new(name).args(args).output() {
        Ok(output) => Some(output),
        Err(error) => {
            let remedy = format!("apt-get install {package}");
            skip(test, Need::Program(&remedy), format_args!("cannot run {name}: {error}"));
            None
        }
    }
}

const CLOSE: &str = "Host: h\r\nConnection: close\r\n\r\n";

#[test]
fn the_answer_to_each_request() {
    let server = Httpd::start(&["--page", "5"]);
    let head = |status: &str, media: &str, length: usize, connection: &str| {
        format!(
            "HTTP/1.1 {status}\nServer: ix-httpd\nContent-Type: {media}\nContent-Length: {length}\n\
             {connection}"
        )
    };
    let text = "text/plain; charset=utf-8";
    let page = |connection: &str| head("200 OK", text, 5, connection) + "\nAll w";
    let refusal = |status: &str| head(status, "text/plain", status.len(), "Connection: close\n\n");
    for (requests, wanted) in [
        (format!("GET / HTTP/1.1\r\n{CLOSE}"), page("Connection: close\n")),
        ("GET /5 HTTP/1.0\r\n\r\n".to_owned(), page("Connection: close\n")),
        (
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n".to_owned(),
            page("Connection: keep-alive\n") + &page("Connection: close\n"),
        ),
        (format!("HEAD / HTTP/1.1\r\n{CLOSE}"), head("200 OK", text, 5, "Connection: close\n")),
        (
            format!("DELETE / HTTP/1.1\r\n{CLOSE}"),
            head("405 Method Not Allowed", "text/plain", 22, "Allow: GET, HEAD\n")
                + "Connection: close\n\n405 Method Not Allowed",
        ),
    ] {
        assert_eq!(server.says(&requests), wanted, "{requests}");
    }
    for (requests, status) in [
        (format!("GET /../5 HTTP/1.1\r\n{CLOSE}"), "404 Not Found"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request"),
        ("\x16\x03\x01\x02\x00\x01".to_owned(), "400 Bad Request"),
        ("GET / HTTP/2.0\r\n\r\n".to_owned(), "505 HTTP Version Not Supported"),
        (format!("GET /{} HTTP/1.1\r\n{CLOSE}", "x".repeat(20_000)), "414 URI Too Long"),
        (
            format!("GET / HTTP/1.1\r\nX: {}\r\n{CLOSE}", "x".repeat(20_000)),
            "431 Request Header Fields Too Large",
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nContent-Length: 3000000\r\n{CLOSE}{}",
                "x".repeat(3_000_000)
            ),
            "413 Content Too Large",
        ),
    ] {
        assert_eq!(server.says(&requests), refusal(status) + status, "{requests:.70}");
    }
}

#[test]
fn pipelined_requests_and_a_client_that_shuts_its_half() {
    let server = Httpd::start(&["--page", "100000", "--spin", "--threads", "2", "--cpus", "0"]);
    let mut stream = server.connect();
    stream.write_all("GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(100).as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let heads = answers.windows(15).filter(|window| window == b"HTTP/1.1 200 OK").count();
    assert!(heads == 100 && answers.len() > 100 * 100_000, "{heads} {}", answers.len());
}

#[test]
fn a_flood_that_does_not_read_stalls_itself_only() {
    let server = Httpd::start(&["--page", "1000000"]);
    let mut flood = server.connect();
    flood.set_nonblocking(true).unwrap();
    let requests = "GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(1000);
    // Until the server has stopped reading: both sockets' buffers are full.
    let (mut sent, mut full) = (0, 0);
    while full < 20 {
        match flood.write(requests.as_bytes()) {
            Ok(n) => (sent, full) = (sent + n, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                full += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(sent < 64 << 20, "it goes on reading");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.0.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kb < 32 << 10, "{peak_kb} kB for answers that nobody reads");
    assert!(server.says(&format!("HEAD / HTTP/1.1\r\n{CLOSE}")).starts_with("HTTP/1.1 200"));
}

#[test]
fn half_requests_and_idle_connections_end() {
    let server =
        Httpd::start(&["--page", "10", "--request-timeout", "0.2", "--idle-timeout", "0.4"]);
    assert!(server.says("GET / HTTP/1.1\r\nHo").starts_with("HTTP/1.1 408 Request Timeout\n"));
    assert_eq!(server.says(""), "");
    let answer = server.says("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    // Neither end of the connection is left after the server's patience with a lazy client.
    let mut lazy = server.connect();
    lazy.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.0.pid())).unwrap().flatten();
    let sockets = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let sockets = sockets.filter(|to| to.to_string_lossy().starts_with("socket:")).count();
    assert_eq!(sockets, 1, "the listener");
}

#[test]
fn curl_gets_what_is_in_the_folder() {
    let test = "curl_gets_what_is_in_the_folder";
    let folder = std::env::temp_dir().join(format!("ix-httpd-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    let page: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    std::fs::write(folder.join("sub/a page.bin"), &page).unwrap();
    std::fs::write(folder.join("index.html"), "<p>home").unwrap();
    let server = Httpd::start(&[folder.to_str().unwrap()]);
    let url = server.url("/sub/a%20page.bin?query");
    let Some(output) = client(test, "curl", "curl", &["-sS", "-f", &url]) else { return };
    assert!(output.stdout == page, "{}", String::from_utf8_lossy(&output.stderr));
    let home = server.url("/");
    let twice = client(test, "curl", "curl", &["-sS", "-w", "%{num_connects}", &home, &home]);
    assert_eq!(twice.unwrap().stdout, b"<p>home1<p>home0", "the second on the same connection");
    let upload = folder.join("index.html");
    let put = ["-sS", "-T", upload.to_str().unwrap(), "-H", "Transfer-Encoding: chunked", &home];
    let put = client(test, "curl", "curl", &[&put[..], &["-w", "%{http_code}"]].concat()).unwrap();
    assert_eq!(put.stdout, b"405 Method Not Allowed405");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ab_finds_no_failure() {
    let server = Httpd::start(&["--page", "1024", "--threads", "2"]);
    for flags in [&["-k"][..], &[]] {
        let url = server.url("/1024");
        let args = [flags, &["-q", "-n", "2000", "-c", "16", &url]].concat();
        let Some(output) = client("ab_finds_no_failure", "ab", "apache2-utils", &args) else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let number = |what: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(what));
            line.map(|rest| rest.split_ascii_whitespace().next().unwrap_or_default().to_owned())
        };
        assert_eq!(number("Complete requests:").as_deref(), Some("2000"), "{text}");
        assert_eq!(number("Failed requests:").as_deref(), Some("0"), "{text}");
        assert_eq!(number("HTML transferred:").as_deref(), Some("2048000"), "{text}");
        let kept = if flags.is_empty() { None } else { Some("2000".to_owned()) };
        assert_eq!(number("Keep-Alive requests:"), kept, "{text}");
    }
}

#[test]
fn errors_are_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let listen = ["--page", "1", "--linux", "--addr", "127.0.0.1", "--port", &port];
    for (args, words) in [
        (&listen[..], "cannot serve on 127.0.0.1:"),
        (&["--page", "64"], "--linux"),
        (&["/no/such/folder", "--linux"], "/no/such/folder"),
        (&["--page", "99999999999", "--linux"], "raise --memory"),
    ] {
        let output = program(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("ix-httpd: ") && text.lines().count() == 1, "{text}");
        assert!(text.contains(words), "{text}");
    }
}
