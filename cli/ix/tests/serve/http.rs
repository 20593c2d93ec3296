//! The web server on IX, and real clients on Linux.
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::process::Output;

const PORT: u16 = 7;

/// Starts `ix httpd` and waits until it serves.
fn serve(net: &TestNet, arguments: &[&str]) -> Service {
    let port = PORT.to_string();
    let program = [env!("CARGO_BIN_EXE_ix"), "httpd", "--port", &port];
    let service = net.start(&[&program[..], arguments].concat());
    service.process.wait_for("ready", PATIENCE);
    service
}

fn url(page: usize) -> String {
    format!("http://{}:{PORT}/{page}", SERVICE.ip())
}

/// A real client on Linux; `None`, said loudly, where it is not installed.
fn client(net: &TestNet, test: &str, name: &str, package: &str, args: &[&str]) -> Option<Output> {
    match net.client.command(name, None).args(args).output() {
        Ok(output) => Some(output),
        Err(error) => {
            let remedy = format!("apt-get install {package}");
            skip(test, Need::Program(&remedy), format_args!("cannot run {name}: {error}"));
            None
        }
    }
}

#[test]
fn curl_gets_pages_of_every_size_over_one_connection() {
    let test = "curl_gets_pages_of_every_size_over_one_connection";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let sizes = [0, 1, 1000, 1792, 1793, 131_072, 131_073, 1_000_000];
        let pages: Vec<_> = sizes.iter().map(usize::to_string).collect();
        let pages: Vec<_> = pages.iter().flat_map(|size| ["--page", size]).collect();
        let service = serve(&net, &pages);
        let urls = sizes.map(url);
        let flags = ["-sS", "-f", "-w", "|%{num_connects}|%{size_download}\n"];
        let args: Vec<_> = flags.into_iter().chain(urls.iter().map(String::as_str)).collect();
        let Some(output) = client(&net, test, "curl", "curl", &args) else { return };
        let text = String::from_utf8(output.stdout).expect("text");
        for (index, size) in sizes.into_iter().enumerate() {
            let connects = usize::from(index == 0);
            let end = format!("|{connects}|{size}\n");
            assert!(text.contains(&end), "{nic:?}: {size} bytes: {:?}", output.stderr);
        }
        let refused = url(4);
        let refused = client(&net, test, "curl", "curl", &["-sS", "-I", &refused]).expect("curl");
        assert!(refused.stdout.starts_with(b"HTTP/1.1 404 Not Found\r\n"), "{refused:?}");
        service.finish(PATIENCE);
    }
}

#[test]
fn ab_finds_no_failure_with_and_without_keep_alive() {
    let test = "ab_finds_no_failure_with_and_without_keep_alive";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 2) else { return };
        let service = serve(&net, &["--page", "1024"]);
        for flags in [&["-k"][..], &[]] {
            let page = url(1024);
            let args = [flags, &["-q", "-n", "2000", "-c", "16", &page]].concat();
            let Some(output) = client(&net, test, "ab", "apache2-utils", &args) else { return };
            let text = String::from_utf8_lossy(&output.stdout);
            let number = |what: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(what));
                line.and_then(|rest| rest.split_ascii_whitespace().next())
            };
            assert_eq!(number("Complete requests:"), Some("2000"), "{nic:?}: {text}");
            assert_eq!(number("Failed requests:"), Some("0"), "{nic:?}: {text}");
            assert_eq!(number("HTML transferred:"), Some("2048000"), "{nic:?}: {text}");
        }
        service.finish(PATIENCE);
    }
}

#[test]
fn a_pipelined_flood_is_answered_in_order_and_a_half_request_ends() {
    let test = "a_pipelined_flood_is_answered_in_order_and_a_half_request_ends";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let pages = ["--page", "10", "--page", "20000", "--request-timeout", "0.3"];
        let service = serve(&net, &pages);
        let request = |page: usize| format!("GET /{page} HTTP/1.1\r\nHost: h\r\n\r\n");
        let requests = (request(10) + &request(20_000)).repeat(500);
        let mut stream = net.connect();
        let mut writer = stream.try_clone().expect("clone");
        let sender = std::thread::spawn(move || {
            writer.write_all((requests + "GET / HT").as_bytes()).expect("all requests");
        });
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).expect("answers, and FIN");
        sender.join().expect("sender");
        let text = String::from_utf8(answers).expect("text");
        let lengths: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok())
            .collect();
        assert_eq!(lengths.len(), 1001, "{nic:?}");
        assert!(lengths[..1000].chunks(2).all(|pair| pair == [10, 20_000]), "{nic:?}");
        assert!(text.ends_with("408 Request Timeout"), "{nic:?}");
        drop(stream);
        service.finish(PATIENCE);
    }
}
