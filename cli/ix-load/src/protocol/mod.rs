//! Protocols as pure functions of bytes: which request is next, its encoding, and whether its reply
//! is right.
mod ascii;
mod binary;
mod echo;
mod http;
mod workload;

use crate::fault::Fault;

pub use ascii::Ascii;
pub use binary::Binary;
pub use echo::Echo;
pub use http::Http;
pub use workload::{Popularity, Workload};

/// One request: small enough to be kept while it is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The record, or the offset in the stream of bytes.
    pub record: u32,
    /// Version to be stored; 0: read.
    pub version: u32,
    /// Its number on the connection, which a datagram carries.
    pub id: u32,
}

/// How far the reply at the front of a connection was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    /// 0: nothing yet; other values are the protocol's own.
    pub stage: u8,
    /// Bytes still to come, or come so far.
    pub bytes: u32,
    /// What the head of the reply said.
    pub word: u32,
}

/// Outcome of a correct reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reply that was expected.
    Done,
    /// The server has no such record.
    Miss,
    /// The server returned the record.
    Hit,
}

/// A step through the bytes of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This many bytes were read; the rest must be passed again with more after it.
    More(usize),
    /// The reply ends after this many bytes.
    Done(usize, Outcome),
    /// This is not a reply to the request.
    Wrong(Fault, String),
}

/// A protocol and its workload; each thread has one.
pub trait Protocol {
    /// The next request; `None`: there are no more.
    fn next(&mut self) -> Option<Ask>;

    /// Appends the request's bytes.
    fn encode(&mut self, ask: &Ask, out: &mut Vec<u8>);

    /// Reads on in the reply to `ask`. `data` is never empty.
    fn decode(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Step;

    /// Appends the request as one datagram.
    fn encode_datagram(&mut self, ask: &Ask, out: &mut Vec<u8>);

    /// Reads the whole reply to a datagram; [`Step::More`]: it is too short.
    fn decode_datagram(&mut self, ask: &Ask, data: &[u8]) -> Step {
        self.decode(ask, &mut Partial::default(), data)
    }

    /// Parses a datagram; `None`: it does not belong to this protocol.
    fn datagram<'a>(&self, data: &'a [u8]) -> Option<Datagram<'a>>;
}

/// A datagram of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The request's number, as far as the datagram has room for it.
    pub id: u32,
    /// Bits of the number that the datagram carries.
    pub id_mask: u32,
    /// Number of this datagram in the reply.
    pub part: u16,
    /// Number of datagrams in the reply.
    pub parts: u16,
    /// Bytes of the reply.
    pub payload: &'a [u8],
}

/// Frame of memcached over UDP: number of the request, part, parts, reserved.
pub(crate) const UDP_FRAME_BYTES: usize = 8;

fn put_udp_frame(id: u32, out: &mut Vec<u8>) {
    let [low, high, ..] = id.to_le_bytes();
    out.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
}

fn udp_frame(data: &[u8]) -> Option<Datagram<'_>> {
    let (frame, payload) = data.split_at_checked(UDP_FRAME_BYTES)?;
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (part, parts) = (word(2), word(4));
    let fine = parts > 0 && part < parts && !payload.is_empty();
    fine.then_some(Datagram { id: word(0).into(), id_mask: 0xffff, part, parts, payload })
}

/// The beginning of a reply, for a message.
fn excerpt(data: &[u8]) -> String {
    let text: String =
        data.iter().take(40).flat_map(|b| b.escape_ascii()).map(char::from).collect();
    format!("\"{text}\"")
}
