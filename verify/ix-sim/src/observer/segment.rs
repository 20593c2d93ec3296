//! A TCP segment as the observer parses it, without the code that it observes.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// FIN.
pub const FIN: u8 = 1;
/// SYN.
pub const SYN: u8 = 2;
/// RST.
pub const RST: u8 = 4;
/// ACK.
pub const ACK: u8 = 16;

/// One end of a connection.
pub type End = (IpAddr, u16);

/// A segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Sender.
    pub from: Option<End>,
    /// Receiver.
    pub to: Option<End>,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// The window field.
    pub window: u16,
    /// The maximum segment size option.
    pub mss: Option<u16>,
    /// The window scale option.
    pub shift: Option<u8>,
    /// The timestamps option: TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks.
    pub sack: Vec<(u32, u32)>,
    /// Its data.
    pub payload: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The ones' complement sum (RFC 1071) of whole 16-bit words.
fn sum(bytes: &[u8]) -> u32 {
    let words =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)));
    let sum: u64 = words.map(u64::from).sum();
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    folded as u32
}

impl<'a> Segment<'a> {
    /// Parses a frame. `None`: it carries no TCP. An error: it carries TCP and is damaged.
    pub fn read(frame: &'a [u8]) -> Option<Result<Segment<'a>, &'static str>> {
        if frame.len() < 34 {
            return None;
        }
        match (u16_at(frame, 12), frame[23], frame[20]) {
            (0x0800, 6, _) => Some(Segment::read_v4(&frame[14..])),
            (0x86dd, _, 6) if frame.len() >= 54 => Some(Segment::read_v6(&frame[14..])),
            _ => None,
        }
    }

    /// Whether it came over IPv6.
    pub fn is_v6(&self) -> bool {
        self.from.is_some_and(|(address, _)| address.is_ipv6())
    }

    fn read_v4(packet: &'a [u8]) -> Result<Segment<'a>, &'static str> {
        let head = usize::from(packet[0] & 15) * 4;
        let total = usize::from(u16_at(packet, 2));
        if packet[0] >> 4 != 4 || head < 20 || total > packet.len() || total < head + 20 {
            return Err("IPv4 lengths");
        }
        if sum(&packet[..head]) != 0xffff {
            return Err("IPv4 checksum");
        }
        let address = |at: usize| Ipv4Addr::from(u32_at(packet, at)).into();
        let pseudo = sum(&packet[12..20]);
        Segment::read_tcp([address(12), address(16)], pseudo, &packet[head..total])
    }

    /// No extension headers: the dataplane sends TCP without.
    fn read_v6(packet: &'a [u8]) -> Result<Segment<'a>, &'static str> {
        let total = 40 + usize::from(u16_at(packet, 4));
        if packet[0] >> 4 != 6 || total > packet.len() || total < 60 {
            return Err("IPv6 lengths");
        }
        let address = |at: usize| {
            let octets: [u8; 16] = std::array::from_fn(|n| packet[at + n]);
            Ipv6Addr::from(octets).into()
        };
        let pseudo = sum(&packet[8..40]);
        Segment::read_tcp([address(8), address(24)], pseudo, &packet[40..total])
    }

    /// `addresses`: of sender and receiver, whose sum is given too.
    fn read_tcp(addresses: [IpAddr; 2], sum_of: u32, tcp: &'a [u8]) -> Result<Self, &'static str> {
        let pseudo = sum_of + 6 + tcp.len() as u32;
        let mut whole = pseudo + sum(tcp);
        while whole > 0xffff {
            whole = (whole & 0xffff) + (whole >> 16);
        }
        if whole != 0xffff {
            return Err("TCP checksum");
        }
        let offset = usize::from(tcp[12] >> 4) * 4;
        if offset < 20 || offset > tcp.len() {
            return Err("data offset");
        }
        let [from, to] = addresses;
        let mut segment = Segment {
            from: Some((from, u16_at(tcp, 0))),
            to: Some((to, u16_at(tcp, 2))),
            seq: u32_at(tcp, 4),
            ack: u32_at(tcp, 8),
            flags: tcp[13],
            window: u16_at(tcp, 14),
            payload: &tcp[offset..],
            ..Segment::default()
        };
        segment.read_options(&tcp[20..offset])?;
        Ok(segment)
    }

    fn read_options(&mut self, mut options: &[u8]) -> Result<(), &'static str> {
        while let [kind, rest @ ..] = options {
            match kind {
                0 => return Ok(()),
                1 => options = rest,
                _ => {
                    let len = rest.first().map_or(0, |len| usize::from(*len));
                    if len < 2 || len > options.len() {
                        return Err("an option has a wrong length");
                    }
                    let body = &options[2..len];
                    match (kind, body.len()) {
                        (2, 2) => self.mss = Some(u16_at(body, 0)),
                        (3, 1) => self.shift = Some(body[0].min(14)),
                        (8, 8) => self.timestamps = Some((u32_at(body, 0), u32_at(body, 4))),
                        (5, n) if n % 8 == 0 => {
                            let block = |b: &[u8]| (u32_at(b, 0), u32_at(b, 4));
                            self.sack.extend(body.chunks(8).map(block));
                        }
                        _ => {}
                    }
                    options = &options[len..];
                }
            }
        }
        Ok(())
    }

    /// Whether these bits are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}
