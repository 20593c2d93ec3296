//! Watches the wall between application and dataplane: every call, every answer, every event.
//!
//! What the library would forgive (an event for a flow that is gone) is a violation here.
use ix_abi::{Call, Event, call_op, error, event_kind};
use std::collections::HashMap;
use std::ops::Range;

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

/// The guard of one elastic thread's arrays.
pub struct Audit {
    flows: HashMap<u64, Flow>,
    rx_area: Range<u64>,
    violations: Vec<String>,
}

impl Audit {
    /// A guard; received data lies within `rx_area`.
    pub fn new(rx_area: Range<u64>) -> Audit {
        Audit { flows: HashMap::new(), rx_area, violations: Vec::new() }
    }

    /// Flows that the application holds.
    pub fn live(&self) -> usize {
        self.flows.len()
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
        for call in calls {
            match call.ret {
                ret if ret >= 0 => self.call_succeeded(call, ret as u64),
                ret => self.call_failed(call, -ret),
            }
        }
    }

    fn call_succeeded(&mut self, call: &Call, ret: u64) {
        let handle = call.args[0];
        match call.op {
            call_op::CONNECT => {
                let flow = Flow { connecting: true, ..Flow::default() };
                if ret == 0 || self.flows.insert(ret, flow).is_some() {
                    self.wrong(format!(
                        "connect answered handle {ret:#x}, which is none or in use"
                    ));
                }
            }
            call_op::ACCEPT => match self.flows.get_mut(&handle) {
                Some(flow) if flow.knocking => flow.knocking = false,
                _ => self.wrong(format!("accepted {handle:#x}, which does not knock")),
            },
            call_op::REJECT | call_op::CLOSE | call_op::ABORT
                if self.flows.remove(&handle).is_none() =>
            {
                self.wrong(format!("ended {handle:#x} (call {}), which is gone", call.op));
            }
            call_op::SENDV => match self.flows.get_mut(&handle) {
                Some(flow) => flow.taken += ret,
                None => self.wrong(format!("sendv on {handle:#x}, which is gone, was taken")),
            },
            call_op::RECV_DONE => match self.flows.get_mut(&handle) {
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

    fn call_failed(&mut self, call: &Call, code: i64) {
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
            // Only for a flow that has died.
            error::BAD_HANDLE => !on_flow || !self.flows.contains_key(&handle),
            error::STATE => on_flow,
            error::IN_USE => call.op == call_op::CONNECT,
            _ => false,
        };
        if !forgivable {
            self.wrong(format!("call {} {:x?} was answered error {code}", call.op, call.args));
        }
    }

    /// Events of a cycle, in order.
    pub fn events<'a>(&mut self, events: impl Iterator<Item = &'a Event>) {
        for event in events {
            if let Err(what) = self.event(event) {
                let (kind, handle) = (event.kind, event.handle);
                self.wrong(format!("event {kind} for {handle:#x}: {what}"));
            }
        }
    }

    fn event(&mut self, event: &Event) -> Result<(), &'static str> {
        let handle = event.handle;
        if event.kind == event_kind::KNOCK {
            let flow = Flow { knocking: true, ..Flow::default() };
            return match self.flows.insert(handle, flow) {
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
        let flow = self.flows.get_mut(&handle).ok_or("there is no such flow (any more)")?;
        if event.kind == event_kind::CONNECTED {
            if !std::mem::take(&mut flow.connecting) {
                return Err("it was connected already");
            }
            if event.code != 0 {
                self.flows.remove(&handle);
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
                self.flows.remove(&handle);
            }
        }
        Ok(())
    }
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
        let mut audit = Audit::new(100..200);
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
        assert_eq!(audit.live(), 0);
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
}
