//! What every part of an elastic thread gets: time, memory, event array, counters.
use crate::attachment::Attachments;
use crate::observe::metrics::ThreadMetrics;
use crate::promises::Promises;
use crate::shared::Shared;
use crate::shared::learnt::Learnt;
use ix_abi::CallError;
use ix_mem::{LentFrames, Mbuf, Pool};
use ix_nic::RxPacket;
use ix_proto::crossing::AttachmentId;
use ix_wire::{FLOW_GROUPS, FlowTuple, IpAddr, igmp, ipv6};
use std::collections::VecDeque;
use std::sync::Arc;

/// The context of one elastic thread.
pub struct Context {
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// Number of this elastic thread.
    pub index: usize,
    /// Time of this cycle, µs.
    pub now_us: u64,
    /// Frames to receive into.
    pub rx_pool: Pool,
    /// Frames to build packets in.
    pub tx_pool: Pool,
    /// The processes of the program.
    pub attached: Attachments,
    /// The one whose calls are carried out.
    pub caller: AttachmentId,
    /// What is added to its addresses in transmit memory.
    pub shift: u64,
    /// Counters and histograms.
    pub metrics: ThreadMetrics,
    /// Number of receive frames that the flows of each group hold. They move with their group.
    pub flow_frames: Box<[u32; FLOW_GROUPS]>,
    /// What flows with large windows have promised to their peers.
    pub(crate) promises: Promises,
    /// Received datagrams and frames of packet queues that the application holds.
    pub lent: LentFrames,
    /// What routers have told.
    pub(crate) learnt: Learnt,
    /// The groups that sockets of this host listen to, in order.
    pub(crate) groups: Vec<IpAddr>,
    /// Flows whose SYN no host of the link would take: they end in this cycle.
    pub(crate) without_hop: Vec<FlowTuple>,
    /// Packets to our own addresses that wait to be received, each with the device it comes in on.
    pub(crate) looped: VecDeque<(u8, RxPacket)>,
}

impl Context {
    /// The context of thread `index`, with its pools of receive and transmit frames.
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        (rx_pool, tx_pool): (Pool, Pool),
        attached: Attachments,
        metrics: ThreadMetrics,
    ) -> Context {
        Context {
            lent: LentFrames::new(&shared.memory),
            shared,
            index,
            now_us: 0,
            rx_pool,
            tx_pool,
            attached,
            caller: 0,
            shift: 0,
            metrics,
            flow_frames: Box::new([0; FLOW_GROUPS]),
            promises: Promises::new(),
            learnt: Learnt::default(),
            groups: Vec::new(),
            without_hop: Vec::new(),
            looped: VecDeque::new(),
        }
    }

    /// Whether an address is one of ours.
    #[inline]
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.shared.config.is_local(address) || self.learnt.is_any && self.learnt.is_local(address)
    }

    /// Whether an address names several hosts: a group, or a broadcast.
    pub(crate) fn is_group(&self, address: IpAddr) -> bool {
        match &self.learnt.linux {
            Some(network) => {
                let is_of = |own: &(IpAddr, u8)| address.is_broadcast_of(own.0, own.1);
                address.is_multicast()
                    || address.is_broadcast()
                    || network.addresses.iter().any(is_of)
            }
            None => self.shared.config.is_group(address),
        }
    }

    /// Whether this host is one of several that an address names.
    #[cold]
    pub(crate) fn hears(&self, address: IpAddr) -> bool {
        match address.is_multicast() {
            true => {
                [igmp::ALL_HOSTS, ipv6::ALL_NODES].contains(&address)
                    || self.groups.binary_search(&address).is_ok()
            }
            false => self.is_group(address),
        }
    }

    /// Our address for packets to several hosts, by this device of so many, if one is named.
    #[cold]
    pub(crate) fn group_source(
        &self,
        to: IpAddr,
        device: Option<u8>,
        devices: usize,
    ) -> Option<IpAddr> {
        let config = &self.shared.config;
        let (linux, learnt) = (self.learnt.linux.as_ref(), &self.learnt);
        let configured = linux.map_or(&config.host_addrs[..], |network| &network.addresses);
        let mut its = configured.iter().filter(|(own, _)| {
            own.is_v6() == to.is_v6()
                && device.is_none_or(|device| config.device_of(*own, devices) == device)
        });
        let network = its.clone().find(|(own, prefix)| to.is_broadcast_of(*own, *prefix));
        let of_link = learnt.link_local.filter(|_| to.is_v6());
        let first = network.or_else(|| its.next()).map(|(own, _)| *own);
        let made = || learnt.addresses.iter().copied().find(|own| own.is_v6() == to.is_v6());
        first.or_else(made).or(of_link)
    }

    /// Whether an address may begin something: Linux may have taken one away that packets still
    /// come for.
    ///
    /// # Errors
    /// `Again`: what Linux has beside the configuration is still to be told, such as addresses of
    /// the link. `NotLocal`: no.
    pub(crate) fn may_use(&self, address: IpAddr) -> Result<(), CallError> {
        let may = match &self.learnt.linux {
            Some(network) => network.has(address),
            None if self.shared.config.shares_address && !self.is_local(address) => {
                return Err(CallError::Again);
            }
            None => self.is_local(address),
        };
        if may { Ok(()) } else { Err(CallError::NotLocal) }
    }

    /// Our address and the next hop for packets to `remote`; `None` without a route. Not
    /// inlined: it is for who begins, not for the path of a message.
    #[inline(never)]
    pub(crate) fn route(&self, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        match &self.learnt.linux {
            Some(network) => self.learnt.route_of(network, remote),
            None if self.is_local(remote) => Some((remote, remote)),
            None => self.shared.config.route(remote).or_else(|| self.learnt.route(remote)),
        }
    }

    /// Longest packet to `remote` that Linux's route to it allows, where it bounds it, bytes.
    pub(crate) fn route_mtu(&self, remote: IpAddr) -> Option<u16> {
        let mtu = self.learnt.mtu_of(self.learnt.linux.as_ref()?, remote)?;
        Some(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    /// The next hop for packets from an address of ours by a device, one of `devices`.
    pub(crate) fn next_hop(
        &self,
        device: u8,
        devices: usize,
        (local, remote): (IpAddr, IpAddr),
    ) -> Option<IpAddr> {
        if let Some(network) = &self.learnt.linux {
            return network.next_hop(local, remote);
        }
        let configured = self.shared.config.next_hop(device, devices, remote);
        configured.or_else(|| self.learnt.route(remote).map(|(_, hop)| hop))
    }

    /// The hop limit of packets to an address that have no other one.
    #[inline]
    pub(crate) fn hop_limit(&self, to: IpAddr) -> u8 {
        let told = if to.is_v6() { self.learnt.hop_limit } else { None };
        told.unwrap_or(self.shared.config.ttl)
    }

    /// Most frames outside of flows that the application may hold.
    pub fn lent_max(&self) -> usize {
        self.rx_pool.owned() / 2
    }

    /// Whether an attachment may hold one more frame outside of flows. None gets all of them if
    /// there are several.
    pub fn may_lend(&self, to: AttachmentId) -> bool {
        let part = if self.attached.is_alone(to) { 1 } else { 2 };
        self.lent.count() < self.lent_max() && self.attached[to].lent < self.lent_max() / part
    }

    /// Whether an attachment may hold `count` more frames.
    #[inline]
    pub fn may_lend_all(&self, to: AttachmentId, count: usize) -> bool {
        let more = count - 1;
        self.may_lend(to)
            && (more == 0 || {
                let part = if self.attached.is_alone(to) { 1 } else { 2 };
                let most = self.lent_max();
                self.lent.count() + more < most && self.attached[to].lent + more < most / part
            })
    }

    /// Lends a frame to an attachment.
    pub fn lend(&mut self, mbuf: Mbuf, to: AttachmentId) {
        self.lent.lend(mbuf, to);
        self.attached[to].lent += 1;
    }

    /// Wakes another elastic thread if it sleeps.
    pub fn ring_thread(&self, index: usize) {
        self.shared.ring_thread(index);
    }
}
