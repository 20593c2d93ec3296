//! The memif control socket of a server, against a client that sends anything.
use crate::bytes::Bytes;
use ix_netdev::{Utterance, memif_conversation};

/// Messages of one conversation.
const MESSAGES_MAX: usize = 16;

/// A conversation; afterwards a good client gets a link.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mut talk = Vec::new();
    while !bytes.is_empty() && talk.len() < MESSAGES_MAX {
        let message = usize::from(bytes.u8() % 5);
        let descriptor = bytes.u8() % 6;
        let changes = bytes.u8() % 4;
        let damage = (0..changes).map(|_| (usize::from(bytes.u8()), bytes.u8())).collect();
        talk.push(Utterance { message, damage, descriptor });
    }
    memif_conversation(&talk);
}
