//! Egress (step 6): built packets pass the queueing discipline, then the sniffer, and go to the
//! devices.
pub mod qdisc;
#[cfg(test)]
mod qdisc_tests;

use crate::context::Context;
use crate::observe::capture::Sniffer;
use crate::ports::Port;
use qdisc::Qdisc;

/// The egress of one elastic thread.
#[derive(Default)]
pub(crate) struct Egress {
    /// Decides which packets may be sent, and when.
    pub qdisc: Qdisc,
}

impl Egress {
    /// Whether packets may wait for their time here.
    #[inline]
    pub fn holds_back(&self) -> bool {
        !self.qdisc.is_open()
    }

    /// Step 6 without packets, here and in the ports' queues: the devices take up what they have.
    #[inline]
    pub fn kick(&self, cx: &mut Context, ports: &mut [Port]) {
        for port in ports {
            port.nic.kick(&cx.shared.memory, &mut cx.tx_pool);
            port.look_at_held(false);
        }
    }

    /// Gives the devices all built packets that may be sent, with one doorbell each. Returns the
    /// number of packets that they accepted.
    #[inline]
    pub fn transmit(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        mut sniffer: Option<&mut Sniffer>,
    ) -> usize {
        if cx.loops() {
            cx.take_looped(ports);
        }
        self.qdisc.pass(cx, ports);
        if let Some(sniffer) = sniffer.as_deref_mut() {
            sniff(cx, ports, sniffer);
        }
        let mut sent = 0;
        for port in ports.iter_mut() {
            let waiting = port.queue.len();
            if waiting > 0 {
                port.nic.transmit(&cx.shared.memory, &mut cx.tx_pool, &mut port.queue);
                let handed = waiting - port.queue.len();
                port.handed += handed as u64;
                port.passed = port.queue.len();
                sent += handed;
            }
            port.nic.kick(&cx.shared.memory, &mut cx.tx_pool);
            port.look_at_held(waiting > 0);
        }
        if sent > 0 {
            cx.metrics.counters.tx_packets.add(sent as u64);
        }
        if let Some(sniffer) = sniffer {
            ports.iter().enumerate().for_each(|(i, port)| sniffer.left(i, port.queue.len()));
        }
        sent
    }
}

/// Shows the sniffer the packets that are about to be given to the devices.
#[cold]
fn sniff(cx: &Context, ports: &[Port], sniffer: &mut Sniffer) {
    for (index, port) in ports.iter().enumerate() {
        let frames = port.queue.iter().map(|mbuf| mbuf.pieces(&cx.shared.memory));
        let group_of = |tuple: &_| port.group_of(cx.shared.flow_hash.hash(tuple), tuple);
        sniffer.leaving(index, frames, cx.now_us, group_of);
    }
}
