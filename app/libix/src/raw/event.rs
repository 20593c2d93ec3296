//! Event conditions as a typed view of the event array.
use crate::addr;
use crate::error::{Dead, Error};
use ix_abi::{Cookie, DatagramNotes, EventSlot, Handle, IcmpMessage, Revoke, RxData, SentNews};
use std::net::{IpAddr, SocketAddr};

/// An event condition ([`ix_abi::event_kind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer finished its handshake with a listener.
    Knock {
        /// Cookie of the listener.
        listener: Cookie,
        /// The new flow, to be accepted or rejected.
        handle: Handle,
        /// The peer.
        peer: SocketAddr,
    },
    /// Outcome of `connect`.
    Connected {
        /// The flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// Connected, or why not.
        outcome: Result<(), Error>,
    },
    /// In-order data.
    Recv {
        /// The flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// The data.
        data: Received,
        /// What came with it about what was sent: as [`Event::Sent`], which does not come for it.
        news: SentNews,
    },
    /// The peer has closed its direction.
    Eof {
        /// The flow.
        cookie: Cookie,
    },
    /// Acknowledged data, or (`bytes` 0) a window that opened.
    Sent {
        /// The flow.
        cookie: Cookie,
        /// Bytes that were acknowledged.
        bytes: u32,
        /// Bytes that the window has room for.
        window: u64,
    },
    /// The flow has ended.
    Dead {
        /// The flow.
        cookie: Cookie,
        /// Why.
        reason: Dead,
    },
    /// A datagram.
    UdpRecv {
        /// The socket.
        cookie: Cookie,
        /// The data.
        data: Received,
        /// The sender.
        peer: SocketAddr,
        /// The address of ours that it was sent to.
        local: IpAddr,
        /// What else is told of it.
        notes: DatagramNotes,
    },
    /// A host reports that a datagram did not arrive (RFC 1122 section 4.1.3.3).
    UdpError {
        /// The socket.
        cookie: Cookie,
        /// Destination of the datagram.
        peer: SocketAddr,
        /// Why.
        why: Error,
        /// The ICMP message.
        said: Said,
        /// The quoted bytes of the datagram, to be given back like those of a received one.
        data: Option<Received>,
    },
    /// A host reports that a packet of a flow did not arrive (RFC 9293 section 3.8.3); the flow
    /// continues.
    FlowError {
        /// The flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// Why.
        why: Error,
        /// The ICMP message.
        said: Said,
    },
    /// The memory of a datagram is free again.
    UdpSent {
        /// Cookie of the call.
        cookie: Cookie,
    },
    /// A frame for a packet queue.
    PacketRecv {
        /// The packet queue.
        cookie: Cookie,
        /// The frame.
        data: Received,
    },
    /// The memory of a frame is free again.
    PacketSent {
        /// Cookie of the call.
        cookie: Cookie,
    },
    /// Another process of the program gives a connection to this one.
    Given {
        /// The number that it sent.
        token: Cookie,
        /// The flow, to be accepted or rejected.
        handle: Handle,
        /// The peer.
        peer: SocketAddr,
        /// Number of that process.
        from: u32,
        /// Bytes of the peer's stream before those that are announced next.
        returned: u64,
    },
    /// Another elastic thread has sent a number.
    Signal {
        /// Its index.
        from: u32,
        /// The number.
        value: u64,
    },
    /// A timer fired.
    Timer {
        /// Cookie of the timer.
        cookie: Cookie,
    },
    /// A flow group is about to move to another elastic thread. No more events come for its flows,
    /// and calls on them must be in the next batch at the latest ([`ix_abi::migrated::LEAVES`]).
    GroupLeaves {
        /// The flow group.
        group: u32,
        /// Its new elastic thread.
        to: u32,
    },
    /// A flow group came from another elastic thread, with its handles and cookies. The next batch
    /// may change the cookies before the next event ([`ix_abi::migrated::ARRIVED`]).
    GroupArrived {
        /// The flow group.
        group: u32,
        /// Its former elastic thread.
        from: u32,
    },
    /// This elastic thread is about to be parked: its flow groups leave after the next cycle, and
    /// then it sleeps.
    Revoked,
    /// This elastic thread was resumed.
    Restored,
    /// All flow groups have left this thread, as [`super::call::drain`] asked.
    Drained,
    /// An event of a later version: ignore it.
    Unknown,
}

/// An ICMP message about a packet that was sent (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// With [`Error::TooLong`] the MTU of the link, bytes with the IP header (0: unknown); with a
    /// "parameter problem" the octet at fault; else 0.
    pub detail: u16,
    /// The host that sent the message.
    pub by: IpAddr,
}

/// Received bytes, still in the dataplane's packet buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    base: u64,
    len: u32,
}

impl Received {
    /// Address; a scatter-gather entry may name it until the bytes are given back.
    pub fn base(self) -> u64 {
        self.base
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u32 {
        self.len
    }

    /// The bytes.
    ///
    /// # Safety
    /// They have not been given back by `recv_done` (`udp_recv_done`), nor has the flow been closed
    /// or aborted, nor has a cycle run since its `Dead`; and none of that happens during `'a`.
    #[inline]
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        let base = core::ptr::with_exposed_provenance::<u8>(self.base as usize);
        // SAFETY: a `RECV` event names that many readable bytes, which the dataplane leaves alone
        // until they are given back: not before the end of `'a` by the caller's promise.
        unsafe { core::slice::from_raw_parts(base, self.len as usize) }
    }

    /// Without the first `n` bytes.
    pub(crate) fn skip(self, n: u32) -> Received {
        debug_assert!(n <= self.len);
        Received { base: self.base + u64::from(n), len: self.len - n }
    }

    /// The first `n` bytes.
    pub(crate) fn take(self, n: u32) -> Received {
        debug_assert!(n <= self.len);
        Received { base: self.base, len: n }
    }
}

impl Event {
    /// The event of a slot, with addresses as programs know them.
    #[inline]
    pub(super) fn view(slot: &EventSlot) -> Event {
        let Ok(event) = ix_abi::Event::decode(slot) else { return Event::Unknown };
        match event {
            ix_abi::Event::Recv { cookie, handle, data, news } => {
                Event::Recv { cookie, handle, data: data.into(), news }
            }
            ix_abi::Event::Sent { cookie, bytes, window, .. } => {
                Event::Sent { cookie, bytes, window }
            }
            ix_abi::Event::Knock { listener, handle, peer } => {
                Event::Knock { listener, handle, peer: addr::socket_addr(peer) }
            }
            ix_abi::Event::Connected { cookie, handle, outcome } => {
                Event::Connected { cookie, handle, outcome }
            }
            ix_abi::Event::Eof { cookie, .. } => Event::Eof { cookie },
            ix_abi::Event::Dead { cookie, reason, .. } => {
                Event::Dead { cookie, reason: reason.into() }
            }
            ix_abi::Event::UdpRecv { cookie, peer, local, data, notes } => Event::UdpRecv {
                cookie,
                data: data.into(),
                peer: addr::socket_addr(peer),
                local: addr::from_abi(local),
                notes,
            },
            ix_abi::Event::UdpError { cookie, peer, why, icmp, quoted } => Event::UdpError {
                cookie,
                peer: addr::socket_addr(peer),
                why,
                said: icmp.into(),
                data: (quoted.len > 0).then(|| quoted.into()),
            },
            ix_abi::Event::FlowError { cookie, handle, why, icmp } => {
                Event::FlowError { cookie, handle, why, said: icmp.into() }
            }
            ix_abi::Event::UdpSent { cookie } => Event::UdpSent { cookie },
            ix_abi::Event::PacketRecv { cookie, data } => {
                Event::PacketRecv { cookie, data: data.into() }
            }
            ix_abi::Event::PacketSent { cookie } => Event::PacketSent { cookie },
            ix_abi::Event::Given { token, handle, peer, from, returned } => {
                Event::Given { token, handle, peer: addr::socket_addr(peer), from, returned }
            }
            ix_abi::Event::Signal { from, value } => Event::Signal { from, value },
            ix_abi::Event::Timer { cookie } => Event::Timer { cookie },
            ix_abi::Event::GroupLeaves { group, to } => Event::GroupLeaves { group, to },
            ix_abi::Event::GroupArrived { group, from } => Event::GroupArrived { group, from },
            ix_abi::Event::Revoke(Revoke::Goes) => Event::Revoked,
            ix_abi::Event::Revoke(Revoke::Back) => Event::Restored,
            ix_abi::Event::Revoke(Revoke::Drained) => Event::Drained,
        }
    }

    /// The name of a flow that the application has accepted or connected.
    pub(crate) fn flow_cookie_mut(&mut self) -> Option<&mut Cookie> {
        match self {
            Event::Connected { cookie, .. }
            | Event::Recv { cookie, .. }
            | Event::Eof { cookie }
            | Event::Sent { cookie, .. }
            | Event::FlowError { cookie, .. }
            | Event::Dead { cookie, .. } => Some(cookie),
            _ => None,
        }
    }
}

impl From<RxData> for Received {
    #[inline]
    fn from(data: RxData) -> Received {
        Received { base: data.addr, len: data.len }
    }
}

impl From<IcmpMessage> for Said {
    fn from(icmp: IcmpMessage) -> Said {
        Said { kind: icmp.kind, code: icmp.code, detail: icmp.detail, by: addr::from_abi(icmp.by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_abi::Endpoint;

    #[test]
    fn fields_of_each_kind() {
        let at = Endpoint { addr: ix_abi::v4([10, 0, 0, 2]), port: 4000 };
        let raw = ix_abi::Event::Knock { listener: 7, handle: 9, peer: at }.encode();
        let peer = "10.0.0.2:4000".parse().unwrap();
        assert_eq!(Event::view(&raw), Event::Knock { listener: 7, handle: 9, peer });
        let outcome = Err(Error::Refused);
        let raw = ix_abi::Event::Connected { cookie: 7, handle: 9, outcome }.encode();
        let refused = Event::Connected { cookie: 7, handle: 9, outcome };
        assert_eq!(Event::view(&raw), refused);
        let raw = EventSlot { kind: 999, ..raw };
        assert_eq!(Event::view(&raw), Event::Unknown);
    }
}
