//! What both ends' TCPs and devices say: whether anything was lost, came twice, or out of order.
use super::driver::Driver;
use crate::lab::{Host, Lab};
use ix_broker::control::{Client, Request};
use ix_report::problem::{Problem, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// What migrations must not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Packets that a device or a dataplane dropped.
    pub lost: u64,
    /// Segments that came before an earlier one, at either end.
    pub reordered: u64,
    /// Connections that were reset, or whose bytes were wrong.
    pub broken: u64,
    /// Connections that waited for an answer in vain.
    pub stalled: u64,
    /// Segments that either end sent again.
    pub retransmits: u64,
    /// Segments that came again.
    pub duplicates: u64,
}

/// Counters of both ends together.
#[derive(Clone, Debug, Default)]
pub struct Counters(BTreeMap<&'static str, u64>);

/// Questions that may go unanswered, and the time between them.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);

const LOST: &str = "lost";
const REORDERED: &str = "reordered";
const RETRANSMITS: &str = "retransmits";
const DUPLICATES: &str = "duplicates";

impl Damage {
    /// What came to be between two looks.
    pub fn add(&mut self, before: &Counters, after: &Counters) {
        let of = |counters: &Counters, name| counters.0.get(name).copied().unwrap_or(0);
        let grown = |name| of(after, name).saturating_sub(of(before, name));
        self.lost += grown(LOST);
        self.reordered += grown(REORDERED);
        self.retransmits += grown(RETRANSMITS);
        self.duplicates += grown(DUPLICATES);
    }
}

/// The two ends of the link.
pub struct Ends<'a> {
    lab: &'a Lab,
    client: Host,
}

impl<'a> Ends<'a> {
    pub fn new(lab: &'a Lab, client: Host) -> Ends<'a> {
        Ends { lab, client }
    }

    /// Both ends' counters now, while both are there.
    pub fn look(&self, server: &mut Driver) -> Result<Counters> {
        let mut counters = Counters::default();
        counters.add_dataplane(&server.look()?);
        if self.client == Host::Ix {
            counters.add_dataplane(&patiently(|| {
                Client::connect(&self.lab.client_control())?.ask(&Request::Stats)
            })?);
        } else {
            let text = |path: &'static str| {
                let read = self.lab.client_namespace().run(|| std::fs::read_to_string(path));
                read.map_err(|e| Problem::new(format!("cannot read {path}"), e))
            };
            // Of the thread: that is the one within the namespace.
            counters.add_linux(&text("/proc/thread-self/net/snmp")?);
            counters.add_linux(&text("/proc/thread-self/net/netstat")?);
            counters.add_devices(&text("/proc/thread-self/net/dev")?);
        }
        Ok(counters)
    }
}

/// Asks again, for a machine that is busy with much else may let a broker wait.
pub fn patiently<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        if let Ok(answer) = ask() {
            return Ok(answer);
        }
        std::thread::sleep(PAUSE);
    }
    ask()
}

impl Counters {
    fn count(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// What a dataplane's threads say.
    fn add_dataplane(&mut self, stats: &Value) {
        for thread in stats["threads"].as_array().into_iter().flatten() {
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            let drops = thread["drops"].as_object().into_iter().flatten();
            self.count(LOST, drops.map(|(_, count)| number(count)).sum());
            for name in ["device_rx_overrun", "device_rx_invalid", "device_tx_failed"] {
                self.count(LOST, number(&thread[name]));
            }
            let tcp = &thread["tcp"];
            for (name, theirs) in [
                (REORDERED, "out_of_order"),
                (RETRANSMITS, "retransmits"),
                (DUPLICATES, "duplicate_segments"),
            ] {
                self.count(name, number(&tcp[theirs]));
            }
        }
    }

    /// Lines of names and lines of numbers, in turn.
    fn add_linux(&mut self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks(2) {
            let [names, numbers] = pair else { return };
            for (name, number) in names.split_whitespace().zip(numbers.split_whitespace()) {
                let name = match name {
                    "RetransSegs" => RETRANSMITS,
                    "TCPOFOQueue" => REORDERED,
                    "TCPBacklogDrop" | "TCPRcvQDrop" | "TCPOFODrop" | "PruneCalled" => LOST,
                    _ => continue,
                };
                self.count(name, number.parse().unwrap_or(0));
            }
        }
    }

    /// Interfaces: `name: bytes packets errs drop …` for what was received and what was sent.
    fn add_devices(&mut self, text: &str) {
        for line in text.lines() {
            let Some((_, numbers)) = line.split_once(':') else { continue };
            let numbers: Vec<u64> =
                numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
            self.count(LOST, at(2) + at(3) + at(10) + at(11));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_kinds_of_ends_are_understood() {
        let (mut before, mut after) = (Counters::default(), Counters::default());
        let thread = |n: u64| {
            json!({
                "threads": [{
                    "device_rx_overrun": n, "drops": {"forward_full": 2 * n, "no_flow": n},
                    "tcp": {"out_of_order": 3 * n, "retransmits": 5 * n, "duplicate_segments": n},
                }, {"tcp": {"out_of_order": n}}],
            })
        };
        before.add_dataplane(&thread(1));
        after.add_dataplane(&thread(2));
        let netstat = "TcpExt: SyncookiesSent TCPOFOQueue\nTcpExt: 9 7\n";
        after.add_linux(netstat);
        after.add_linux("Tcp: InSegs RetransSegs\nTcp: 100 30\n");
        let head = "Inter-| Receive | Transmit\n face |bytes packets errs drop\n";
        after.add_devices(&format!("{head}  tap: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"));
        let mut damage = Damage::default();
        damage.add(&before, &after);
        let lost = (1 + 2 + 1) + (3 + 4 + 11 + 12);
        let wanted = Damage {
            lost,
            reordered: 4 + 7,
            retransmits: 5 + 30,
            duplicates: 1,
            ..Damage::default()
        };
        assert_eq!(damage, wanted);
    }
}
