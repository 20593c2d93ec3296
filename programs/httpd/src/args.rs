//! The command line.
use crate::peer::Patience;
use clap::Parser;
use ix_programs::cpu::Cpus;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// Static pages from memory over HTTP/1.1, on IX and on Linux sockets.
///
/// Under `ix run` it uses the dataplane; with --linux, sockets and epoll. All pages are read at
/// start, and never again.
#[derive(Parser, Debug, Clone)]
#[command(
    version,
    after_help = "\
Examples:
  ix run --nic afxdp:veth1 --addr 10.0.0.2/24 --cpus 1 ix-httpd --page 1024
  ix run --nic tap:ix0 --addr 192.0.2.2/24 ix-httpd /var/www/html --port 8080
  ix-httpd --linux --page 64 --page 8192 --port 8080 --threads 2 --cpus 0-1 --spin
  ab -k -n 100000 -c 64 http://10.0.0.2/1024"
)]
pub struct Args {
    /// Folder with the pages; index.html is the page of its folder.
    #[arg(value_name = "FOLDER", required_unless_present = "page")]
    pub folder: Option<PathBuf>,
    /// Add a page of SIZE bytes at /SIZE; the first is also at /; may be repeated.
    #[arg(long, value_name = "SIZE")]
    pub page: Vec<u64>,
    /// Port to listen on.
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// Address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub addr: IpAddr,
    /// Most connections per thread; more are refused.
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    pub max_conn: usize,
    /// Most memory of all pages together, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub memory: u64,
    /// A request must be complete this many seconds after its first byte.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub request_timeout: f64,
    /// A connection may be idle, or read nothing of its response, for this many seconds.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub idle_timeout: f64,
    /// Number of threads (default: one for each elastic thread; on Linux one).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Use Linux sockets and epoll.
    #[arg(long)]
    pub linux: bool,
    /// Linux: poll, and never sleep in epoll_wait.
    #[arg(long, requires = "linux")]
    pub spin: bool,
    /// Linux: hardware threads to pin to, such as 0,2-3; threads take them in turn.
    #[arg(long, value_name = "LIST", value_parser = str::parse::<Cpus>, requires = "linux")]
    pub cpus: Option<Cpus>,
}

impl Args {
    /// How long the server waits for peers.
    pub(crate) fn patience(&self) -> Patience {
        let us = |seconds: f64| (seconds * 1e6) as u64;
        Patience { request_us: us(self.request_timeout), idle_us: us(self.idle_timeout) }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let range = 0.01..=86_400.0;
    if range.contains(&seconds) {
        Ok(seconds)
    } else {
        Err("not a number of seconds from 0.01 to 86400".to_owned())
    }
}
