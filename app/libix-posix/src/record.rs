//! What a socket is, in words that another process of the program can read.
use crate::holders::Record;
use crate::socket::{Kind, Socket};
use crate::stream::{Phase, Stream};
use std::net::{IpAddr, SocketAddr};

/// Bits of the first word, above the kind.
const IPV6: u64 = 1 << 8;
const NONBLOCKING: u64 = 1 << 9;
const IX: u64 = 1 << 10;
const BOTH: u64 = 1 << 11;
const READ_SHUT: u64 = 1 << 12;
const NO_DELAY: u64 = 1 << 13;
const KEEPALIVE: u64 = 1 << 14;
const REUSE_ADDRESS: u64 = 1 << 15;
const REUSE_PORT: u64 = 1 << 16;
const V6_ONLY: u64 = 1 << 17;

/// Marks an address that is there.
const IS_THERE: u64 = 1 << 32;
/// Words of an address.
const ADDRESS: usize = 3;

/// The kinds, in the first word.
const STREAM: u64 = 1;
const LISTENER: u64 = 2;
const DATAGRAMS: u64 = 3;
const IDLE_STREAM: u64 = 4;
const IDLE_DATAGRAMS: u64 = 5;

/// What a socket that has come from another process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A connection to this peer.
    Stream(SocketAddr),
    /// A listener with this backlog, which Linux has as well or not.
    Listener { backlog: usize, both: bool },
    /// A UDP socket, with its only peer if it is connected; Linux has it as well or not.
    Datagrams { peer: Option<SocketAddr>, both: bool },
    /// Undecided.
    Idle { stream: bool, ix: bool, both: bool },
}

fn put(words: &mut [u64], at: Option<SocketAddr>) {
    let Some(at) = at else { return };
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    words[0] = (ip >> 64) as u64;
    words[1] = ip as u64;
    words[2] = u64::from(at.port()) | IS_THERE;
}

fn get(words: &[u64]) -> Option<SocketAddr> {
    let ip = u128::from(words[0]) << 64 | u128::from(words[1]);
    let ip = std::net::Ipv6Addr::from_bits(ip).to_canonical();
    (words[2] & IS_THERE != 0).then(|| SocketAddr::new(ip, words[2] as u16))
}

fn bit(is: bool, bit: u64) -> u64 {
    if is { bit } else { 0 }
}

/// The record of a socket; `None` for one that another process cannot have.
pub fn of(socket: &Socket) -> Option<Record> {
    let mut record: Record = Default::default();
    let (mut peer, mut local, mut bits) = (None, None, 0);
    let kind = match &socket.kind {
        Kind::Linux | Kind::Lost => return None,
        Kind::Stream(stream) => {
            if !stream.may_go() {
                return None;
            }
            (peer, local) = (Some(stream.peer), stream.local);
            bits |= bit(stream.read_shut, READ_SHUT);
            STREAM
        }
        Kind::Listener(listener) => {
            bits |= bit(listener.both, BOTH);
            record[10] = listener.backlog as u64;
            LISTENER
        }
        Kind::Datagrams(udp) => {
            peer = udp.peer;
            bits |= bit(udp.both, BOTH);
            DATAGRAMS
        }
        Kind::Idle { stream, ix, both } => {
            bits |= bit(*ix, IX) | bit(*both, BOTH);
            if *stream { IDLE_STREAM } else { IDLE_DATAGRAMS }
        }
    };
    let options = &socket.options;
    bits |= bit(socket.ipv6, IPV6) | bit(socket.nonblocking, NONBLOCKING);
    bits |= bit(options.no_delay, NO_DELAY) | bit(options.keepalive, KEEPALIVE);
    bits |= bit(options.reuse_address, REUSE_ADDRESS) | bit(options.reuse_port, REUSE_PORT);
    bits |= bit(options.v6_only, V6_ONLY);
    record[0] = kind | bits;
    for (n, at) in [socket.bound, peer, local].into_iter().enumerate() {
        put(&mut record[1 + n * ADDRESS..][..ADDRESS], at);
    }
    Some(record)
}

/// The socket of a record, and what it is. A stream is made whole; other kinds are undecided until
/// their ports are open.
pub fn read(record: &Record, at: u32) -> Option<(Socket, What)> {
    let has = |bit: u64| record[0] & bit != 0;
    let address = |n: usize| get(&record[1 + n * ADDRESS..][..ADDRESS]);
    let (bound, peer, local) = (address(0), address(1), address(2));
    let (ix, both) = (has(IX), has(BOTH));
    let idle = |stream| Kind::Idle { stream, ix, both };
    let (kind, what) = match record[0] & 0xff {
        STREAM => {
            let mut stream = Stream::new(Phase::Away, 0, peer?, local);
            (stream.shared, stream.read_shut) = (Some(at), has(READ_SHUT));
            (stream.was_open, stream.announced) = (true, true);
            (Kind::Stream(Box::new(stream)), What::Stream(peer?))
        }
        LISTENER => (idle(true), What::Listener { backlog: record[10] as usize, both }),
        DATAGRAMS => (idle(false), What::Datagrams { peer, both }),
        IDLE_STREAM => (idle(true), What::Idle { stream: true, ix, both }),
        IDLE_DATAGRAMS => (idle(false), What::Idle { stream: false, ix, both }),
        _ => return None,
    };
    let mut socket = Socket::new(kind, has(IPV6), has(NONBLOCKING));
    (socket.bound, socket.alone) = (bound, false);
    let options = &mut socket.options;
    (options.no_delay, options.keepalive) = (has(NO_DELAY), has(KEEPALIVE));
    (options.reuse_address, options.reuse_port) = (has(REUSE_ADDRESS), has(REUSE_PORT));
    options.v6_only = has(V6_ONLY);
    Some((socket, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let mut stream = Stream::new(Phase::Open, 7, at("10.0.0.9:4000"), Some(at("10.0.0.2:80")));
        stream.read_shut = true;
        let mut socket = Socket::new(Kind::Stream(Box::new(stream)), true, true);
        (socket.options.no_delay, socket.options.reuse_port) = (true, true);
        let (back, what) = read(&of(&socket).expect("it goes"), 5).expect("it is one");
        assert_eq!(what, What::Stream(at("10.0.0.9:4000")));
        assert!(back.ipv6 && back.nonblocking && back.options.no_delay && back.options.reuse_port);
        assert!(!back.options.keepalive && !back.alone);
        let Kind::Stream(stream) = back.kind else { panic!("no stream") };
        assert_eq!((stream.shared, stream.read_shut, stream.phase), (Some(5), true, Phase::Away));
        assert_eq!(stream.local, Some(at("10.0.0.2:80")));
        let idle = Kind::Idle { stream: true, ix: true, both: false };
        let mut socket = Socket::new(idle, false, false);
        socket.bound = Some(at("[2001:db8::1]:53"));
        let (back, what) = read(&of(&socket).expect("it goes"), 0).expect("it is one");
        assert_eq!(what, What::Idle { stream: true, ix: true, both: false });
        assert_eq!(back.bound, socket.bound);
        assert!(of(&Socket::new(Kind::Linux, false, false)).is_none());
        assert!(read(&[0; crate::holders::RECORD_WORDS], 0).is_none());
    }
}
