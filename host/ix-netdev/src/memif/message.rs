//! The messages of the control socket, version 2.0: a type and a packed body, padded to 128 bytes,
//! in the byte order of the machine. Reading is total: any bytes are a message or an error.
use super::spec::SECRET_BYTES;
use std::fmt;

/// The protocol's version, `major << 8 | minor`.
pub const VERSION: u16 = 2 << 8;
/// Every message has this many bytes.
pub const MESSAGE_BYTES: usize = 128;
const NAME_BYTES: usize = 32;
const REASON_BYTES: usize = 96;
/// Packets are Ethernet frames.
pub const MODE_ETHERNET: u8 = 0;
const RING_TO_SERVER: u16 = 1;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The client's last message is accepted.
    Ack,
    /// The server's greeting.
    Hello(Hello),
    /// The client asks for an interface.
    Init(Init),
    /// The client offers memory; its descriptor comes with the message.
    AddRegion(AddRegion),
    /// The client offers a ring; the eventfd of its reader comes with the message.
    AddRing(AddRing),
    /// The client has sent everything.
    Connect(String),
    /// The server has accepted everything: packets may flow.
    Connected(String),
    /// The end, with a reason in words.
    Disconnect(String),
}

/// See [`Message::Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The program's name.
    pub name: String,
    /// Lowest version that it speaks.
    pub min_version: u16,
    /// Highest version that it speaks.
    pub max_version: u16,
    /// Highest number of a region.
    pub max_region: u16,
    /// Highest number of a ring from server to client.
    pub max_m2s_ring: u16,
    /// Highest number of a ring from client to server.
    pub max_s2m_ring: u16,
    /// Binary logarithm of the largest ring.
    pub max_log2_ring_size: u8,
}

/// See [`Message::Init`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// The version that the client chose.
    pub version: u16,
    /// The interface's number.
    pub id: u32,
    /// [`MODE_ETHERNET`].
    pub mode: u8,
    /// The shared secret.
    pub secret: [u8; SECRET_BYTES],
    /// The program's name.
    pub name: String,
}

/// See [`Message::AddRegion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRegion {
    /// Its number.
    pub index: u16,
    /// Its size.
    pub bytes: u64,
}

/// See [`Message::AddRing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRing {
    /// Packets go from client to server.
    pub to_server: bool,
    /// Its number among those of its direction.
    pub index: u16,
    /// The region that contains it.
    pub region: u16,
    /// Offset of its header there.
    pub offset: u32,
    /// Binary logarithm of its number of descriptors.
    pub log2_size: u8,
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// Not [`MESSAGE_BYTES`] long.
    Length(usize),
    /// Of no known type.
    Type(u16),
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Length(n) => write!(f, "a message has {n} bytes, not {MESSAGE_BYTES}"),
            MessageError::Type(n) => write!(f, "a message has the unknown type {n}"),
        }
    }
}

impl Message {
    /// Name of the message's type, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Ack => "ACK",
            Message::Hello(_) => "HELLO",
            Message::Init(_) => "INIT",
            Message::AddRegion(_) => "ADD_REGION",
            Message::AddRing(_) => "ADD_RING",
            Message::Connect(_) => "CONNECT",
            Message::Connected(_) => "CONNECTED",
            Message::Disconnect(_) => "DISCONNECT",
        }
    }

    /// The bytes on the wire. Names that are too long are cut.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut w = Writer { bytes: [0; MESSAGE_BYTES], at: 0 };
        match self {
            Message::Ack => w.u16(1),
            Message::Hello(m) => {
                w.u16(2);
                w.text(&m.name, NAME_BYTES);
                for word in
                    [m.min_version, m.max_version, m.max_region, m.max_m2s_ring, m.max_s2m_ring]
                {
                    w.u16(word);
                }
                w.put(&[m.max_log2_ring_size]);
            }
            Message::Init(m) => {
                w.u16(3);
                w.u16(m.version);
                w.u32(m.id);
                w.put(&[m.mode]);
                w.put(&m.secret);
                w.text(&m.name, NAME_BYTES);
            }
            Message::AddRegion(m) => {
                w.u16(4);
                w.u16(m.index);
                w.put(&m.bytes.to_ne_bytes());
            }
            Message::AddRing(m) => {
                w.u16(5);
                w.u16(if m.to_server { RING_TO_SERVER } else { 0 });
                w.u16(m.index);
                w.u16(m.region);
                w.u32(m.offset);
                w.put(&[m.log2_size]);
            }
            Message::Connect(name) => {
                w.u16(6);
                w.text(name, NAME_BYTES);
            }
            Message::Connected(name) => {
                w.u16(7);
                w.text(name, NAME_BYTES);
            }
            Message::Disconnect(reason) => {
                w.u16(8);
                w.u32(0);
                w.text(reason, REASON_BYTES);
            }
        }
        w.bytes
    }

    /// Parses a message of the peer.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        let bytes: &[u8; MESSAGE_BYTES] =
            bytes.try_into().map_err(|_| MessageError::Length(bytes.len()))?;
        let mut r = Reader { bytes, at: 0 };
        Ok(match r.u16() {
            1 => Message::Ack,
            2 => Message::Hello(Hello {
                name: r.text(NAME_BYTES),
                min_version: r.u16(),
                max_version: r.u16(),
                max_region: r.u16(),
                max_m2s_ring: r.u16(),
                max_s2m_ring: r.u16(),
                max_log2_ring_size: r.take::<1>()[0],
            }),
            3 => Message::Init(Init {
                version: r.u16(),
                id: r.u32(),
                mode: r.take::<1>()[0],
                secret: r.take(),
                name: r.text(NAME_BYTES),
            }),
            4 => Message::AddRegion(AddRegion {
                index: r.u16(),
                bytes: u64::from_ne_bytes(r.take()),
            }),
            5 => Message::AddRing(AddRing {
                to_server: r.u16() & RING_TO_SERVER != 0,
                index: r.u16(),
                region: r.u16(),
                offset: r.u32(),
                log2_size: r.take::<1>()[0],
            }),
            6 => Message::Connect(r.text(NAME_BYTES)),
            7 => Message::Connected(r.text(NAME_BYTES)),
            8 => {
                r.u32();
                Message::Disconnect(r.text(REASON_BYTES))
            }
            other => return Err(MessageError::Type(other)),
        })
    }
}

struct Writer {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    /// Text in a field of `room` bytes, of which the last stays zero.
    fn text(&mut self, text: &str, room: usize) {
        let (start, n) = (self.at, text.len().min(room - 1));
        self.put(&text.as_bytes()[..n]);
        self.at = start + room;
    }
}

/// The bodies are shorter than the message, so reading cannot run out of bytes.
struct Reader<'a> {
    bytes: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        value.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        value
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// Text up to the first zero byte; characters that are not printable become `?`.
    fn text(&mut self, room: usize) -> String {
        let field = &self.bytes[self.at..self.at + room];
        self.at += room;
        let printable = |b: &u8| if matches!(b, b' '..=b'~') { char::from(*b) } else { '?' };
        field.iter().take_while(|b| **b != 0).map(printable).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = Message> {
        let name = "[ -~]{0,31}";
        prop_oneof![
            Just(Message::Ack),
            (name, any::<[u16; 5]>(), any::<u8>()).prop_map(|(name, w, max_log2_ring_size)| {
                Message::Hello(Hello {
                    name,
                    min_version: w[0],
                    max_version: w[1],
                    max_region: w[2],
                    max_m2s_ring: w[3],
                    max_s2m_ring: w[4],
                    max_log2_ring_size,
                })
            }),
            (any::<(u16, u32, u8, [u8; 24])>(), name).prop_map(
                |((version, id, mode, secret), name)| {
                    Message::Init(Init { version, id, mode, secret, name })
                }
            ),
            any::<(u16, u64)>()
                .prop_map(|(index, bytes)| Message::AddRegion(AddRegion { index, bytes })),
            any::<(bool, u16, u16, u32, u8)>().prop_map(
                |(to_server, index, region, offset, log2_size)| Message::AddRing(AddRing {
                    to_server,
                    index,
                    region,
                    offset,
                    log2_size
                })
            ),
            name.prop_map(Message::Connect),
            name.prop_map(Message::Connected),
            "[ -~]{0,95}".prop_map(Message::Disconnect),
        ]
    }

    proptest! {
        #[test]
        fn survives_the_journey(message in any_message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let answer = Message::decode(&bytes);
            if bytes.len() != MESSAGE_BYTES {
                prop_assert_eq!(answer, Err(MessageError::Length(bytes.len())));
            }
        }
    }

    /// Offsets of the fields in the packed structures of the protocol's other implementations.
    #[test]
    fn stands_where_others_look() {
        let secret = *b"secretsecretsecretsecret";
        let init = Init { version: VERSION, id: 0x01020304, mode: 5, secret, name: "nm".into() };
        let bytes = Message::Init(init).encode();
        assert_eq!(bytes[..9], [3, 0, 0, 2, 4, 3, 2, 1, 5]);
        assert_eq!((&bytes[9..33], &bytes[33..36]), (&secret[..], &b"nm\0"[..]));
        let ring =
            AddRing { to_server: true, index: 2, region: 3, offset: 0x0405_0607, log2_size: 9 };
        let bytes = Message::AddRing(ring).encode();
        assert_eq!(bytes[..15], [5, 0, 1, 0, 2, 0, 3, 0, 7, 6, 5, 4, 9, 0, 0]);
        let region = Message::AddRegion(AddRegion { index: 1, bytes: 2 }).encode();
        assert_eq!(region[..12], [4, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let bye = Message::Disconnect("x".into()).encode();
        assert_eq!(bye[..8], [8, 0, 0, 0, 0, 0, b'x', 0]);
        let hello = Message::Hello(Hello {
            name: "h".repeat(40),
            min_version: 1,
            max_version: 2,
            max_region: 3,
            max_m2s_ring: 4,
            max_s2m_ring: 5,
            max_log2_ring_size: 6,
        });
        assert_eq!(hello.encode()[32..46], [b'h', 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
    }
}
