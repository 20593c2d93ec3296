//! Watches the interface between application and dataplane: every call, every result, every event.
//!
//! What the library would forgive (an event for a flow that has ended) is a violation here. Flows
//! move with their groups from thread to thread, so all threads of a host share one [`Wall`].
use ix_abi::{Call, CallError, CallSlot, Event, EventSlot, RxData, group_of};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// Counts of one flow.
#[derive(Default)]
struct Flow {
    /// `CONNECTED` is still missing.
    connecting: bool,
    /// `ACCEPT` is still missing.
    knocking: bool,
    /// Bytes that `SENDV` took, and that `SENT` reported.
    taken: u64,
    acked: u64,
    /// Bytes that `RECV` delivered, and that `RECV_DONE` gave back.
    received: u64,
    given_back: u64,
    eof: bool,
}

impl Flow {
    fn was_acked(&mut self, bytes: u32) -> Result<(), &'static str> {
        self.acked += u64::from(bytes);
        if self.acked > self.taken { Err("more was acknowledged than sent") } else { Ok(()) }
    }
}

/// Number of ended handles that are remembered.
const GONE_MAX: usize = 256;

/// State of the interface of one host.
pub struct Wall {
    flows: HashMap<u64, Flow>,
    /// Handles of flows that have ended, the latest last.
    gone: VecDeque<u64>,
    /// The thread on which the application has a flow group; `None` while it moves.
    homes: Vec<Option<usize>>,
}

impl Wall {
    /// With the initial places of the flow groups.
    pub fn new(homes: impl Iterator<Item = usize>) -> Rc<RefCell<Wall>> {
        let homes = homes.map(Some).collect();
        let (flows, gone) = (HashMap::new(), VecDeque::new());
        Rc::new(RefCell::new(Wall { flows, gone, homes }))
    }

    /// Ends a flow; returns whether there was one.
    fn bury(&mut self, handle: u64) -> bool {
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(handle);
        self.flows.remove(&handle).is_some()
    }

    /// A handle of an ended flow; `pick` chooses a number below its argument.
    pub fn stale(&self, pick: impl FnOnce(u64) -> u64) -> Option<u64> {
        let index = pick(self.gone.len().max(1) as u64);
        self.gone.get(index as usize).copied().filter(|handle| !self.flows.contains_key(handle))
    }

    /// Flows that the application holds.
    pub fn live(&self) -> usize {
        self.flows.len()
    }
}

/// The auditor of one elastic thread's arrays.
pub struct Audit {
    wall: Rc<RefCell<Wall>>,
    thread: usize,
    /// Groups that left in the events before these calls: the calls are the last on them.
    leaving: Vec<usize>,
    rx_area: Range<u64>,
    violations: Vec<String>,
}

impl Audit {
    /// For this thread; received data must be within `rx_area`.
    pub fn new(rx_area: Range<u64>, wall: Rc<RefCell<Wall>>, thread: usize) -> Audit {
        Audit { wall, thread, leaving: Vec::new(), rx_area, violations: Vec::new() }
    }

    /// As [`Wall::stale`].
    pub fn stale(&self, pick: impl FnOnce(u64) -> u64) -> Option<u64> {
        self.wall.borrow().stale(pick)
    }

    /// Violations since the last call.
    pub fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Checks the calls of a batch, with their results.
    pub fn calls(&mut self, slots: impl Iterator<Item = CallSlot>) {
        let wall = self.wall.clone();
        let wall = &mut *wall.borrow_mut();
        for slot in slots {
            match (Call::decode(&slot), CallError::check(slot.ret)) {
                (Ok(call), Ok(ret)) => self.call_succeeded(wall, &call, ret),
                (Ok(call), Err(error)) => self.call_failed(wall, &call, error),
                (Err(_), _) => {
                    self.wrong(format!("the library wrote {slot:x?}, which is not a call"))
                }
            }
        }
        self.leaving.clear();
    }

    /// Whether flows of a handle's group belong to this thread now.
    fn is_home(&self, wall: &Wall, handle: u64) -> bool {
        let group = group_of(handle) as usize;
        wall.homes.get(group).is_some_and(|home| *home == Some(self.thread))
    }

    fn call_succeeded(&mut self, wall: &mut Wall, call: &Call, ret: u64) {
        let leaving = |handle| self.leaving.contains(&(group_of(handle) as usize));
        if let Some(named) = named_flow(call, ret)
            && !leaving(named)
            && !self.is_home(wall, named)
        {
            self.wrong(format!("{call:x?} on {named:#x}, which is another thread's"));
        }
        match *call {
            Call::Connect { .. } => {
                let flow = Flow { connecting: true, ..Flow::default() };
                if ret == 0 || wall.flows.insert(ret, flow).is_some() {
                    self.wrong(format!(
                        "connect returned handle {ret:#x}, which is invalid or in use"
                    ));
                }
            }
            Call::Accept { handle, .. } => match wall.flows.get_mut(&handle) {
                Some(flow) if flow.knocking => flow.knocking = false,
                _ => self.wrong(format!("accepted {handle:#x}, which has not knocked")),
            },
            Call::Reject { handle } | Call::Close { handle } | Call::Abort { handle }
                if !wall.bury(handle) =>
            {
                self.wrong(format!("{call:x?} ended a flow that has already ended"));
            }
            Call::SendV { handle, done, .. } => match wall.flows.get_mut(&handle) {
                Some(flow) => {
                    flow.taken += ret;
                    self.gave_back(handle, flow, done);
                }
                None => self.wrong(format!("sendv on {handle:#x}, which has ended, was taken")),
            },
            Call::RecvDone { handle, bytes } => match wall.flows.get_mut(&handle) {
                Some(flow) => self.gave_back(handle, flow, bytes),
                None => self.wrong(format!("recv_done on {handle:#x}, which has ended, succeeded")),
            },
            _ => {}
        }
    }

    fn gave_back(&mut self, handle: u64, flow: &mut Flow, bytes: u64) {
        flow.given_back += bytes;
        if flow.given_back > flow.received {
            self.wrong(format!("{handle:#x}: more bytes were given back than received"));
        }
    }

    fn call_failed(&mut self, wall: &mut Wall, call: &Call, error: CallError) {
        let is_connect = matches!(call, Call::Connect { .. });
        let is_accept = matches!(call, Call::Accept { .. });
        let on_flow = match *call {
            Call::Accept { handle, .. }
            | Call::SendV { handle, .. }
            | Call::RecvDone { handle, .. }
            | Call::Shutdown { handle }
            | Call::Close { handle }
            | Call::Abort { handle } => Some(handle),
            _ => None,
        };
        let flow = call.handle().and_then(|handle| wall.flows.get(&handle));
        let forgivable = match error {
            CallError::NoResource | CallError::Unreachable => true,
            // Its peer reset it before it was accepted, which no event reports.
            CallError::BadHandle if flow.is_some_and(|flow| flow.knocking) => {
                is_accept && call.handle().is_some_and(|handle| wall.bury(handle))
            }
            // Only for a flow that has ended.
            CallError::BadHandle | CallError::Moved => on_flow.is_none() || flow.is_none(),
            CallError::State => on_flow.is_some(),
            CallError::InUse => is_connect,
            // From a port whose flow group belongs to another thread.
            CallError::Invalid => {
                matches!(call, Call::Connect { local_port, .. } if *local_port != 0)
            }
            _ => false,
        };
        if !forgivable {
            self.wrong(format!("{call:x?} failed: {error}"));
        }
    }

    fn group_leaves(&mut self, wall: &mut Wall, group: u32) -> Result<(), &'static str> {
        let home = wall.homes.get_mut(group as usize).ok_or("there is no such group")?;
        if *home != Some(self.thread) {
            return Err("the group was not here to leave");
        }
        *home = None;
        self.leaving.push(group as usize);
        Ok(())
    }

    fn group_arrived(&mut self, wall: &mut Wall, group: u32) -> Result<(), &'static str> {
        let home = wall.homes.get_mut(group as usize).ok_or("there is no such group")?;
        match home {
            Some(_) => Err("the group had nowhere to come from"),
            None => {
                *home = Some(self.thread);
                Ok(())
            }
        }
    }

    /// Checks the events of a cycle, in order.
    pub fn events(&mut self, slots: impl Iterator<Item = EventSlot>) {
        let wall = self.wall.clone();
        let wall = &mut *wall.borrow_mut();
        for slot in slots {
            let outcome = match Event::decode(&slot) {
                Ok(event) => self.event(wall, &event),
                Err(_) => Err("no such event"),
            };
            if let Err(what) = outcome {
                self.wrong(format!("{slot:x?}: {what}"));
            }
        }
    }

    fn event(&mut self, wall: &mut Wall, event: &Event) -> Result<(), &'static str> {
        let handle = match *event {
            Event::GroupLeaves { group, .. } => return self.group_leaves(wall, group),
            Event::GroupArrived { group, .. } => return self.group_arrived(wall, group),
            Event::Knock { handle, .. }
            | Event::Connected { handle, .. }
            | Event::Recv { handle, .. }
            | Event::Eof { handle, .. }
            | Event::Sent { handle, .. }
            | Event::FlowError { handle, .. }
            | Event::Dead { handle, .. } => handle,
            _ => return Ok(()),
        };
        if handle != 0 && !self.is_home(wall, handle) {
            return Err("its group is another thread's");
        }
        match event {
            Event::Knock { .. } => {
                let flow = Flow { knocking: true, ..Flow::default() };
                return match wall.flows.insert(handle, flow) {
                    None if handle != 0 => Ok(()),
                    _ => Err("the handle is in use"),
                };
            }
            Event::FlowError { .. } => return Ok(()),
            _ => {}
        }
        let area = self.rx_area.clone();
        let flow = wall.flows.get_mut(&handle).ok_or("there is no such flow (any more)")?;
        if let Event::Connected { outcome, .. } = event {
            if !std::mem::take(&mut flow.connecting) {
                return Err("it was connected already");
            }
            if outcome.is_err() {
                wall.bury(handle);
            }
            return Ok(());
        }
        if flow.connecting || (flow.knocking && !matches!(event, Event::Dead { .. })) {
            return Err("the flow is not open yet");
        }
        match *event {
            Event::Recv { data: RxData { addr, len }, news, .. } => {
                let end = addr.saturating_add(len.into());
                if len == 0 || addr < area.start || end > area.end {
                    return Err("data outside receive memory, or none");
                }
                if flow.eof {
                    return Err("data after the end");
                }
                flow.received += u64::from(len);
                return flow.was_acked(news.bytes());
            }
            Event::Eof { .. } => {
                if std::mem::replace(&mut flow.eof, true) {
                    return Err("a second end");
                }
            }
            Event::Sent { bytes, .. } => return flow.was_acked(bytes),
            _ => {
                wall.bury(handle);
            }
        }
        Ok(())
    }
}

/// The flow of a successful call: its argument, or the one that it opened.
fn named_flow(call: &Call, ret: u64) -> Option<u64> {
    match call {
        Call::Connect { .. } => Some(ret),
        Call::SetOpt { .. } | Call::GetInfo { .. } => None,
        call => call.handle(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_abi::{DeadReason, Endpoint, SentNews, SgArray};

    const FLOW: u64 = 7;
    const COOKIE: u64 = 0;
    const KNOCK: Event =
        Event::Knock { listener: 0, handle: FLOW, peer: Endpoint { addr: [0; 16], port: 0 } };
    const CONNECTED: Event = Event::Connected { cookie: COOKIE, handle: FLOW, outcome: Ok(()) };
    const EOF: Event = Event::Eof { cookie: COOKIE, handle: FLOW };
    const DEAD: Event = Event::Dead { cookie: COOKIE, handle: FLOW, reason: DeadReason::Closed };
    const LEAVES: Event = Event::GroupLeaves { group: 0, to: 0 };
    const ARRIVED: Event = Event::GroupArrived { group: 0, from: 0 };
    const ACCEPT: Call = Call::Accept { handle: FLOW, cookie: 0 };
    const CLOSE: Call = Call::Close { handle: FLOW };
    const SENDV: Call = sendv_after(0);

    const fn sendv_after(done: u64) -> Call {
        Call::SendV {
            handle: FLOW,
            sg: SgArray { addr: 0, entries: 0 },
            fin: false,
            eor: false,
            done,
        }
    }

    fn recv(len: u32, addr: u64) -> Event {
        recv_and_sent(len, addr, 0)
    }

    fn recv_and_sent(len: u32, addr: u64, bytes: u32) -> Event {
        let news = SentNews::new(bytes, 0);
        Event::Recv { cookie: COOKIE, handle: FLOW, data: RxData { addr, len }, news }
    }

    fn sent(bytes: u32) -> Event {
        Event::Sent { cookie: COOKIE, handle: FLOW, bytes, window: 0 }
    }

    fn recv_done(bytes: u64) -> Call {
        Call::RecvDone { handle: FLOW, bytes }
    }

    fn tell(audit: &mut Audit, events: &[Event]) {
        audit.events(events.iter().map(|event| event.encode()));
    }

    fn ask(audit: &mut Audit, calls: &[(Call, Result<u64, CallError>)]) {
        let slot = |(call, result): &(Call, Result<u64, CallError>)| {
            let ret = CallError::encode(*result);
            CallSlot { ret, ..call.encode() }
        };
        audit.calls(calls.iter().map(slot));
    }

    fn opened() -> Audit {
        let mut audit = Audit::new(100..200, Wall::new([0, 1].into_iter()), 0);
        tell(&mut audit, &[KNOCK]);
        ask(&mut audit, &[(ACCEPT, Ok(0))]);
        assert!(audit.take_violations().is_empty());
        audit
    }

    #[test]
    fn an_orderly_flow_is_in_order() {
        let mut audit = opened();
        tell(&mut audit, &[recv(50, 150), EOF]);
        ask(&mut audit, &[(recv_done(50), Ok(0)), (SENDV, Ok(10))]);
        tell(&mut audit, &[sent(10), DEAD]);
        ask(&mut audit, &[(CLOSE, Err(CallError::BadHandle))]);
        assert_eq!(audit.take_violations(), Vec::<String>::new());
        assert_eq!(audit.wall.borrow().live(), 0);
    }

    #[test]
    fn what_is_told_and_asked_together_counts_as_told_and_asked_apart() {
        let mut audit = opened();
        tell(&mut audit, &[recv(50, 150)]);
        ask(&mut audit, &[(sendv_after(50), Ok(10))]);
        tell(&mut audit, &[recv_and_sent(20, 150, 10)]);
        ask(&mut audit, &[(recv_done(20), Ok(0))]);
        assert_eq!(audit.take_violations(), Vec::<String>::new());
        tell(&mut audit, &[recv_and_sent(1, 150, 1)]);
        ask(&mut audit, &[(sendv_after(2), Ok(1))]);
        assert_eq!(audit.take_violations().len(), 2);
    }

    #[test]
    fn each_disorder_is_seen() {
        for events in [
            vec![KNOCK],
            vec![recv(0, 150)],
            vec![recv(51, 150)],
            vec![recv(1, 99)],
            vec![EOF, recv(1, 100)],
            vec![EOF, EOF],
            vec![sent(1)],
            vec![DEAD, DEAD],
            vec![CONNECTED],
        ] {
            let mut audit = opened();
            tell(&mut audit, &events);
            assert_eq!(audit.take_violations().len(), 1, "{events:?}");
        }
        for calls in [
            vec![(ACCEPT, Ok(0))],
            vec![(recv_done(1), Ok(0))],
            vec![(CLOSE, Ok(0)), (SENDV, Ok(5))],
            vec![(SENDV, Err(CallError::Fault))],
            vec![(SENDV, Err(CallError::BadHandle))],
        ] {
            let mut audit = opened();
            ask(&mut audit, &calls);
            assert_eq!(audit.take_violations().len(), 1, "{calls:?}");
        }
    }

    /// While a group moves every event for it is wrong, and every call except those of the batch
    /// that was being written.
    #[test]
    fn groups_have_one_home() {
        let wall = Wall::new([0, 1].into_iter());
        let mut old = Audit::new(100..200, wall.clone(), 0);
        let mut new = Audit::new(100..200, wall, 1);
        tell(&mut old, &[KNOCK]);
        ask(&mut old, &[(ACCEPT, Ok(0))]);
        tell(&mut old, &[LEAVES]);
        ask(&mut old, &[(SENDV, Ok(1))]);
        assert!(old.take_violations().is_empty());
        ask(&mut old, &[(SENDV, Ok(1))]);
        tell(&mut new, &[recv(1, 100)]);
        assert_eq!((old.take_violations().len(), new.take_violations().len()), (1, 1));
        tell(&mut new, &[ARRIVED, recv(1, 100)]);
        ask(&mut new, &[(recv_done(1), Ok(0))]);
        assert!(new.take_violations().is_empty());
        tell(&mut old, &[LEAVES, recv(1, 100)]);
        tell(&mut new, &[ARRIVED]);
        assert_eq!((old.take_violations().len(), new.take_violations().len()), (2, 1));
    }
}
