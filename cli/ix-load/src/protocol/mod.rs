//! Protocols as pure functions of bytes: what to ask, how it is written, whether the answer is
//! right.
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

/// One request: small enough to be kept for each one under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The record, or the place in the stream of bytes.
    pub record: u32,
    /// Version to be stored; 0: read.
    pub version: u32,
    /// Its number on the connection, which a datagram carries.
    pub id: u32,
}

/// How far the answer at the front of a connection was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    /// 0: nothing yet; else the protocol's own.
    pub stage: u8,
    /// Bytes still to come, or come so far.
    pub bytes: u32,
    /// What the head of the answer said.
    pub word: u32,
}

/// What a good answer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was asked for.
    Done,
    /// There is no such record.
    Miss,
    /// There is, and here it is.
    Hit,
}

/// A step through the bytes of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes were read, the rest is to be shown again with more behind it.
    More(usize),
    /// The answer ends after so many bytes.
    Done(usize, Outcome),
    /// It is no answer to the request.
    Wrong(Fault, String),
}

/// A protocol and its workload, one value a thread.
pub trait Protocol {
    /// The next request; `None`: there are no more.
    fn next(&mut self) -> Option<Ask>;

    /// Appends the request's bytes.
    fn encode(&mut self, ask: &Ask, out: &mut Vec<u8>);

    /// Reads on in the answer to `ask`. `data` is never empty.
    fn decode(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Step;

    /// Appends the request as one datagram.
    fn encode_datagram(&mut self, ask: &Ask, out: &mut Vec<u8>);

    /// Reads the whole answer to a datagram; [`Step::More`]: it is too short.
    fn decode_datagram(&mut self, ask: &Ask, data: &[u8]) -> Step {
        self.decode(ask, &mut Partial::default(), data)
    }

    /// Takes a datagram apart; `None`: it is none of this protocol.
    fn datagram<'a>(&self, data: &'a [u8]) -> Option<Datagram<'a>>;
}

/// A datagram of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The request's number, as far as the datagram has room for it.
    pub id: u32,
    /// Bits of the number that the datagram carries.
    pub id_mask: u32,
    /// Which of how many datagrams this is.
    pub part: u16,
    /// How many the answer has.
    pub parts: u16,
    /// Bytes of the answer.
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

/// What an answer began with, for a message.
fn excerpt(data: &[u8]) -> String {
    let text: String =
        data.iter().take(40).flat_map(|b| b.escape_ascii()).map(char::from).collect();
    format!("\"{text}\"")
}
