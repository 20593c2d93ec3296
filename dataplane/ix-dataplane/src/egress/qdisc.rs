//! The queueing discipline in front of the devices: transmit filters, the rate of each flow, the
//! rate of the vNIC.
//!
//! All sent packets pass it, whatever has made them. So nothing need be proved about the stack or
//! about what the application writes, and a revoked filter is in force from the next cycle on.
//! Without filters and rates it costs one test in each cycle.
use crate::context::Context;
use crate::observe::metrics::LocalDrop;
use crate::ports::Port;
use ix_mem::Mbuf;
use ix_vnic::{Direction, FilterSet, Foreign, Header, Offered, Pacer, Shaper, VnicRules, flow_of};
use ix_wire::MacAddr;
use std::collections::VecDeque;

/// Most packets that wait for a rate. Further ones are lost, as in a switch.
const WAITING_MAX: usize = 512;

/// The queueing discipline of one elastic thread.
#[derive(Default)]
pub(crate) struct Qdisc {
    /// `None`: nothing is restricted.
    checks: Option<Box<Checks>>,
}

/// Filters and rates in force.
pub(crate) struct Checks {
    tx: Option<FilterSet>,
    shaper: Option<Shaper>,
    /// Packets that wait because of their flow's rate.
    pacer: Option<Pacer<(u8, Mbuf)>>,
    /// Packets that have passed the filters and wait for the vNIC's rate, with their ports.
    waiting: VecDeque<(u8, Mbuf)>,
}

impl Checks {
    /// Whether a frame may be sent by a port with this Ethernet address.
    pub fn judge(&self, frame: &[u8], own_mac: MacAddr) -> Result<(), LocalDrop> {
        let Some(tx) = &self.tx else { return Ok(()) };
        let header = Header::read(frame).ok_or(LocalDrop::TxForeignOther)?;
        tx.admits(&header, own_mac).map_err(reason)
    }

    /// Whether there are transmit filters.
    pub fn filters(&self) -> bool {
        self.tx.is_some()
    }

    /// Accepts a packet that has passed the filters; returns it if it is lost.
    fn admit(
        &mut self,
        port: u8,
        (mbuf, bytes): (Mbuf, usize),
        flow: Option<u64>,
        now_ns: u64,
    ) -> Result<(), Mbuf> {
        let (Some(pacer), Some(flow)) = (&mut self.pacer, flow) else {
            return self.wait(port, mbuf);
        };
        match pacer.offer(flow, bytes, now_ns, (port, mbuf)) {
            Offered::Leaves((port, mbuf)) => self.wait(port, mbuf),
            Offered::Waits => Ok(()),
            Offered::Lost((_, mbuf)) => Err(mbuf),
        }
    }

    /// Lets a packet that its flow's rate has passed wait for the vNIC's rate.
    fn wait(&mut self, port: u8, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(mbuf);
        }
        self.waiting.push_back((port, mbuf));
        Ok(())
    }

    /// Moves on the packets that their flow's rate lets pass now.
    fn end_waits(&mut self, now_ns: u64) {
        let Some(pacer) = &mut self.pacer else { return };
        while self.waiting.len() < WAITING_MAX
            && let Some(one) = pacer.take(now_ns)
        {
            self.waiting.push_back(one);
        }
    }

    /// The flow of a packet that has a rate.
    fn flow(&self, frame: &[u8]) -> Option<u64> {
        self.pacer.as_ref()?;
        flow_of(&Header::read(frame)?)
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

impl Qdisc {
    /// The queueing discipline of one of `queues` queues under these rules.
    fn new(rules: &VnicRules, queue: usize, queues: usize, now_ns: u64) -> Qdisc {
        let tx = rules.set_of(Direction::Transmit, queue);
        let rates = rules.rates_of(queue, queues);
        if tx.is_none() && rates.tx.is_none() && rates.flow.is_none() {
            return Qdisc::default();
        }
        Qdisc {
            checks: Some(Box::new(Checks {
                tx,
                shaper: rates.tx.map(|rate| Shaper::new(rate, now_ns)),
                pacer: rates.flow.map(|rate| Pacer::new(rate, WAITING_MAX, now_ns)),
                waiting: VecDeque::new(),
            })),
        }
    }

    /// Applies new rules. Packets that the old rules let pass and that are still here are checked
    /// again.
    pub fn renew(&mut self, rules: &VnicRules, cx: &Context, ports: &mut [Port]) {
        let new = Qdisc::new(rules, cx.index, cx.shared.threads(), cx.now_us * 1000);
        if let Some(mut old) = std::mem::replace(self, new).checks {
            let paced = old.pacer.as_mut().map(Pacer::drain).unwrap_or_default();
            for (port, mbuf) in std::mem::take(&mut old.waiting).into_iter().chain(paced) {
                ports[usize::from(port)].queue.push_back(mbuf);
            }
        }
        ports.iter_mut().for_each(|port| port.passed = 0);
    }

    /// Whether nothing is held back.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.checks.is_none()
    }

    /// The transmit filters, if there are any.
    pub fn filters(&self) -> Option<&Checks> {
        self.checks.as_deref().filter(|checks| checks.filters())
    }

    /// When the next waiting packet may be sent, µs.
    pub fn due_us(&self) -> Option<u64> {
        let checks = self.checks.as_deref()?;
        let shaper = checks.shaper.as_ref().filter(|_| !checks.waiting.is_empty());
        let paced = checks.pacer.as_ref().and_then(Pacer::due_ns);
        let due_ns = shaper.map(Shaper::due_ns).into_iter().chain(paced).min();
        due_ns.map(|ns| ns.div_ceil(1000))
    }

    /// Removes packets that wait for a rate, in order for each flow.
    pub fn take_waiting(&mut self, wanted: impl Fn(&(u8, Mbuf)) -> bool) -> Vec<(u8, Mbuf)> {
        let Some(checks) = self.checks.as_deref_mut() else { return Vec::new() };
        // The packets that their flow's rate has let pass were sent earlier.
        let (mut taken, kept) =
            std::mem::take(&mut checks.waiting).into_iter().partition::<Vec<_>, _>(&wanted);
        checks.waiting = kept.into();
        taken.extend(checks.pacer.iter_mut().flat_map(|pacer| pacer.extract(&wanted)));
        taken
    }

    /// Removes from the ports' queues what may not be sent, or not yet.
    #[inline]
    pub fn pass(&mut self, cx: &mut Context, ports: &mut [Port]) {
        if let Some(checks) = self.checks.as_deref_mut() {
            checks.hold_back(cx, ports);
        }
    }
}

impl Checks {
    #[cold]
    fn hold_back(&mut self, cx: &mut Context, ports: &mut [Port]) {
        let now_ns = cx.now_us * 1000;
        if self.waiting.is_empty()
            && let Some(shaper) = &mut self.shaper
        {
            shaper.idle(now_ns);
        }
        for (index, port) in ports.iter_mut().enumerate() {
            for _ in port.passed..port.queue.len() {
                let Some(mbuf) = port.queue.remove(port.passed) else { break };
                let frame = mbuf.bytes(&cx.shared.memory);
                let (verdict, flow) = (self.judge(frame, port.info.mac), self.flow(frame));
                let lost = match verdict {
                    Ok(()) => {
                        let bytes = mbuf.frame_len(&cx.shared.memory);
                        let admitted = self.admit(index as u8, (mbuf, bytes), flow, now_ns);
                        admitted.err().map(|mbuf| (LocalDrop::TxRate, mbuf))
                    }
                    Err(reason) => Some((reason, mbuf)),
                };
                if let Some((reason, mbuf)) = lost {
                    cx.metrics.drop_local(reason);
                    cx.tx_pool.put_frame(&cx.shared.memory, mbuf);
                }
            }
        }
        self.end_waits(now_ns);
        while let Some((port, mbuf)) = self.waiting.front() {
            if let Some(shaper) = &mut self.shaper {
                if !shaper.passes(now_ns) {
                    break;
                }
                shaper.charge(now_ns, mbuf.frame_len(&cx.shared.memory));
            }
            let port = usize::from(*port);
            if let Some((_, mbuf)) = self.waiting.pop_front() {
                ports[port].queue.push_back(mbuf);
                ports[port].passed = ports[port].queue.len();
            }
        }
    }
}
