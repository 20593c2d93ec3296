//! Watches the wall between application and dataplane: every call, every answer, every event.
//!
//! What the library would forgive (an event for a flow that is gone) is a violation here. Flows move
//! with their groups from thread to thread, so all threads of a host share one [`Wall`].
use ix_abi::{Call, Event, call_op, error, event_kind, group_of, migrated};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// What passed the wall for one flow.
#[derive(Default)]
struct Flow {
    /// `CONNECTED` is still to come.
    connecting: bool,
    /// `ACCEPT` is still to come.
    knocking: bool,
    /// Bytes that `SENDV` took, and that `SENT` reported.
    taken: u64,
    acked: u64,
    /// Bytes that `RECV` brought, and that `RECV_DONE` gave back.
    received: u64,
    given_back: u64,
    eof: bool,
}

/// So many handles are remembered.
const GONE_MAX: usize = 256;

/// What passed the wall of one host.
pub struct Wall {
    flows: HashMap<u64, Flow>,
    /// Handles of flows that have ended, the latest at the end.
    gone: VecDeque<u64>,
    /// On which thread the application hears of a flow group; `None` while it moves.
    homes: Vec<Option<usize>>,
}

impl Wall {
    /// With flow groups where they are at first.
    pub fn new(homes: impl Iterator<Item = usize>) -> Rc<RefCell<Wall>> {
        let homes = homes.map(Some).collect();
        let (flows, gone) = (HashMap::new(), VecDeque::new());
        Rc::new(RefCell::new(Wall { flows, gone, homes }))
    }

    /// A flow has ended; whether there was one.
    fn bury(&mut self, handle: u64) -> bool {
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(handle);
        self.flows.remove(&handle).is_some()
    }

    /// A handle that means nothing any more; `pick` chooses one below its argument.
    pub fn stale(&self, pick: impl FnOnce(u64) -> u64) -> Option<u64> {
        let index = pick(self.gone.len().max(1) as u64);
        self.gone.get(index as usize).copied().filter(|handle| !self.flows.contains_key(handle))
    }

    /// Flows that the application holds.
    pub fn live(&self) -> usize {
        self.flows.len()
    }
}

/// The guard of one elastic thread's arrays.
pub struct Audit {
    wall: Rc<RefCell<Wall>>,
    thread: usize,
    /// Groups that left in the events before these calls: the calls are the last on them.
    leaving: Vec<usize>,
    rx_area: Range<u64>,
    violations: Vec<String>,
}

impl Audit {
    /// A guard of this thread's; received data lies within `rx_area`.
    pub fn new(rx_area: Range<u64>, wall: Rc<RefCell<Wall>>, thread: usize) -> Audit {
        Audit { wall, thread, leaving: Vec::new(), rx_area, violations: Vec::new() }
    }

    /// As [`Wall::stale`].
    pub fn stale(&self, pick: impl FnOnce(u64) -> u64) -> Option<u64> {
        self.wall.borrow().stale(pick)
    }

    /// What was wrong since the last time.
    pub fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Calls of a batch, with their answers.
    pub fn calls<'a>(&mut self, calls: impl Iterator<Item = &'a Call>) {
        let wall = self.wall.clone();
        let wall = &mut *wall.borrow_mut();
        for call in calls {
            match call.ret {
                ret if ret >= 0 => self.call_succeeded(wall, call, ret as u64),
                ret => self.call_failed(wall, call, -ret),
            }
        }
        self.leaving.clear();
    }

    /// Whether flows of a handle's group are this thread's now.
    fn is_home(&self, wall: &Wall, handle: u64) -> bool {
        let group = group_of(handle) as usize;
        wall.homes.get(group).is_some_and(|home| *home == Some(self.thread))
    }

    fn call_succeeded(&mut self, wall: &mut Wall, call: &Call, ret: u64) {
        let handle = call.args[0];
        let named = if call.op == call_op::CONNECT { ret } else { handle };
        let leaving = self.leaving.contains(&(group_of(named) as usize));
        if names_flow(call.op) && !leaving && !self.is_home(wall, named) {
            self.wrong(format!("call {} on {named:#x}, which is another thread's", call.op));
        }
        match call.op {
            call_op::CONNECT => {
                let flow = Flow { connecting: true, ..Flow::default() };
                if ret == 0 || wall.flows.insert(ret, flow).is_some() {
                    self.wrong(format!(
                        "connect answered handle {ret:#x}, which is none or in use"
                    ));
                }
            }
            call_op::ACCEPT => match wall.flows.get_mut(&handle) {
                Some(flow) if flow.knocking => flow.knocking = false,
                _ => self.wrong(format!("accepted {handle:#x}, which does not knock")),
            },
            call_op::REJECT | call_op::CLOSE | call_op::ABORT if !wall.bury(handle) => {
                self.wrong(format!("ended {handle:#x} (call {}), which is gone", call.op));
            }
            call_op::SENDV => match wall.flows.get_mut(&handle) {
                Some(flow) => flow.taken += ret,
                None => self.wrong(format!("sendv on {handle:#x}, which is gone, was taken")),
            },
            call_op::RECV_DONE => match wall.flows.get_mut(&handle) {
                Some(flow) => {
                    flow.given_back += call.args[1];
                    if flow.given_back > flow.received {
                        self.wrong(format!("{handle:#x}: more was given back than came"));
                    }
                }
                None => self.wrong(format!("recv_done on {handle:#x}, which is gone, succeeded")),
            },
            _ => {}
        }
    }

    fn call_failed(&mut self, wall: &mut Wall, call: &Call, code: i64) {
        let handle = call.args[0];
        let on_flow = matches!(
            call.op,
            call_op::ACCEPT
                | call_op::SENDV
                | call_op::RECV_DONE
                | call_op::SHUTDOWN
                | call_op::CLOSE
                | call_op::ABORT
        );
        let forgivable = match code {
            error::NO_RESOURCE | error::UNREACHABLE => true,
            // Its peer took it back before it was accepted, of which no event speaks.
            error::BAD_HANDLE if wall.flows.get(&handle).is_some_and(|flow| flow.knocking) => {
                call.op == call_op::ACCEPT && wall.bury(handle)
            }
            // Only for a flow that has died.
            error::BAD_HANDLE | error::MOVED => !on_flow || !wall.flows.contains_key(&handle),
            error::STATE => on_flow,
            error::IN_USE => call.op == call_op::CONNECT,
            // From a port whose flow group is another thread's.
            error::INVALID => call.op == call_op::CONNECT && call.args[4] != 0,
            _ => false,
        };
        if !forgivable {
            self.wrong(format!("call {} {:x?} was answered error {code}", call.op, call.args));
        }
    }

    fn migrated(&mut self, wall: &mut Wall, event: &Event) -> Result<(), &'static str> {
        let group = event.len as usize;
        let home = wall.homes.get_mut(group).ok_or("there is no such group")?;
        match (event.code, *home) {
            (migrated::LEAVES, Some(here)) if here == self.thread => {
                *home = None;
                self.leaving.push(group);
                Ok(())
            }
            (migrated::ARRIVED, None) => {
                *home = Some(self.thread);
                Ok(())
            }
            _ => Err("the group was not here to leave, or nowhere to come from"),
        }
    }

    /// Events of a cycle, in order.
    pub fn events<'a>(&mut self, events: impl Iterator<Item = &'a Event>) {
        let wall = self.wall.clone();
        let wall = &mut *wall.borrow_mut();
        for event in events {
            if let Err(what) = self.event(wall, event) {
                let (kind, handle) = (event.kind, event.handle);
                self.wrong(format!("event {kind} for {handle:#x}: {what}"));
            }
        }
    }

    fn event(&mut self, wall: &mut Wall, event: &Event) -> Result<(), &'static str> {
        let handle = event.handle;
        if event.kind == event_kind::MIGRATED {
            return self.migrated(wall, event);
        }
        if handle != 0 && !self.is_home(wall, handle) {
            return Err("its group is another thread's");
        }
        if event.kind == event_kind::KNOCK {
            let flow = Flow { knocking: true, ..Flow::default() };
            return match wall.flows.insert(handle, flow) {
                None if handle != 0 => Ok(()),
                _ => Err("the handle is in use"),
            };
        }
        let on_flow = matches!(
            event.kind,
            event_kind::CONNECTED
                | event_kind::RECV
                | event_kind::EOF
                | event_kind::SENT
                | event_kind::DEAD
        );
        if !on_flow {
            return Ok(());
        }
        let area = self.rx_area.clone();
        let flow = wall.flows.get_mut(&handle).ok_or("there is no such flow (any more)")?;
        if event.kind == event_kind::CONNECTED {
            if !std::mem::take(&mut flow.connecting) {
                return Err("it was connected already");
            }
            if event.code != 0 {
                wall.bury(handle);
            }
            return Ok(());
        }
        if flow.connecting || (flow.knocking && event.kind != event_kind::DEAD) {
            return Err("the flow is not open yet");
        }
        match event.kind {
            event_kind::RECV => {
                let end = event.data.saturating_add(event.len as u64);
                if event.len == 0 || event.data < area.start || end > area.end {
                    return Err("data outside receive memory, or none");
                }
                if flow.eof {
                    return Err("data after the end");
                }
                flow.received += event.len as u64;
            }
            event_kind::EOF => {
                if std::mem::replace(&mut flow.eof, true) {
                    return Err("a second end");
                }
            }
            event_kind::SENT => {
                flow.acked += event.len as u64;
                if flow.acked > flow.taken {
                    return Err("more was acknowledged than sent");
                }
            }
            _ => {
                wall.bury(handle);
            }
        }
        Ok(())
    }
}

/// Calls whose first argument, or whose answer, is a flow.
fn names_flow(op: u32) -> bool {
    matches!(
        op,
        call_op::CONNECT
            | call_op::ACCEPT
            | call_op::REJECT
            | call_op::SENDV
            | call_op::RECV_DONE
            | call_op::SHUTDOWN
            | call_op::CLOSE
            | call_op::ABORT
            | call_op::SET_COOKIE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u16, len: u32, data: u64) -> Event {
        Event { kind, len, data, handle: 7, ..Event::default() }
    }

    fn call(op: u32, arg: u64, ret: i64) -> Call {
        Call { op, ret, args: [7, arg, 0, 0, 0, 0], ..Call::default() }
    }

    fn opened() -> Audit {
        let mut audit = Audit::new(100..200, Wall::new([0, 1].into_iter()), 0);
        audit.events([event(event_kind::KNOCK, 0, 0)].iter());
        audit.calls([call(call_op::ACCEPT, 0, 0)].iter());
        assert!(audit.take_violations().is_empty());
        audit
    }

    #[test]
    fn an_orderly_flow_is_in_order() {
        let mut audit = opened();
        audit.events([event(event_kind::RECV, 50, 150), event(event_kind::EOF, 0, 0)].iter());
        audit.calls([call(call_op::RECV_DONE, 50, 0), call(call_op::SENDV, 0, 10)].iter());
        audit.events([event(event_kind::SENT, 10, 0), event(event_kind::DEAD, 0, 0)].iter());
        audit.calls([call(call_op::CLOSE, 0, -error::BAD_HANDLE)].iter());
        assert_eq!(audit.take_violations(), Vec::<String>::new());
        assert_eq!(audit.wall.borrow().live(), 0);
    }

    #[test]
    fn each_disorder_is_seen() {
        use event_kind::{DEAD, EOF, KNOCK, RECV, SENT};
        for events in [
            vec![event(KNOCK, 0, 0)],
            vec![event(RECV, 0, 150)],
            vec![event(RECV, 51, 150)],
            vec![event(RECV, 1, 99)],
            vec![event(EOF, 0, 0), event(RECV, 1, 100)],
            vec![event(EOF, 0, 0), event(EOF, 0, 0)],
            vec![event(SENT, 1, 0)],
            vec![event(DEAD, 0, 0), event(DEAD, 0, 0)],
            vec![event(event_kind::CONNECTED, 0, 0)],
        ] {
            let mut audit = opened();
            audit.events(events.iter());
            assert_eq!(audit.take_violations().len(), 1, "{events:?}");
        }
        for calls in [
            vec![call(call_op::ACCEPT, 0, 0)],
            vec![call(call_op::RECV_DONE, 1, 0)],
            vec![call(call_op::CLOSE, 0, 0), call(call_op::SENDV, 0, 5)],
            vec![call(call_op::SENDV, 0, -error::FAULT)],
            vec![call(call_op::SENDV, 0, -error::BAD_HANDLE)],
        ] {
            let mut audit = opened();
            audit.calls(calls.iter());
            assert_eq!(audit.take_violations().len(), 1, "{calls:?}");
        }
    }

    /// A group leaves, and comes elsewhere; what is said of it in between is wrong, but for the calls
    /// of the batch that was being written.
    #[test]
    fn groups_have_one_home() {
        let moved = |code| Event { kind: event_kind::MIGRATED, code, ..Event::default() };
        let wall = Wall::new([0, 1].into_iter());
        let mut old = Audit::new(100..200, wall.clone(), 0);
        let mut new = Audit::new(100..200, wall, 1);
        old.events([event(event_kind::KNOCK, 0, 0)].iter());
        old.calls([call(call_op::ACCEPT, 0, 0)].iter());
        old.events([moved(migrated::LEAVES)].iter());
        old.calls([call(call_op::SENDV, 0, 1)].iter());
        assert!(old.take_violations().is_empty());
        old.calls([call(call_op::SENDV, 0, 1)].iter());
        new.events([event(event_kind::RECV, 1, 100)].iter());
        assert_eq!((old.take_violations().len(), new.take_violations().len()), (1, 1));
        new.events([moved(migrated::ARRIVED), event(event_kind::RECV, 1, 100)].iter());
        new.calls([call(call_op::RECV_DONE, 1, 0)].iter());
        assert!(new.take_violations().is_empty());
        old.events([moved(migrated::LEAVES), event(event_kind::RECV, 1, 100)].iter());
        new.events([moved(migrated::ARRIVED)].iter());
        assert_eq!((old.take_violations().len(), new.take_violations().len()), (2, 1));
    }
}
