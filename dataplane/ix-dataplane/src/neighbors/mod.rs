//! Next hops. Elastic threads share the table of neighbours. Each keeps a copy of the entries that
//! it uses, so that the common path takes no lock: it compares a version number.
#[cfg(test)]
mod tests;

use crate::context::Context;
use crate::observe::metrics::LocalDrop;
use crate::ports::Port;
use crate::shared::neighbor_table::{Conflict, Heard, Outgoing};
use ix_mem::{HEADROOM_BYTES, Mbuf};
use ix_proto::FromImage;
use ix_tcp::Asker;
use ix_tcp::arp::{PendingQueue, Resolution};
use ix_tcp::groups::Report;
use ix_tcp::nd::NdOut;
use ix_wire::membership::Record;
use ix_wire::ra::{self, Advertisement};
use ix_wire::{
    ArpPacket, FlowTuple, IpAddr, MacAddr, NdPacket, TcpFlags, ethernet, igmp, ipv4, ipv6, mld, nd,
};
use std::collections::HashMap;

/// A copy is looked up again after this time, so that the table learns which next hops are in use.
const COPY_US: u64 = 1_000_000;
/// Where the flags are in a header of TCP.
const TCP_FLAGS_AT: usize = 13;
/// The upper bits of a copy's version are the thread's number.
const THREAD_SHIFT: u32 = 24;

/// One elastic thread's copy of next hops, and the packets that wait for one.
pub struct Neighbors {
    known: HashMap<IpAddr, MacAddr>,
    /// Increases whenever flows must look up their next hop again; never 0.
    version: u32,
    seen: u64,
    until_us: u64,
    /// Packets whose next hop's address is not known yet.
    pending: PendingQueue<(u8, Mbuf)>,
}

impl Neighbors {
    /// An empty copy of this elastic thread. Flows may come from other threads, so no two threads'
    /// copies have the same version.
    pub fn new(thread: usize) -> Neighbors {
        let version = (thread as u32) << THREAD_SHIFT | 1;
        let pending = PendingQueue::new();
        Neighbors { known: HashMap::new(), version, seen: 0, until_us: 0, pending }
    }

    /// The current version.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version
    }

    fn next_version(&self) -> u32 {
        let mask = (1 << THREAD_SHIFT) - 1;
        self.version & !mask | ((self.version + 1) & mask).max(1)
    }

    /// To be called at the start of each turn: drops the copy if the table has changed or the copy
    /// is old.
    #[inline]
    pub(crate) fn check(&mut self, cx: &mut Context, ports: &mut [Port]) {
        let seen = cx.shared.neighbors.version();
        if seen == self.seen && cx.now_us < self.until_us {
            return;
        }
        self.renew(seen, cx, ports);
    }

    #[cold]
    fn renew(&mut self, seen: u64, cx: &mut Context, ports: &mut [Port]) {
        self.known.clear();
        cx.shared.neighbors.learnt(cx.now_us, &mut cx.learnt);
        cx.shared.neighbors.groups(&mut cx.groups);
        self.version = self.next_version();
        self.until_us = cx.now_us + COPY_US;
        cx.shared.claims.look_for_unused(&cx.shared.updates.source, cx.now_us);
        if std::mem::replace(&mut self.seen, seen) != seen {
            self.send_pending(cx, ports);
        }
    }

    /// Whether [`Self::check`] must process a change of the table.
    #[inline]
    pub(crate) fn is_stale(&self, cx: &Context) -> bool {
        cx.shared.neighbors.version() != self.seen
    }

    /// The Ethernet address for packets between these ends by a device.
    pub(crate) fn resolve(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        (ends, asker): (&FlowTuple, Asker),
        port: u8,
    ) -> Resolution {
        let hop = cx.next_hop(port, ports.len(), (ends.local, ends.remote));
        // The hop of an own address may be a gateway, to which nothing for ourselves is sent.
        if let Some(mac) = hop.and_then(|hop| self.known.get(&hop))
            && (hop == Some(ends.remote) || !cx.is_local(ends.remote))
        {
            return Resolution::Known(*mac);
        }
        if cx.is_local(ends.remote) {
            cx.begin_to_loop();
            return Resolution::Known(ports[usize::from(port)].info.mac);
        }
        match hop {
            Some(hop) => self.resolve_hop(cx, ports, hop, asker),
            None => Resolution::Failed,
        }
    }

    fn resolve_hop(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        hop: IpAddr,
        asker: Asker,
    ) -> Resolution {
        if let Some(mac) = self.known.get(&hop) {
            return Resolution::Known(*mac);
        }
        let mut out = Outgoing::default();
        let resolution = cx.shared.neighbors.lookup(hop, asker, cx.now_us, &mut out);
        send_everywhere(cx, ports, out);
        if let Resolution::Known(mac) = resolution {
            self.known.insert(hop, mac);
            // Another thread may have learnt it during this cycle. The waiting packets are sent
            // first.
            self.release(cx, ports, hop, mac);
        }
        resolution
    }

    /// Sends the packets that wait for a next hop.
    fn release(&mut self, cx: &mut Context, ports: &mut [Port], hop: IpAddr, mac: MacAddr) {
        for (port, mbuf) in self.pending.take(hop) {
            send_to(cx, ports, mac, port, mbuf);
        }
    }

    /// Stores a built packet until its next hop is known; drops it if that has just failed.
    pub(crate) fn wait_for(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        (ends, asker): (&FlowTuple, Asker),
        port: u8,
        mbuf: Mbuf,
    ) {
        match cx.next_hop(port, ports.len(), (ends.local, ends.remote)) {
            Some(hop) => self.wait_for_hop(cx, ports, (hop, asker), (port, mbuf)),
            // The route may come back.
            None => drop_frame(cx, mbuf),
        }
    }

    /// The same for a next hop that may be known by now.
    pub(crate) fn wait_for_hop(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        (hop, asker): (IpAddr, Asker),
        (port, mbuf): (u8, Mbuf),
    ) {
        match self.resolve_hop(cx, ports, hop, asker) {
            Resolution::Known(mac) => send_to(cx, ports, mac, port, mbuf),
            Resolution::Pending => {
                if let Err((_, oldest)) = self.pending.push(hop, (port, mbuf), cx.now_us) {
                    drop_frame(cx, oldest);
                }
            }
            Resolution::Failed => drop_frame(cx, mbuf),
        }
    }

    /// Removes the waiting packets that `wanted` selects, each with its next hop.
    pub(crate) fn take_waiting(
        &mut self,
        wanted: impl Fn(&(u8, Mbuf)) -> bool,
    ) -> Vec<(IpAddr, (u8, Mbuf))> {
        self.pending.extract(wanted)
    }

    /// Sends the packets that wait for next hops which are known now.
    fn send_pending(&mut self, cx: &mut Context, ports: &mut [Port]) {
        if self.pending.is_empty() {
            return;
        }
        let hops: Vec<IpAddr> = self.pending.hops().collect();
        for hop in hops {
            // It was asked for when the first packet came.
            match self.resolve_hop(cx, ports, hop, Asker::Stranger) {
                Resolution::Known(mac) => self.release(cx, ports, hop, mac),
                Resolution::Pending => {}
                Resolution::Failed => {
                    self.pending.take(hop).for_each(|(_, mbuf)| give_up(cx, mbuf));
                }
            }
        }
    }

    /// Processes an ARP packet that has arrived on a port.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        port: u8,
        packet: &ArpPacket,
    ) {
        let mut out = Outgoing::default();
        let heard = cx.shared.neighbors.on_packet(packet, cx.now_us, &mut out);
        self.heard(cx, ports, port, (heard, out));
    }

    /// Processes a message of Neighbour Discovery that has arrived on a port.
    #[cold]
    pub(crate) fn receive_nd(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        port: u8,
        packet: &NdPacket,
    ) {
        let mut out = Outgoing::default();
        let heard = cx.shared.neighbors.on_nd(packet, cx.now_us, &mut out);
        self.heard(cx, ports, port, (heard, out));
    }

    /// Processes a router's advertisement; those of the first device's link count.
    #[cold]
    pub(crate) fn receive_advertisement(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        port: u8,
        said: &Advertisement,
    ) {
        if port == 0 {
            let mut out = Outgoing::default();
            let heard = cx.shared.neighbors.on_advertisement(said, cx.now_us, &mut out);
            self.heard(cx, ports, port, (heard, out));
        }
    }

    /// Sends what a message has caused, and tells the other threads.
    fn heard(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        port: u8,
        (heard, out): (Heard, Outgoing),
    ) {
        let Heard { conflict, changed } = heard;
        if let Some(conflict) = conflict {
            cx.metrics.counters.address_conflicts.add(1);
            report(&conflict);
        }
        send_by(cx, ports, port, &out);
        if changed {
            self.check(cx, ports);
            let others = (0..cx.shared.threads()).filter(|i| *i != cx.index);
            others.for_each(|i| cx.ring_thread(i));
        }
    }

    /// Asks again, expires, announces. The first thread that is due does it for all.
    #[inline]
    pub(crate) fn run_timers(&mut self, cx: &mut Context, ports: &mut [Port]) {
        while !self.pending.is_empty() {
            let Some((_, mbuf)) = self.pending.expire(cx.now_us) else { break };
            drop_frame(cx, mbuf);
        }
        if cx.now_us < cx.shared.neighbors.due_us() {
            return;
        }
        let mut out = Outgoing::default();
        cx.shared.neighbors.tick(cx.now_us, &mut out);
        if let Some(groups) = out.groups.take()
            && !cx.shared.updates.say(&FromImage::Groups { groups })
        {
            cx.shared.neighbors.groups_are_untold();
        }
        send_everywhere(cx, ports, out);
    }

    /// When [`Self::run_timers`] has something to do, µs.
    pub(crate) fn deadline_us(&self, cx: &Context) -> Option<u64> {
        if !cx.without_hop.is_empty() {
            return Some(cx.now_us);
        }
        let due_us = cx.shared.neighbors.due_us();
        let due_us = if self.pending.is_empty() { due_us } else { due_us.min(cx.now_us + COPY_US) };
        (due_us != u64::MAX).then_some(due_us)
    }
}

/// Drops a packet that has waited for a next hop which does not answer. Where the next hops are
/// Linux's, a flow that connects is told, as Linux tells its own; the peer of a link that is IX's
/// alone may start later than this end.
fn give_up(cx: &mut Context, mbuf: Mbuf) {
    if cx.shared.config.shares_address {
        cx.without_hop.extend(connecting(mbuf.bytes(&cx.shared.memory)));
    }
    drop_frame(cx, mbuf);
}

/// Drops a packet for which there is no route, no room, or no time any more.
fn drop_frame(cx: &mut Context, mbuf: Mbuf) {
    cx.metrics.drop_local(LocalDrop::ArpPending);
    cx.tx_pool.put_frame(&cx.shared.memory, mbuf);
}

/// The flow whose SYN this frame of ours is, if it is one. It has no options of IP and no extension
/// headers, as we send none.
fn connecting(frame: &[u8]) -> Option<FlowTuple> {
    let whole = ix_vnic::Header::read(frame)?;
    let header = whole.ip.filter(|ip| ip.protocol == ipv4::PROTOCOL_TCP)?;
    let (local_port, remote_port) = header.ports?;
    let is_v4 = whole.ethertype == ethernet::TYPE_IPV4;
    let address = |number: u128| match is_v4 {
        true => IpAddr::v4((number as u32).to_be_bytes()),
        false => IpAddr(number.to_be_bytes()),
    };
    let (local, remote) = (address(header.src), address(header.dst));
    let ip_bytes = if is_v4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
    let flags = u16::from(*frame.get(ethernet::HEADER_BYTES + ip_bytes + TCP_FLAGS_AT)?);
    let is_syn = flags & (TcpFlags::SYN.0 | TcpFlags::ACK.0) == TcpFlags::SYN.0;
    is_syn.then_some(FlowTuple { local, remote, local_port, remote_port })
}

fn send_to(cx: &Context, ports: &mut [Port], mac: MacAddr, port: u8, mut mbuf: Mbuf) {
    mbuf.bytes_mut(&cx.shared.memory)[..6].copy_from_slice(&mac);
    ports[usize::from(port)].queue.push_back(mbuf);
}

/// Tells the operator of an address that cannot be used.
fn report(conflict: &Conflict) {
    let Conflict { address, mac: [a, b, c, d, e, f], gave_up } = conflict;
    if *gave_up {
        eprintln!(
            "ix: the address {address} is not used: the host \
             {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} has it; give one of the two another"
        );
    }
}

/// Sends requests and announcements by all devices, because any of them may lead to the hosts
/// concerned.
fn send_everywhere(cx: &mut Context, ports: &mut [Port], out: Outgoing) {
    for hop in &out.resolve {
        cx.shared.updates.say(&FromImage::Resolve { hop: *hop });
    }
    for port in 0..ports.len() as u8 {
        send_by(cx, ports, port, &out);
    }
}

fn send_by(cx: &mut Context, ports: &mut [Port], port: u8, out: &Outgoing) {
    let number = (port, ports.len());
    let Some(device) = ports.get_mut(usize::from(port)) else { return };
    // RFC 4862 section 5.4.2: who asks for its own address listens to the answers by then.
    send_reports(cx, (number, device), &out.reports);
    for packet in &out.arp {
        send_arp(cx, device, *packet);
    }
    for message in &out.nd {
        send_nd(cx, device, message);
    }
    if out.asks_routers {
        let (mac, src) = (device.info.mac, cx.learnt.link_local.unwrap_or(IpAddr::UNSPECIFIED_V6));
        send_built(cx, device, ra::FRAME_BYTES_MAX, |frame| ra::emit_solicitation(frame, mac, src));
    }
}

fn send_arp(cx: &mut Context, device: &mut Port, mut packet: ArpPacket) {
    packet.sender_mac = device.info.mac;
    send_built(cx, device, ethernet::FRAME_BYTES_MIN, |frame| {
        packet.emit_frame(frame);
        frame.len()
    });
}

fn send_nd(cx: &mut Context, device: &mut Port, message: &NdOut) {
    let packet = message.from(device.info.mac);
    let eth_dst = message.eth_dst;
    send_built(cx, device, nd::FRAME_BYTES_MAX, |frame| packet.emit_frame(frame, eth_dst));
}

/// Reports groups: as many in one message as fit, and one for each as earlier versions of the
/// protocols have them.
fn send_reports(cx: &mut Context, (number, device): ((u8, usize), &mut Port), reports: &[Report]) {
    for is_v6 in [false, true] {
        let its = || reports.iter().filter(|report| report.group.is_v6() == is_v6);
        if its().next().is_none() {
            continue;
        }
        let (mac, src) = (device.info.mac, report_source(cx, number, is_v6));
        for report in its().filter(|report| report.older > 0) {
            let (record, older) = (report.record(), report.older);
            send_built(cx, device, mld::FRAME_BYTES_MAX, |frame| {
                let len = match is_v6 {
                    true => mld::emit_version1(frame, mac, src, &record),
                    false => igmp::emit_older(frame, mac, src, &record, older),
                };
                len.unwrap_or(0)
            });
        }
        let most = Record::sources_max(is_v6);
        let latest = its().filter(|report| report.older == 0);
        let records: Vec<Record<'_>> = latest.flat_map(|report| report.records(most)).collect();
        let mut left = &records[..];
        while !left.is_empty() {
            let mut taken = 0;
            send_built(cx, device, mld::FRAME_BYTES_MAX, |frame| {
                let (len, count) = match is_v6 {
                    true => mld::emit_report(frame, mac, src, left),
                    false => igmp::emit_report(frame, mac, src, left),
                };
                taken = count;
                len
            });
            // Without a frame to send none is: they are said again, or asked for.
            if taken == 0 {
                break;
            }
            left = &left[taken..];
        }
    }
}

/// The source of reports by a device: of IPv6 a link-local address, or the unspecified one where
/// none of ours is (RFC 3810 section 5.2.13); of IPv4 an address of ours there, or 0.0.0.0 (RFC
/// 3376 section 4.2.13).
fn report_source(cx: &Context, (device, devices): (u8, usize), is_v6: bool) -> IpAddr {
    if is_v6 {
        return cx.learnt.link_local.unwrap_or(IpAddr::UNSPECIFIED_V6);
    }
    let config = &cx.shared.config;
    let mut own = config.host_addrs.iter().map(|(own, _)| *own).filter(|own| !own.is_v6());
    own.find(|own| config.device_of(*own, devices) == device).unwrap_or(IpAddr::UNSPECIFIED)
}

/// Sends a frame of at most `room` bytes; `build` returns how many it has, or 0 if there is none.
fn send_built(
    cx: &mut Context,
    device: &mut Port,
    room: usize,
    build: impl FnOnce(&mut [u8]) -> usize,
) {
    let Some(mut mbuf) = cx.tx_pool.take() else {
        return cx.metrics.drop_local(LocalDrop::NoTxFrame);
    };
    mbuf.set_range(HEADROOM_BYTES, room);
    let frame = mbuf.bytes_mut(&cx.shared.memory);
    frame.fill(0);
    match build(frame) {
        0 => cx.tx_pool.put(mbuf),
        len => {
            mbuf.truncate(len);
            device.queue.push_back(mbuf);
        }
    }
}
