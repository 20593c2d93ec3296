//! The command line.
use crate::udp::Steps;
use clap::Parser;
use ix_programs::cpu::Cpus;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// A memcached-compatible server, on IX and on Linux sockets.
///
/// Under `ix run` it uses the dataplane; with --linux, sockets and epoll. Options have memcached's
/// names, if memcached has them.
#[derive(Parser, Debug, Clone)]
#[command(
    version,
    after_help = "\
Examples:
  ix run --nic afxdp:veth1 --addr 10.0.0.2/24 --cpus 1 ix-kv -m 1024
  ix-kv --linux -t 2 --cpus 0,1
  ix-kv --linux -p 11311 -U 11311 -l 127.0.0.1 -m 64 -M"
)]
pub struct Args {
    /// TCP port to listen on; 0: none
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 11211)]
    pub port: u16,
    /// UDP port to listen on; 0: none
    #[arg(short = 'U', long, value_name = "PORT", default_value_t = 0)]
    pub udp_port: u16,
    /// Address to listen on
    #[arg(short = 'l', long, value_name = "ADDR",
          default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub listen: IpAddr,
    /// Number of threads (default: one for each elastic thread; on Linux one)
    #[arg(short = 't', long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Most connections, all threads together
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1024)]
    pub conn_limit: u32,
    /// Memory for items, MB
    #[arg(short = 'm', long, value_name = "MB", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=16384))]
    pub memory_limit: u64,
    /// Refuse new items when memory is full, instead of evicting old ones
    #[arg(short = 'M', long)]
    pub disable_evictions: bool,
    /// Largest item with its key and header, bytes; k and m are units
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m")]
    pub max_item_size: Size,
    /// Growth factor of chunk sizes
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 1.25, value_parser = factor)]
    pub slab_growth_factor: f64,
    /// On IX: which part of a datagram's path is zero-copy, for benchmarks
    #[arg(long, value_name = "STEPS", value_enum, default_value = "both", hide = true)]
    pub udp_steps: Steps,
    /// Use Linux sockets and epoll
    #[arg(long)]
    pub linux: bool,
    /// On Linux: poll, and never sleep in epoll_wait
    #[arg(long, requires = "linux")]
    pub spin: bool,
    /// On Linux: hardware threads to pin to, such as 0,2-3; threads take them in turn
    #[arg(long, value_name = "LIST", value_parser = Cpus::from_str, requires = "linux")]
    pub cpus: Option<Cpus>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Size, String> {
        let (number, unit) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
            _ => (text, 1),
        };
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
            Some(bytes) if (1 << 10..=1 << 30).contains(&bytes) => Ok(Size(bytes)),
            _ => Err("not a size from 1k to 1024m".into()),
        }
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (1.01..=4.0).contains(&value) => Ok(value),
        _ => Err("not a factor from 1.01 to 4".into()),
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
        let args = parse("ix-kv -p 5 -U 6 -l 127.0.0.1 -t 2 -c 9 -m 7 -M -I 2m --linux").unwrap();
        assert_eq!((args.port, args.udp_port, args.memory_limit), (5, 6, 7));
        assert_eq!((args.max_item_size, args.disable_evictions), (Size(2 << 20), true));
        for wrong in [
            "ix-kv -p 70000",
            "ix-kv -m 0",
            "ix-kv -t 0",
            "ix-kv -I 1",
            "ix-kv -I 2g",
            "ix-kv -f 1",
            "ix-kv --spin",
            "ix-kv x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
