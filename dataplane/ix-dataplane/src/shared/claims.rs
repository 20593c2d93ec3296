//! Ports of an address that is Linux's as well: the broker claims each that the application uses,
//! and Linux gets it back when no flow of it is left, TIME-WAIT included. Otherwise Linux would
//! answer late segments of closed flows with a RST.
//!
//! As on Linux, the families have ports of their own: at 0.0.0.0 or at `::` with `IPV6_V6ONLY` one
//! is claimed, and the other one may be Linux's, or another program's. At `::` both are.
//!
//! Looked at when a listener, a UDP socket or a connection from a named port is opened, and when
//! the last flow of a port ends; never for a packet.
use crate::broker::UpdateSource;
use crate::config::Config;
use crate::shared::outgoing::{LOOK_US, Outgoing};
use ix_abi::CallError;
use ix_proto::{ClaimRefused, FromImage, SharedPort};
use ix_tcp::udp::EPHEMERAL_PORTS;
use ix_wire::IpAddr;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A claim that was not answered for so long is made again, µs: the channel may have been full.
const AGAIN_US: u64 = 500_000;
/// An answer that none has come for after so long is for a process that has ended, µs.
const FORGOTTEN_US: u64 = 2_000_000;
/// All answers have been heard by those that asked.
const NONE: u64 = u64::MAX;

/// The claims of a dataplane.
pub struct Claims {
    /// Reserved for outgoing connections; none: the addresses are IX's own, and so are all ports.
    outgoing: Option<Outgoing>,
    ports: Mutex<Ports>,
    /// When the oldest answer came that may be forgotten, µs, or [`NONE`].
    unheard_us: AtomicU64,
    /// Flows of each local port of TCP.
    flows: Box<[AtomicU32]>,
}

/// Where a listener or a socket is, or where a connection comes from.
#[derive(Clone, Copy)]
pub(crate) struct PortAt {
    pub udp: bool,
    pub addr: IpAddr,
    pub number: u16,
}

impl PortAt {
    /// What is claimed for it.
    fn ports(self) -> impl Iterator<Item = SharedPort> {
        let PortAt { udp, addr, number } = self;
        let is_both = addr == IpAddr::UNSPECIFIED_V6;
        let families = [false, true].into_iter().filter(move |v6| is_both || *v6 == addr.is_v6());
        families.map(move |v6| SharedPort { udp, v6, number })
    }
}

struct Claim {
    state: State,
    /// Listeners or sockets.
    users: u32,
    /// When the answer came, µs, until a user does; or [`NONE`].
    unheard_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asked for, at this time.
    Asked(u64),
    Held,
    Refused(ClaimRefused),
}

/// Where the broker hears of it.
pub(crate) type Source = Mutex<Option<Box<dyn UpdateSource>>>;
type SourceGuard<'a> = MutexGuard<'a, Option<Box<dyn UpdateSource>>>;
type Ports = BTreeMap<SharedPort, Claim>;
type PortsGuard<'a> = MutexGuard<'a, Ports>;

impl Claims {
    /// Nothing is claimed.
    pub(crate) fn new(config: &Config) -> Claims {
        let count = if config.shares_address { 1 << 16 } else { 0 };
        Claims {
            outgoing: config.shares_address.then(|| Outgoing::new(config.local_ports)),
            ports: Mutex::default(),
            unheard_us: AtomicU64::new(NONE),
            flows: (0..count).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Whether a port needs no claim.
    fn is_free_of_claims(&self, port: u16) -> bool {
        self.outgoing.as_ref().is_none_or(|outgoing| outgoing.is_in_block(port))
    }

    /// The ports of which a UDP socket without one gets one.
    pub(crate) fn datagram_ports(&self) -> RangeInclusive<u16> {
        match &self.outgoing {
            Some(outgoing) => outgoing.block(),
            None => EPHEMERAL_PORTS,
        }
    }

    /// Ports of outgoing connections, where not all are IX's.
    pub(crate) fn outgoing(&self) -> Option<&Outgoing> {
        self.outgoing.as_ref()
    }

    /// More ports for outgoing connections would do good. Returns whether some may come.
    #[cold]
    pub(crate) fn want_more(&self, source: &Source, now_us: u64) -> bool {
        let Some(outgoing) = &self.outgoing else { return false };
        let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
        outgoing.grow(&mut source, now_us)
    }

    /// Whether a port that was chosen for a flow is still IX's, now that the flow is counted.
    pub(crate) fn is_still_outgoing(&self, port: u16) -> bool {
        self.is_free_of_claims(port) || self.is_added(port)
    }

    fn is_added(&self, port: u16) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_added(port))
    }

    /// Gives back ports of outgoing connections that no flow has, and claimed ones whose asker is
    /// gone. To be called now and then.
    #[inline]
    pub(crate) fn look_for_unused(&self, source: &Source, now_us: u64) {
        if self.forgets_us().is_some_and(|due_us| due_us <= now_us) {
            self.forget_unheard(source, now_us);
        }
        if let Some(outgoing) = &self.outgoing
            && outgoing.version() != 0
        {
            self.give_back(outgoing, source, now_us);
        }
    }

    /// When to look for them again though nothing else is due.
    pub(crate) fn look_again_us(&self, now_us: u64) -> Option<u64> {
        let added = self.outgoing.as_ref().filter(|outgoing| outgoing.version() != 0);
        let added_us = added.and_then(|outgoing| outgoing.look_again_us(now_us));
        let forgets_us = self.forgets_us().map(|due_us| due_us.max(now_us + LOOK_US));
        added_us.into_iter().chain(forgets_us).min()
    }

    #[cold]
    fn give_back(&self, outgoing: &Outgoing, source: &Source, now_us: u64) {
        let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
        outgoing.give_back(&mut source, &self.flows, now_us);
    }

    /// Counts a listener, or a connection from a named port, on a port that was added to those of
    /// outgoing connections, as a flow is counted. Returns whether it is one.
    fn use_added(&self, at: PortAt) -> bool {
        if at.udp || !self.is_added(at.number) {
            return false;
        }
        self.flow_begins(at.number);
        let is_still = self.is_added(at.number);
        if !is_still && let Some(count) = self.flows.get(usize::from(at.number)) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        is_still
    }

    /// A user of a port comes. [`CallError::Again`]: the broker has been asked.
    pub(crate) fn enter(&self, source: &Source, at: PortAt, now_us: u64) -> Result<(), CallError> {
        if self.is_free_of_claims(at.number) || self.use_added(at) {
            return Ok(());
        }
        let (mut source, mut ports) = self.lock(source);
        let (mut waits, mut refused) = (false, None);
        for port in at.ports() {
            match ports.get(&port).map(|claim| claim.state) {
                Some(State::Held) => {}
                Some(State::Refused(why)) => refused = Some(why),
                Some(State::Asked(at_us)) if now_us < at_us + AGAIN_US => waits = true,
                Some(State::Asked(_)) | None => {
                    let state = State::Asked(now_us);
                    ports.insert(port, Claim { state, users: 0, unheard_us: NONE });
                    say(&mut source, &FromImage::Claim(port));
                    waits = true;
                }
            }
        }
        // Not before both families are answered: what IX gets of them is given back, if not all.
        if waits {
            return Err(CallError::Again);
        }
        let Some(why) = refused else {
            for port in at.ports() {
                if let Some(claim) = ports.get_mut(&port) {
                    (claim.users, claim.unheard_us) = (claim.users + 1, NONE);
                }
            }
            return Ok(());
        };
        for port in at.ports() {
            if ports.get(&port).is_some_and(|claim| matches!(claim.state, State::Refused(_))) {
                ports.remove(&port);
            }
            self.release_unused(&mut source, &mut ports, port);
        }
        Err(match why {
            ClaimRefused::InUse => CallError::InUse,
            ClaimRefused::Denied => CallError::NotLocal,
        })
    }

    /// A user of a port is gone. Linux has the port again if there is no flow of it.
    pub(crate) fn leave(&self, source: &Source, at: PortAt) {
        if self.is_free_of_claims(at.number) {
            return;
        }
        if !at.udp && self.is_added(at.number) {
            // It was counted, so the port was not given back.
            if let Some(count) = self.flows.get(usize::from(at.number)) {
                count.fetch_sub(1, Ordering::SeqCst);
            }
            return;
        }
        let (mut source, mut ports) = self.lock(source);
        for port in at.ports() {
            if let Some(claim) = ports.get_mut(&port) {
                claim.users = claim.users.saturating_sub(1);
            }
            self.release_unused(&mut source, &mut ports, port);
        }
    }

    /// The broker's answer.
    pub(crate) fn heard(&self, port: SharedPort, refused: Option<ClaimRefused>, now_us: u64) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claim) = ports.get_mut(&port)
            && matches!(claim.state, State::Asked(_))
        {
            claim.state = refused.map_or(State::Held, State::Refused);
            if claim.users == 0 {
                claim.unheard_us = now_us;
                self.unheard_us.fetch_min(now_us, Ordering::Relaxed);
            }
        }
    }

    /// Gives up the answers that none has come for: the process that asked was killed before it
    /// could call again.
    #[cold]
    fn forget_unheard(&self, source: &Source, now_us: u64) {
        let (mut source, mut ports) = self.lock(source);
        let is_unheard = |claim: &Claim| claim.unheard_us.saturating_add(FORGOTTEN_US) <= now_us;
        let unheard = ports.iter().filter(|(_, claim)| is_unheard(claim)).map(|(port, _)| *port);
        for port in unheard.collect::<Vec<_>>() {
            if let Some(claim) = ports.get_mut(&port) {
                claim.unheard_us = NONE;
            }
            if ports.get(&port).is_some_and(|claim| matches!(claim.state, State::Refused(_))) {
                ports.remove(&port);
            }
            self.release_unused(&mut source, &mut ports, port);
        }
        let left = ports.values().map(|claim| claim.unheard_us).min().unwrap_or(NONE);
        self.unheard_us.store(left, Ordering::Relaxed);
    }

    /// When [`Claims::forget_unheard`] has something to do, µs.
    fn forgets_us(&self) -> Option<u64> {
        let oldest_us = self.unheard_us.load(Ordering::Relaxed);
        (oldest_us != NONE).then_some(oldest_us.saturating_add(FORGOTTEN_US))
    }

    /// A flow of a local port of TCP begins.
    #[inline]
    pub(crate) fn flow_begins(&self, port: u16) {
        if let Some(count) = self.flows.get(usize::from(port)) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A flow of a local port of TCP is gone.
    #[inline]
    pub(crate) fn flow_ends(&self, source: &Source, port: u16, now_us: u64) {
        let Some(count) = self.flows.get(usize::from(port)) else { return };
        if count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.last_flow_ended(source, port, now_us);
        }
    }

    #[cold]
    fn last_flow_ended(&self, source: &Source, number: u16, now_us: u64) {
        if self.is_added(number) {
            return self.look_for_unused(source, now_us);
        }
        if !self.is_free_of_claims(number) {
            let (mut source, mut ports) = self.lock(source);
            // Flows are not counted by family.
            for v6 in [false, true] {
                self.release_unused(&mut source, &mut ports, SharedPort { udp: false, v6, number });
            }
        }
    }

    fn release_unused(
        &self,
        source: &mut Option<Box<dyn UpdateSource>>,
        ports: &mut Ports,
        port: SharedPort,
    ) {
        let flows = self.flows.get(usize::from(port.number));
        let flows = flows.map_or(0, |count| count.load(Ordering::Relaxed));
        let is_over = |claim: &Claim| claim.users == 0 && claim.state == State::Held;
        if (port.udp || flows == 0) && ports.get(&port).is_some_and(is_over) {
            ports.remove(&port);
            say(source, &FromImage::Release(port));
        }
    }

    /// Both locks, always in this order: so claims and releases reach the broker in the order in
    /// which they were decided, and its answers, which are read under the first lock, find no
    /// thread that waits for that one.
    fn lock<'a>(&'a self, source: &'a Source) -> (SourceGuard<'a>, PortsGuard<'a>) {
        let source = source.lock().unwrap_or_else(PoisonError::into_inner);
        (source, self.ports.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn say(source: &mut Option<Box<dyn UpdateSource>>, message: &FromImage) {
    if let Some(source) = source {
        // A question that is lost is asked again, and what is given back is not lost.
        let _ = source.say(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{FromBroker, UpdateOutcome};
    use ix_proto::Outcome;
    use std::os::fd::RawFd;
    use std::sync::Arc;

    struct Broker(Arc<Mutex<Vec<FromImage>>>);

    impl UpdateSource for Broker {
        fn fd(&self) -> RawFd {
            -1
        }
        fn next(&mut self) -> Option<FromBroker> {
            None
        }
        fn tell(&mut self, _: usize, _: UpdateOutcome) {}
        fn tell_outcome(&mut self, _: u64, _: &Outcome) {}
        fn tell_surveyed(&mut self, _: u64) {}
        fn say(&mut self, message: &FromImage) -> bool {
            self.0.lock().unwrap().push(message.clone());
            true
        }
    }

    const WEB: SharedPort = SharedPort { udp: false, v6: false, number: 80 };
    const WEB_V6: SharedPort = SharedPort { v6: true, ..WEB };
    const AT: PortAt = PortAt { udp: false, addr: IpAddr::UNSPECIFIED, number: 80 };

    #[test]
    fn a_port_is_claimed_once_and_released_after_its_last_flow() {
        let said: Arc<Mutex<Vec<FromImage>>> = Arc::default();
        let source: Source = Mutex::new(Some(Box::new(Broker(said.clone()))));
        let config =
            Config { shares_address: true, local_ports: (40_000, 40_063), ..Config::default() };
        let claims = Claims::new(&config);
        let heard = || std::mem::take(&mut *said.lock().unwrap());
        // Two threads listen.
        assert_eq!(claims.enter(&source, AT, 0), Err(CallError::Again));
        assert_eq!(claims.enter(&source, AT, 1), Err(CallError::Again));
        assert_eq!(heard(), [FromImage::Claim(WEB)]);
        assert_eq!(claims.enter(&source, AT, AGAIN_US), Err(CallError::Again));
        assert_eq!(heard(), [FromImage::Claim(WEB)], "it may have been lost");
        claims.heard(WEB, None, 0);
        assert_eq!(claims.enter(&source, AT, 2), Ok(()));
        assert_eq!(claims.enter(&source, AT, 2), Ok(()));
        claims.flow_begins(80);
        claims.leave(&source, AT);
        claims.leave(&source, AT);
        assert_eq!(heard(), [], "a connection lives on");
        claims.flow_ends(&source, 80, 2);
        assert_eq!(heard(), [FromImage::Release(WEB)]);
        // Linux has it now.
        assert_eq!(claims.enter(&source, AT, 3), Err(CallError::Again));
        claims.heard(WEB, Some(ClaimRefused::InUse), 0);
        assert_eq!(claims.enter(&source, AT, 4), Err(CallError::InUse));
        assert_eq!(claims.enter(&source, AT, 5), Err(CallError::Again), "asked anew");
        // The block is IX's from the start.
        let outgoing = PortAt { number: 40_001, ..AT };
        assert_eq!(claims.enter(&source, outgoing, 6), Ok(()));
        assert_eq!(claims.datagram_ports(), 40_000..=40_063);
    }

    #[test]
    fn ports_of_outgoing_connections_come_on_demand_and_go_back() {
        let said: Arc<Mutex<Vec<FromImage>>> = Arc::default();
        let source: Source = Mutex::new(Some(Box::new(Broker(said.clone()))));
        let config =
            Config { shares_address: true, local_ports: (40_000, 40_063), ..Config::default() };
        let claims = Claims::new(&config);
        let heard = || std::mem::take(&mut *said.lock().unwrap());
        let outgoing = claims.outgoing().expect("it shares");
        assert!(claims.want_more(&source, 0) && claims.want_more(&source, 1));
        assert_eq!(heard(), [FromImage::WantPorts { count: 64 }], "once");
        outgoing.heard((50_000, 50_063), 2);
        assert_eq!(outgoing.all(), [(40_000, 40_063), (50_000, 50_063)]);
        assert!(claims.is_still_outgoing(50_063) && !claims.is_still_outgoing(50_064));
        assert!(!claims.datagram_ports().contains(&50_000), "UDP has those of the block");
        assert!(claims.want_more(&source, 3));
        assert_eq!(heard(), [FromImage::WantPorts { count: 128 }], "as many again");
        outgoing.heard((0, 0), 4);
        assert!(!claims.want_more(&source, 5), "there are no more");
        // A flow, and a listener that the program has opened there by chance.
        claims.flow_begins(50_001);
        let listens = PortAt { number: 50_002, ..AT };
        assert_eq!(claims.enter(&source, listens, 6), Ok(()));
        let later_us = 2 * 10_000_000;
        claims.flow_ends(&source, 50_001, later_us);
        assert_eq!(heard(), [], "the listener stays");
        claims.leave(&source, listens);
        claims.look_for_unused(&source, 5_000_000);
        assert_eq!(heard(), [], "it is kept for a while");
        claims.look_for_unused(&source, later_us);
        assert_eq!(heard(), [FromImage::ReturnPorts { first: 50_000, last: 50_063 }]);
        assert!(!claims.is_still_outgoing(50_001) && outgoing.all() == [(40_000, 40_063)]);
    }

    #[test]
    fn families_are_claimed_by_themselves_and_at_any_address_both() {
        let said: Arc<Mutex<Vec<FromImage>>> = Arc::default();
        let source: Source = Mutex::new(Some(Box::new(Broker(said.clone()))));
        let config =
            Config { shares_address: true, local_ports: (40_000, 40_063), ..Config::default() };
        let claims = Claims::new(&config);
        let heard = || std::mem::take(&mut *said.lock().unwrap());
        let (again, in_use) = (Err(CallError::Again), Err(CallError::InUse));
        let at = |addr| PortAt { addr, ..AT };
        let (v6, any) = (at(IpAddr::EVERY_V6), at(IpAddr::UNSPECIFIED_V6));
        // Linux has the port of IPv4: that of IPv6 can be had.
        assert_eq!(claims.enter(&source, v6, 0), again);
        assert_eq!(heard(), [FromImage::Claim(WEB_V6)]);
        claims.heard(WEB_V6, None, 0);
        assert_eq!(claims.enter(&source, v6, 1), Ok(()));
        // Both cannot, and what IX has stays.
        assert_eq!(claims.enter(&source, any, 2), again);
        assert_eq!(heard(), [FromImage::Claim(WEB)]);
        claims.heard(WEB, Some(ClaimRefused::InUse), 0);
        assert_eq!(claims.enter(&source, any, 3), in_use);
        assert_eq!(heard(), []);
        claims.leave(&source, v6);
        assert_eq!(heard(), [FromImage::Release(WEB_V6)]);
        // One of both is answered later, and is given back.
        assert_eq!(claims.enter(&source, any, 4), again);
        assert_eq!(heard(), [FromImage::Claim(WEB), FromImage::Claim(WEB_V6)]);
        claims.heard(WEB, Some(ClaimRefused::InUse), 0);
        assert_eq!(claims.enter(&source, any, 5), again, "not all is known");
        claims.heard(WEB_V6, None, 0);
        assert_eq!(claims.enter(&source, any, 6), in_use);
        assert_eq!(heard(), [FromImage::Release(WEB_V6)]);
        // Linux has let go of it.
        assert_eq!(claims.enter(&source, any, 7), again);
        assert_eq!(heard(), [FromImage::Claim(WEB), FromImage::Claim(WEB_V6)]);
        claims.heard(WEB, None, 0);
        claims.heard(WEB_V6, None, 0);
        assert_eq!(claims.enter(&source, any, 8), Ok(()));
        claims.flow_begins(80);
        claims.leave(&source, any);
        assert_eq!(heard(), [], "a connection lives on");
        claims.flow_ends(&source, 80, 9);
        assert_eq!(heard(), [FromImage::Release(WEB), FromImage::Release(WEB_V6)]);
        // A connection from a named port has the family of its address.
        let from = PortAt { addr: "2001:db8::2".parse().unwrap(), ..AT };
        assert_eq!(claims.enter(&source, from, 10), again);
        assert_eq!(heard(), [FromImage::Claim(WEB_V6)]);
    }

    /// The process that asked is killed before it hears the answer.
    #[test]
    fn a_port_whose_asker_is_gone_is_released() {
        let said: Arc<Mutex<Vec<FromImage>>> = Arc::default();
        let source: Source = Mutex::new(Some(Box::new(Broker(said.clone()))));
        let config =
            Config { shares_address: true, local_ports: (40_000, 40_063), ..Config::default() };
        let claims = Claims::new(&config);
        let heard = || std::mem::take(&mut *said.lock().unwrap());
        let other = PortAt { number: 81, ..AT };
        let other_port = SharedPort { number: 81, ..WEB };
        let udp = PortAt { udp: true, ..AT };
        let udp_port = SharedPort { udp: true, ..WEB };
        for at in [AT, other, udp] {
            assert_eq!(claims.enter(&source, at, 0), Err(CallError::Again));
        }
        assert_eq!(claims.look_again_us(5), None, "the broker has not answered");
        claims.heard(WEB, None, 10);
        claims.heard(other_port, None, 20);
        claims.heard(udp_port, Some(ClaimRefused::InUse), 30);
        assert_eq!(heard().len(), 3);
        // The second one is there still, and so is its listener.
        assert_eq!(claims.enter(&source, other, 40), Ok(()));
        assert_eq!(claims.look_again_us(40), Some(10 + FORGOTTEN_US));
        claims.look_for_unused(&source, 9 + FORGOTTEN_US);
        assert_eq!(heard(), []);
        claims.look_for_unused(&source, 10 + FORGOTTEN_US);
        assert_eq!(heard(), [FromImage::Release(WEB)]);
        assert_eq!(claims.look_again_us(40), Some(30 + FORGOTTEN_US));
        claims.look_for_unused(&source, 30 + FORGOTTEN_US);
        assert_eq!((heard(), claims.look_again_us(40)), (vec![], None));
        // Linux may have let go of it meanwhile.
        assert_eq!(claims.enter(&source, udp, 50), Err(CallError::Again));
        assert_eq!(heard(), [FromImage::Claim(udp_port)]);
        claims.leave(&source, other);
        assert_eq!(heard(), [FromImage::Release(other_port)]);
        // An asker that is only slow asks anew.
        assert_eq!(claims.enter(&source, AT, 60), Err(CallError::Again));
    }

    #[test]
    fn ports_of_own_addresses_need_no_claims() {
        let claims = Claims::new(&Config::default());
        assert_eq!(claims.enter(&Mutex::new(None), AT, 0), Ok(()));
        assert_eq!(claims.datagram_ports(), EPHEMERAL_PORTS);
    }
}
