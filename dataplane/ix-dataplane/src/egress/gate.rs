//! What the control plane lets this vNIC send and receive, at work on one queue pair.
//!
//! Everything that leaves goes through [`Io::transmit`], and everything that came in through the
//! parser: there the filters are asked, whoever made the packet. So nothing has to be proved of the
//! stack or of what the application writes, and a filter that is gone holds from the next cycle on.
//! A dataplane without filters and rates pays one look at an empty place in each cycle.
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use ix_mem::Mbuf;
use ix_vnic::{
    ArpHeader, Direction, Filter, FilterSet, Foreign, Gate, Header, IpHeader, Offered, Pacer,
    Shaper, UNTAGGED, flow_of,
};
use ix_wire::{IpAddr, IpMeta, MacAddr, Parsed};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Packets that wait for their turn, at most: what comes then is lost, as in a switch.
const WAITING_MAX: usize = 512;

/// The gate that all threads are to have.
#[derive(Debug, Default)]
pub(crate) struct Board {
    gate: Mutex<Gate>,
    version: AtomicU64,
}

impl Board {
    pub fn new(gate: Gate) -> Board {
        Board { gate: Mutex::new(gate), version: AtomicU64::new(0) }
    }

    /// Another one, from the next cycle of each thread on.
    pub fn set(&self, gate: Gate) {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = gate;
        self.version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn get(&self) -> Gate {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The gate of one elastic thread.
#[derive(Default)]
pub(crate) struct IoGate {
    /// Which one of the board's it is.
    version: u64,
    /// None: nothing is held back.
    checks: Option<Box<Checks>>,
}

/// Filters and rates at work.
pub(crate) struct Checks {
    tx: Option<FilterSet>,
    rx: Option<FilterSet>,
    /// Which queue is to have the received packets that no flow has.
    steering: Vec<(usize, Filter)>,
    shaper: Option<Shaper>,
    policer: Option<Shaper>,
    /// Packets that wait because of their flow's pace.
    pacer: Option<Pacer<(u8, Mbuf)>>,
    /// Packets that the filters have let pass and the rate has not, with their ports.
    waiting: VecDeque<(u8, Mbuf)>,
}

impl Checks {
    /// Those of one of `queues` queues; `None`: nothing is held back there.
    fn new(gate: &Gate, queue: usize, queues: usize, now_ns: u64) -> Option<Box<Checks>> {
        let (tx, rx) = (gate.set_of(Direction::Transmit, queue), gate.set(Direction::Receive));
        let rates = gate.rates_of(queue, queues);
        if tx.is_none() && rx.is_none() && rates.is_empty() {
            return None;
        }
        let shaper = |rate| Shaper::new(rate, now_ns);
        Some(Box::new(Checks {
            tx,
            rx,
            steering: gate.steering(),
            shaper: rates.tx.map(shaper),
            policer: rates.rx.map(shaper),
            pacer: rates.flow.map(|rate| Pacer::new(rate, WAITING_MAX, now_ns)),
            waiting: VecDeque::new(),
        }))
    }

    /// Whether a frame may leave by a port with this Ethernet address.
    pub fn judge(&self, frame: &[u8], own_mac: MacAddr) -> Result<(), LocalDrop> {
        let Some(tx) = &self.tx else { return Ok(()) };
        let header = Header::read(frame).ok_or(LocalDrop::TxForeignOther)?;
        tx.admits(&header, own_mac).map_err(reason)
    }

    /// Whether filters say what may be sent.
    pub fn filters_transmit(&self) -> bool {
        self.tx.is_some()
    }

    /// Takes a packet that the filters have let pass; gives it back when it is lost.
    fn admit(&mut self, port: u8, mbuf: Mbuf, flow: Option<u64>, now_ns: u64) -> Result<(), Mbuf> {
        let (Some(pacer), Some(flow)) = (&mut self.pacer, flow) else {
            return self.wait(port, mbuf);
        };
        match pacer.offer(flow, mbuf.len(), now_ns, (port, mbuf)) {
            Offered::Leaves((port, mbuf)) => self.wait(port, mbuf),
            Offered::Waits => Ok(()),
            Offered::Lost((_, mbuf)) => Err(mbuf),
        }
    }

    /// Its flow lets it go: now it waits for the rate of all.
    fn wait(&mut self, port: u8, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(mbuf);
        }
        self.waiting.push_back((port, mbuf));
        Ok(())
    }

    /// Those of paced flows whose turn has come.
    fn end_waits(&mut self, now_ns: u64) {
        let Some(pacer) = &mut self.pacer else { return };
        while self.waiting.len() < WAITING_MAX
            && let Some(one) = pacer.take(now_ns)
        {
            self.waiting.push_back(one);
        }
    }

    /// The flow of a packet that is to be paced.
    fn flow(&self, frame: &[u8]) -> Option<u64> {
        self.pacer.as_ref()?;
        flow_of(&Header::read(frame)?)
    }

    /// Whether a received packet may be heard.
    pub fn hears(&mut self, parsed: &Parsed, bytes: usize, now_us: u64) -> Result<(), LocalDrop> {
        self.hears_header(&header_of(parsed), bytes, now_us)
    }

    /// The same of one that the parser does not know. Whoever asks looks at whom the frame is for.
    pub fn hears_header(
        &mut self,
        header: &Header,
        bytes: usize,
        now_us: u64,
    ) -> Result<(), LocalDrop> {
        if let Some(rx) = &self.rx {
            rx.admits(header, header.eth_dst).map_err(|_| LocalDrop::RxFiltered)?;
        }
        let policed = self.policer.as_mut().is_none_or(|p| p.police(now_us * 1000, bytes));
        if policed { Ok(()) } else { Err(LocalDrop::RxRate) }
    }
}

fn reason(foreign: Foreign) -> LocalDrop {
    match foreign {
        Foreign::Mac => LocalDrop::TxForeignMac,
        Foreign::Vlan => LocalDrop::TxForeignVlan,
        Foreign::Address => LocalDrop::TxForeignAddress,
        Foreign::Port => LocalDrop::TxForeignPort,
        Foreign::Queue => LocalDrop::TxForeignQueue,
        Foreign::Other => LocalDrop::TxForeignOther,
    }
}

/// Where a packet lies that was parsed. Not from its bytes: the peer may still change them.
fn header_of(parsed: &Parsed) -> Header {
    let v4 = |ip: IpAddr| ip.as_v4().map_or(0, u32::from_be_bytes);
    let ip = |ip: &IpMeta, protocol, ports| Header {
        eth_src: ip.eth_src,
        eth_dst: ip.eth_dst,
        vlan: UNTAGGED,
        ethertype: 0x0800,
        ip: Some(IpHeader { src: v4(ip.src), dst: v4(ip.dst), protocol, ports }),
        arp: None,
    };
    match parsed {
        Parsed::Tcp(p) => {
            let tuple = p.tuple();
            ip(&p.ip, 6, Some((tuple.remote_port, tuple.local_port)))
        }
        Parsed::Udp(p) => {
            let tuple = p.tuple();
            ip(&p.ip, 17, Some((tuple.remote_port, tuple.local_port)))
        }
        Parsed::Icmp(p) => ip(&p.ip, 1, None),
        Parsed::Arp(p) => Header {
            eth_src: p.sender_mac,
            eth_dst: p.target_mac,
            vlan: UNTAGGED,
            ethertype: 0x0806,
            ip: None,
            arp: Some(ArpHeader {
                sender_mac: p.sender_mac,
                sender: u32::from_be_bytes(p.sender_ip),
                target: u32::from_be_bytes(p.target_ip),
            }),
        },
    }
}

impl IoGate {
    /// For a thread that has looked at nothing yet.
    pub fn new() -> IoGate {
        IoGate { version: u64::MAX, checks: None }
    }

    /// What is to be asked, if anything.
    #[inline]
    pub fn checks(&mut self) -> Option<&mut Checks> {
        self.checks.as_deref_mut()
    }

    /// Whether filters say what may be sent, and what is heard.
    pub fn filtered(&self) -> (bool, bool) {
        let checks = self.checks.as_deref();
        checks.map_or((false, false), |checks| (checks.tx.is_some(), checks.rx.is_some()))
    }

    /// Whether a receive filter asks for frames of this type by name.
    pub fn names_ethertype(&self, ethertype: u16) -> bool {
        let rx = self.checks.as_deref().and_then(|checks| checks.rx.as_ref());
        rx.is_some_and(|rx| rx.names_ethertype(ethertype))
    }

    /// Whether receive filters are assigned to queues.
    pub fn steers(&self) -> bool {
        self.checks.as_deref().is_some_and(|checks| !checks.steering.is_empty())
    }

    /// The queue that a receive filter gives a packet to, if one does.
    pub fn queue_of(&self, header: &Header) -> Option<usize> {
        let steering = &self.checks.as_deref()?.steering;
        steering.iter().find(|(_, filter)| filter.matches(header)).map(|(queue, _)| *queue)
    }

    /// When the next packet that waits may leave, µs.
    pub fn due_us(&self) -> Option<u64> {
        let checks = self.checks.as_deref()?;
        let shaper = checks.shaper.as_ref().filter(|_| !checks.waiting.is_empty());
        let paced = checks.pacer.as_ref().and_then(Pacer::due_ns);
        let due_ns = shaper.map(Shaper::due_ns).into_iter().chain(paced).min();
        due_ns.map(|ns| ns.div_ceil(1000))
    }

    /// Takes packets out that wait for a rate, those of each flow in order.
    pub fn take_waiting(&mut self, wanted: impl Fn(&(u8, Mbuf)) -> bool) -> Vec<(u8, Mbuf)> {
        let Some(checks) = self.checks.as_deref_mut() else { return Vec::new() };
        // What its flow's pace has let go was sent earlier.
        let (mut taken, kept) =
            std::mem::take(&mut checks.waiting).into_iter().partition::<Vec<_>, _>(&wanted);
        checks.waiting = kept.into();
        taken.extend(checks.pacer.iter_mut().flat_map(|pacer| pacer.extract(&wanted)));
        taken
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.checks.is_none()
    }
}

impl Io {
    /// Takes the gate over that the board has, if it is another one.
    #[inline]
    pub(crate) fn check_gate(&mut self) {
        if self.shared.gate.version() != self.gate.version {
            self.take_gate();
        }
    }

    /// What was let pass by the old one and is still here is asked anew.
    #[cold]
    fn take_gate(&mut self) {
        let version = self.shared.gate.version();
        let gate = self.shared.gate.get();
        let threads = self.shared.threads();
        let checks = Checks::new(&gate, self.index, threads, self.now_us * 1000);
        let old = std::mem::replace(&mut self.gate, IoGate { version, checks });
        if let Some(mut old) = old.checks {
            let paced = old.pacer.as_mut().map(Pacer::drain).unwrap_or_default();
            for (port, mbuf) in std::mem::take(&mut old.waiting).into_iter().chain(paced) {
                self.ports[usize::from(port)].queue.push_back(mbuf);
            }
        }
        self.ports.iter_mut().for_each(|port| port.passed = 0);
    }

    /// Holds back what may not leave, or not yet.
    #[inline]
    pub(crate) fn pass_gate(&mut self) {
        if !self.gate.is_open() {
            self.hold_back();
        }
    }

    #[cold]
    fn hold_back(&mut self) {
        let now_ns = self.now_us * 1000;
        let Io { gate, ports, shared, metrics, tx_pool, .. } = self;
        let Some(checks) = gate.checks() else { return };
        if checks.waiting.is_empty()
            && let Some(shaper) = &mut checks.shaper
        {
            shaper.idle(now_ns);
        }
        for (index, port) in ports.iter_mut().enumerate() {
            for _ in port.passed..port.queue.len() {
                let Some(mbuf) = port.queue.remove(port.passed) else { break };
                let frame = mbuf.bytes(&shared.memory);
                let (verdict, flow) = (checks.judge(frame, port.info.mac), checks.flow(frame));
                let lost = match verdict {
                    Ok(()) => {
                        let admitted = checks.admit(index as u8, mbuf, flow, now_ns);
                        admitted.err().map(|mbuf| (LocalDrop::TxRate, mbuf))
                    }
                    Err(reason) => Some((reason, mbuf)),
                };
                if let Some((reason, mbuf)) = lost {
                    metrics.drop_local(reason);
                    tx_pool.put(mbuf);
                }
            }
        }
        checks.end_waits(now_ns);
        while let Some((port, mbuf)) = checks.waiting.front() {
            if let Some(shaper) = &mut checks.shaper {
                if !shaper.passes(now_ns) {
                    break;
                }
                shaper.charge(now_ns, mbuf.len());
            }
            let port = usize::from(*port);
            if let Some((_, mbuf)) = checks.waiting.pop_front() {
                ports[port].queue.push_back(mbuf);
                ports[port].passed = ports[port].queue.len();
            }
        }
    }
}
