//! What the independent tests share: buffers that notice being lost, an endpoint whose every
//! segment is audited, a lossy link in virtual time, and peers in each state.
//!
//! Written from the RFCs; nothing here knows how the core does its work.
#![forbid(unsafe_code)]

pub mod audit;
pub mod endpoint;
pub mod lab;
pub mod link;
pub mod model_peer;

pub use ix_random::Rng;
use ix_tcp::RxBuf;
use ix_wire::{FlowTuple, IpAddr, Seq, TcpHeader};
use std::cell::Cell;
use std::rc::Rc;

pub use audit::Audit;
pub use endpoint::{Endpoint, Surroundings};
pub use lab::Lab;
pub use link::{LinkModel, Network, Node};

/// One segment on the wire.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The header.
    pub hdr: TcpHeader,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Sequence numbers it takes.
    pub fn seq_len(&self) -> u32 {
        use ix_wire::TcpFlags;
        self.payload.len() as u32
            + u32::from(self.hdr.flags.contains(TcpFlags::SYN))
            + u32::from(self.hdr.flags.contains(TcpFlags::FIN))
    }

    /// One past its last sequence number.
    pub fn end(&self) -> Seq {
        self.hdr.seq + self.seq_len()
    }
}

/// The byte that stands at `seq` in every stream of `seed`: its receiver can check it.
pub fn byte_at(seed: u32, seq: Seq) -> u8 {
    let mixed = (seq.0 ^ seed).wrapping_mul(0x9E37_79B1);
    (mixed >> 24) as u8 ^ (mixed >> 11) as u8
}

/// `len` bytes of the stream of `seed` from `seq` on.
pub fn bytes_at(seed: u32, seq: Seq, len: usize) -> Vec<u8> {
    (0..len as u32).map(|offset| byte_at(seed, seq + offset)).collect()
}

/// Where every buffer went.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Buffers that were made.
    pub given: Cell<u64>,
    /// Buffers that came back.
    pub returned: Cell<u64>,
    /// Dropped inside the stack: a leak in a dataplane.
    pub lost: Cell<u64>,
}

/// A received buffer.
#[derive(Debug)]
pub struct Buf {
    bytes: Vec<u8>,
    start: usize,
    returned: bool,
    ledger: Rc<Ledger>,
}

impl Buf {
    /// A buffer with these bytes, noted in the ledger.
    pub fn new(ledger: &Rc<Ledger>, bytes: Vec<u8>) -> Buf {
        ledger.given.set(ledger.given.get() + 1);
        Buf { bytes, start: 0, returned: false, ledger: Rc::clone(ledger) }
    }

    /// The bytes that are left of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Adds bytes at its end.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Comes back to its owner.
    pub fn give_back(mut self) {
        self.returned = true;
        self.ledger.returned.set(self.ledger.returned.get() + 1);
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if !self.returned {
            self.ledger.lost.set(self.ledger.lost.get() + 1);
        }
    }
}

impl RxBuf for Buf {
    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn trim_front(&mut self, n: usize) {
        assert!(n <= self.len(), "trimmed {n} of {} bytes", self.len());
        self.start += n;
    }

    fn truncate(&mut self, n: usize) {
        assert!(n <= self.len(), "truncated {} bytes to {n}", self.len());
        self.bytes.truncate(self.start + n);
    }
}

/// The tuple as seen by the endpoint under test.
pub fn tuple() -> FlowTuple {
    FlowTuple {
        local: IpAddr::v4([10, 0, 0, 1]),
        remote: IpAddr::v4([10, 0, 0, 2]),
        local_port: 7,
        remote_port: 40_000,
    }
}

/// The same tuple as seen by the other side.
pub fn reversed(tuple: &FlowTuple) -> FlowTuple {
    FlowTuple {
        local: tuple.remote,
        remote: tuple.local,
        local_port: tuple.remote_port,
        remote_port: tuple.local_port,
    }
}
