//! The file format: pcapng (draft-ietf-opsawg-pcapng), as much of it as captures need.
use std::io::{self, Write};

/// Ethernet, among link types.
const LINKTYPE_ETHERNET: u16 = 1;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// A packet as the file has it.
pub struct Entry<'a> {
    /// Number of the interface.
    pub interface: u32,
    /// Since 1970, µs.
    pub time_us: u64,
    /// Bytes of the whole packet.
    pub len: u32,
    /// The first of them.
    pub bytes: &'a [u8],
    /// Sent; else received.
    pub sent: bool,
    /// The queue of the interface: the elastic thread.
    pub queue: u32,
    /// What there is to say of it.
    pub comments: &'a [String],
}

/// Writes a block.
fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<u64> {
    let len = body.len() as u32 + 12;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(body)?;
    out.write_all(&len.to_le_bytes())?;
    Ok(u64::from(len))
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    // Longer ones there are none: comments are short.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    padded(body, value);
}

fn padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn end_of_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

/// The beginning of a file: who wrote it, and the interfaces. Returns how many bytes it has.
pub fn begin(out: &mut impl Write, interfaces: &[String], snaplen: u32) -> io::Result<u64> {
    let mut body = BYTE_ORDER.to_le_bytes().to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend(u64::MAX.to_le_bytes());
    option(&mut body, 4, concat!("ix ", env!("CARGO_PKG_VERSION")).as_bytes());
    end_of_options(&mut body);
    let mut written = block(out, SECTION, &body)?;
    for name in interfaces {
        let mut body = LINKTYPE_ETHERNET.to_le_bytes().to_vec();
        body.extend([0, 0]);
        body.extend(snaplen.to_le_bytes());
        option(&mut body, 2, name.as_bytes());
        // Times are in millionths of a second.
        option(&mut body, 9, &[6]);
        end_of_options(&mut body);
        written += block(out, INTERFACE, &body)?;
    }
    Ok(written)
}

/// A packet.
pub fn packet(out: &mut impl Write, entry: &Entry<'_>) -> io::Result<u64> {
    let mut body = Vec::with_capacity(entry.bytes.len() + 100);
    body.extend(entry.interface.to_le_bytes());
    body.extend(((entry.time_us >> 32) as u32).to_le_bytes());
    body.extend((entry.time_us as u32).to_le_bytes());
    body.extend((entry.bytes.len() as u32).to_le_bytes());
    body.extend(entry.len.to_le_bytes());
    padded(&mut body, entry.bytes);
    entry.comments.iter().for_each(|comment| option(&mut body, 1, comment.as_bytes()));
    option(&mut body, 2, &(if entry.sent { 2u32 } else { 1 }).to_le_bytes());
    option(&mut body, 6, &entry.queue.to_le_bytes());
    end_of_options(&mut body);
    block(out, PACKET, &body)
}

/// The end of a file: packets that were taken and that were lost, of all interfaces together.
pub fn end(out: &mut impl Write, time_us: u64, taken: u64, lost: u64) -> io::Result<u64> {
    let mut body = 0u32.to_le_bytes().to_vec();
    body.extend(((time_us >> 32) as u32).to_le_bytes());
    body.extend((time_us as u32).to_le_bytes());
    option(&mut body, 4, &(taken + lost).to_le_bytes());
    option(&mut body, 5, &lost.to_le_bytes());
    end_of_options(&mut body);
    block(out, STATISTICS, &body)
}
