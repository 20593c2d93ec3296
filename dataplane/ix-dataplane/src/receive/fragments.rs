//! Fragments of IP datagrams: found where the parser refuses them, off the common path.
//!
//! All fragments of a datagram meet on the thread of the flow group that their common names give,
//! whichever queues they came in by. What becomes whole there is a frame like any other: it is parsed,
//! and handed to the thread of its flow.
use crate::cycle::ElasticThread;
use crate::migration::{Origin, Way};
use crate::observe::metrics::LocalDrop;
use crate::receive::{HEAD_BYTES, Refusal, check_destination, group_of};
use ix_mem::{FRAME_BYTES, Mbuf};
use ix_nic::RxPacket;
use ix_tcp::fragments::{Fragments, Refused, Whole};
use ix_tcp::icmp::ErrorMessage;
use ix_wire::{DropReason, FlowTuple, Fragment, ethernet, ipv4, is_group_mac};

/// Where a datagram's payload begins in its frame: behind the longest Ethernet and IP headers.
const PAYLOAD_AT: usize = 80;
/// The longest payload that is put together: what one frame holds.
const PAYLOAD_BYTES_MAX: usize = FRAME_BYTES - PAYLOAD_AT;

/// Datagrams under way to one elastic thread. Made with the first fragment: most threads see none.
#[derive(Default)]
pub(crate) struct UnderWay(Option<Box<Under>>);

struct Under {
    fragments: Fragments<Mbuf>,
    /// The device of the latest, by which the senders of those that expire are told.
    port: u8,
}

impl UnderWay {
    /// When the next datagram is given up.
    pub fn deadline_us(&self) -> Option<u64> {
        self.0.as_ref()?.fragments.deadline_us()
    }
}

impl ElasticThread {
    /// A packet that the parser refused as a fragment: kept for the others of its datagram, or
    /// handed to the thread that keeps them. Answers the frame of a datagram that became whole, or the
    /// fragment if it is refused.
    #[cold]
    pub(crate) fn take_fragment(
        &mut self,
        origin: Origin,
        mbuf: Mbuf,
    ) -> Result<Option<Mbuf>, (Refusal, Mbuf)> {
        let (head, fragment) = match self.read_fragment(origin.port, &mbuf) {
            Ok(read) => read,
            Err(refusal) => return Err((refusal, mbuf)),
        };
        let group = self.group_of_fragment(origin.port, &fragment);
        if !self.migrations.is_home(group, self.io.index) {
            let way = self.way(group, origin.from);
            if way != Way::Here {
                self.send_on(way, group, origin, RxPacket { mbuf, more: false });
                return Ok(None);
            }
        }
        let ElasticThread { receive, io, shared, .. } = self;
        let under = receive.under_way.0.get_or_insert_with(|| {
            Box::new(Under { fragments: Fragments::new(PAYLOAD_BYTES_MAX), port: 0 })
        });
        under.port = origin.port;
        let (mut freed, pool) = (Vec::new(), &mut io.rx_pool);
        let take = || pool.take();
        let placed = under.fragments.place(&fragment, io.now_us, take, |buf| freed.push(buf));
        let done = match placed {
            Ok(into) => {
                copy_into(&shared.memory, &head, &fragment, &mbuf, into);
                under.fragments.take_whole(&fragment, |buf| freed.push(buf))
            }
            Err(refused) => Err(refused),
        };
        freed.into_iter().for_each(|buf| io.rx_pool.put(buf));
        match done {
            Ok(whole) => {
                io.rx_pool.put(mbuf);
                Ok(whole.map(|whole| self.finish(whole)))
            }
            Err(Refused::Duplicate) => {
                io.rx_pool.put(mbuf);
                Ok(None)
            }
            Err(Refused::NoBuffer) => Err((Refusal::Local(LocalDrop::RxPressure), mbuf)),
            Err(_) => Err((DropReason::IpFragment.into(), mbuf)),
        }
    }

    /// Reads the headers, from a copy: the sender may still be able to change the frame.
    fn read_fragment(
        &self,
        port: u8,
        mbuf: &Mbuf,
    ) -> Result<([u8; HEAD_BYTES], Fragment), Refusal> {
        let frame = mbuf.bytes(&self.shared.memory);
        let mut head = [0; HEAD_BYTES];
        let len = frame.len().min(HEAD_BYTES);
        head[..len].copy_from_slice(&frame[..len]);
        let fragment = ix_wire::parse_fragment(&head[..len], frame.len())?;
        let eth_dst = fragment.ip.eth_dst;
        if eth_dst != self.io.ports[usize::from(port)].info.mac && !is_group_mac(&eth_dst) {
            return Err(DropReason::EthNotForUs.into());
        }
        check_destination(&self.shared.config, &fragment.ip)?;
        Ok((head, fragment))
    }

    /// The group where the fragments of a datagram meet: by what they have in common.
    fn group_of_fragment(&self, port: u8, fragment: &Fragment) -> usize {
        let Fragment { ip, protocol, ident, .. } = fragment;
        let (local, remote) = (ip.dst, ip.src);
        let tuple =
            FlowTuple { local, remote, local_port: *ident, remote_port: u16::from(*protocol) };
        let hash = self.shared.flow_hash.hash(&tuple);
        group_of(&self.receive.toeplitz[usize::from(port)], hash, &tuple)
    }

    /// Makes a frame of a datagram that is whole.
    fn finish(&mut self, whole: Whole<Mbuf>) -> Mbuf {
        let Whole { mut buf, ip, ecn, len } = whole;
        let header_len = usize::from(ip.header_len);
        let headers_len = ethernet::HEADER_BYTES + header_len;
        buf.set_range(PAYLOAD_AT - headers_len, headers_len + len);
        let bytes = buf.bytes_mut(&self.shared.memory);
        ipv4::make_whole(&mut bytes[ethernet::HEADER_BYTES..headers_len], len, ecn);
        buf
    }

    /// Gives up what was waited for too long, and tells the senders (RFC 1122 section 3.3.2).
    pub(crate) fn expire_fragments(&mut self) {
        let Some(mut under) = self.receive.under_way.0.take() else { return };
        while let Some(expired) = under.fragments.expire(self.io.now_us) {
            self.io.metrics.drop_packet(DropReason::IpFragment);
            let Some(mut buf) = expired.buf else { continue };
            if let Some(ip) = expired.first
                && let Some(message) = ErrorMessage::reassembly_timeout(ip)
            {
                // The first fragment as it came: its header and the front of what it carried.
                let headers_len = ethernet::HEADER_BYTES + usize::from(ip.header_len);
                buf.set_range(PAYLOAD_AT - headers_len, headers_len + 8);
                let shared = self.shared.clone();
                self.io.send_icmp_error(under.port, &message, buf.bytes(&shared.memory));
            }
            self.io.rx_pool.put(buf);
        }
        if !under.fragments.is_empty() {
            self.receive.under_way.0 = Some(under);
        }
    }
}

/// Copies a fragment's payload to its place, and the headers of a first one in front of it.
fn copy_into(
    memory: &ix_mem::PacketMemory,
    head: &[u8; HEAD_BYTES],
    fragment: &Fragment,
    from: &Mbuf,
    into: &mut Mbuf,
) {
    into.set_range(0, FRAME_BYTES);
    let (from, into) = (fragment.payload.of(from.bytes(memory)), into.bytes_mut(memory));
    let at = PAYLOAD_AT + usize::from(fragment.offset);
    if let Some(place) = into.get_mut(at..at + from.len()) {
        place.copy_from_slice(from);
    }
    if fragment.offset == 0 {
        let headers_len = ethernet::HEADER_BYTES + usize::from(fragment.ip.header_len);
        into[PAYLOAD_AT - headers_len..PAYLOAD_AT].copy_from_slice(&head[..headers_len]);
    }
}
