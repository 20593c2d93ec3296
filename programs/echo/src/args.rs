//! The command line.
use crate::{rounds, udp};
use clap::{Parser, ValueEnum};
use ix_programs::cpu::Cpus;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Echo and bulk server, and a load generator for them, on IX and on Linux sockets.
///
/// Under `ix run` it uses the dataplane; with --linux, sockets and epoll.
#[derive(Parser, Debug, Clone)]
#[command(
    version,
    after_help = "\
Examples:
  ix run --nic afxdp:veth1 --addr 10.0.0.2/24 --cpus 1 ix-echo 64
  ix-echo 64 --linux --port 7000
  ix-echo --client 10.0.0.2:7 --linux --size 64 --connections 64 --seconds 5 --json
  ix-echo 1024 --udp --linux --port 7000
  ix-echo --client 10.0.0.2:7 --linux --connections 10000 --in-flight 64
  ix-echo bulk --linux --port 7001
  ix-echo --client 10.0.0.2:7001 --linux --bulk both --bytes 1073741824"
)]
pub struct Args {
    /// Server: size of a message, bytes; each message is echoed when all of it has arrived; or
    /// `bulk`.
    #[arg(value_name = "SIZE|bulk", required_unless_present = "client")]
    pub serve: Option<Serve>,
    /// Client: address of the server.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "serve")]
    pub client: Option<SocketAddr>,
    /// Server: port to listen on.
    #[arg(long, default_value_t = 7)]
    pub port: u16,
    /// Number of ports, from --port on: a server listens on all, a client spreads its connections.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub ports: u16,
    /// Server: address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub addr: IpAddr,
    /// Server: most connections per thread; more are refused.
    #[arg(long, value_name = "N")]
    pub max_conn: Option<usize>,
    /// Server: simulated work per message, µs of processor time.
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = work)]
    pub work_us: f64,
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
    #[arg(long, value_name = "LIST", value_parser = Cpus::from_str, requires = "linux")]
    pub cpus: Option<Cpus>,
    /// Client: size of a message, bytes.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub size: u64,
    /// Client: number of connections, all threads together.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Client: duration of the measurement.
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Client: time before the measurement (default: a tenth of the measurement).
    #[arg(long, value_parser = seconds)]
    pub warmup: Option<f64>,
    /// Client: messages in flight on each connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: u32,
    /// Messages of a connection: then a client resets it and opens another; a server closes it.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages_per_connection: Option<u64>,
    /// Client: how a connection ends after its messages.
    #[arg(long, value_name = "HOW", default_value = "reset", requires = "messages_per_connection")]
    pub close: Close,
    /// Client: messages in flight over all connections of a thread together, each on a random
    /// connection; the measurement begins when all connections are open.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["depth", "messages_per_connection", "bulk", "udp"])]
    pub in_flight: Option<u32>,
    /// Use UDP; each thread of a client keeps --depth datagrams in flight.
    #[arg(long, conflicts_with_all = ["bulk", "messages_per_connection"])]
    pub udp: bool,
    /// Server over UDP on IX: use the program's own UDP over whole frames instead of the
    /// dataplane's.
    #[arg(long, requires = "udp")]
    pub packets: bool,
    /// Server over UDP on IX: send replies that are longer than a packet in fragments.
    #[arg(long, requires = "udp", conflicts_with = "packets")]
    pub fragments: bool,
    /// Server over UDP on Linux: most datagrams per system call.
    #[arg(long, value_name = "N", requires = "udp", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub burst: u32,
    /// Server over UDP on Linux: receive one datagram per call, and print where the time goes after
    /// this many.
    #[arg(long, value_name = "N", requires_all = ["udp", "linux"])]
    pub parts: Option<u32>,
    /// Server over UDP: replies say when their request was received; with --packets, by a loop that
    /// waits for a packet queue.
    #[arg(long, requires = "udp")]
    pub stamp: bool,
    /// Server over UDP on IX: run single cycles, and never wait inside the dataplane, so that its
    /// counters show the cost of crossing the gate.
    #[arg(long, requires = "udp")]
    pub poll: bool,
    /// Client: transfer --bytes over one connection instead, in this direction as seen by the
    /// client.
    #[arg(long, value_name = "DIRECTION", requires = "client")]
    pub bulk: Option<Direction>,
    /// Client: bytes of a bulk transfer in each direction.
    #[arg(long, default_value_t = 1 << 30)]
    pub bytes: u64,
    /// Client: print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// Checks what clap cannot: sizes that the kind of load does not allow.
    pub fn check(&self) -> Result<(), String> {
        let size = match self.serve {
            Some(Serve::Echo(size)) => size as u64,
            Some(Serve::Bulk) if self.udp => return Err("bulk does not work over UDP".into()),
            _ => self.size,
        };
        if self.udp && !(udp::SIZE_MIN..=udp::SIZE_MAX).contains(&size) {
            let (min, max) = (udp::SIZE_MIN, udp::SIZE_MAX);
            return Err(format!("a datagram of {size} bytes is not possible; give {min} to {max}"));
        }
        if self.in_flight.is_some() && size > rounds::SIZE_MAX {
            return Err(format!(
                "with --in-flight a message has at most {} bytes",
                rounds::SIZE_MAX
            ));
        }
        Ok(())
    }
}

/// How a client ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Close {
    /// By a reset, without TIME-WAIT.
    Reset,
    /// By the client's FIN; the client keeps the TIME-WAIT.
    Fin,
    /// By the server's FIN, which the client waits for; the server keeps the TIME-WAIT.
    Wait,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serve {
    /// Echoes messages of this many bytes.
    Echo(usize),
    /// Receives and sends bulk data as the client asks.
    Bulk,
}

impl FromStr for Serve {
    type Err = String;
    fn from_str(text: &str) -> Result<Serve, String> {
        match (text, text.parse()) {
            ("bulk", _) => Ok(Serve::Bulk),
            (_, Ok(size @ 1..)) => Ok(Serve::Echo(size)),
            _ => Err("neither a message size in bytes nor `bulk`".into()),
        }
    }
}

/// Direction of a bulk transfer as seen by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// Client to server.
    Send,
    /// Server to client.
    Recv,
    /// Both directions at once.
    Both,
}

fn work(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(us) if (0.0..=1e6).contains(&us) => Ok(us),
        _ => Err("not a number of microseconds from 0 to 1000000"),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1e6).contains(&value) => Ok(value),
        _ => Err("not a number of seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn consistent_and_strict() {
        Args::command().debug_assert();
        let parse = |line: &str| Args::try_parse_from(line.split(' '));
        assert_eq!(parse("ix-echo 64").unwrap().serve, Some(Serve::Echo(64)));
        assert_eq!(parse("ix-echo bulk --port 9").unwrap().serve, Some(Serve::Bulk));
        for wrong in [
            "ix-echo",
            "ix-echo 0",
            "ix-echo x",
            "ix-echo 64 --client 1.2.3.4:5",
            "ix-echo 64 --spin",
            "ix-echo --client 1.2.3.4",
            "ix-echo --client 1.2.3.4:5 --connections 0",
            "ix-echo --client 1.2.3.4:5 --seconds nan",
            "ix-echo --client 1.2.3.4:5 --in-flight 4 --depth 2",
            "ix-echo --client 1.2.3.4:5 --close fin",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["ix-echo 1473 --udp", "ix-echo 7 --udp", "ix-echo bulk --udp"] {
            assert!(parse(wrong).unwrap().check().is_err(), "{wrong}");
        }
    }
}
