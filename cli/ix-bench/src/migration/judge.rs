//! Counters of both ends' TCPs and devices: whether anything was lost, duplicated, or reordered.
use super::driver::Driver;
use crate::lab::{Host, Lab};
use ix_broker::control::Client;
use ix_proto::control::Status;
use ix_report::problem::{Problem, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Effects that migrations must not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Packets that a device or a dataplane dropped.
    pub lost: u64,
    /// Segments that arrived before an earlier one, at either end.
    pub reordered: u64,
    /// Connections that were reset, or whose bytes were wrong.
    pub broken: u64,
    /// Connections that waited for a reply without end.
    pub stalled: u64,
    /// Segments that either end retransmitted.
    pub retransmits: u64,
    /// Segments that arrived twice.
    pub duplicates: u64,
}

/// Counters of both ends together.
#[derive(Clone, Debug, Default)]
pub struct Counters(BTreeMap<&'static str, u64>);

/// Requests that may stay without a reply, and the time between them.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);

const LOST: &str = "lost";
const REORDERED: &str = "reordered";
const RETRANSMITS: &str = "retransmits";
const DUPLICATES: &str = "duplicates";

impl Damage {
    /// Adds the difference between two readings.
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

    /// Reads both ends' counters, while both exist.
    pub fn look(&self, server: &mut Driver) -> Result<Counters> {
        let mut counters = Counters::default();
        counters.add_dataplane(&server.look()?);
        if self.client.is_ix() {
            counters.add_dataplane(&patiently(|| {
                Client::connect(&self.lab.client_control())?.stats()
            })?);
        } else {
            let text = |path: &'static str| {
                let read = self.lab.client_namespace().run(|| std::fs::read_to_string(path));
                read.map_err(|e| Problem::new(format!("cannot read {path}"), e))
            };
            // Of this thread, which is inside the namespace.
            counters.add_linux(&text("/proc/thread-self/net/snmp")?);
            counters.add_linux(&text("/proc/thread-self/net/netstat")?);
            counters.add_devices(&text("/proc/thread-self/net/dev")?);
        }
        Ok(counters)
    }
}

/// Tries again, because on a busy machine a broker may be slow to reply.
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

    /// Adds the counters of a dataplane's threads.
    fn add_dataplane(&mut self, stats: &Status) {
        for thread in &stats.threads {
            self.count(LOST, thread.drops.values().sum());
            for name in ["device_rx_overrun", "device_rx_invalid", "device_tx_failed"] {
                self.count(LOST, thread.counter(name));
            }
            for (name, theirs) in [
                (REORDERED, "out_of_order"),
                (RETRANSMITS, "retransmits"),
                (DUPLICATES, "duplicate_segments"),
            ] {
                self.count(name, thread.tcp.get(theirs).copied().unwrap_or(0));
            }
        }
    }

    /// Parses alternating lines of names and of numbers.
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

    /// Parses interfaces: `name: bytes packets errs drop …` for received and sent packets.
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
    use ix_proto::control::Thread;

    #[test]
    fn both_kinds_of_ends_are_understood() {
        let (mut before, mut after) = (Counters::default(), Counters::default());
        let named = |counts: &[(&str, u64)]| {
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let looked = |n: u64| {
            let tcp = [("out_of_order", 3 * n), ("retransmits", 5 * n), ("duplicate_segments", n)];
            let first = Thread {
                counters: named(&[("device_rx_overrun", n)]),
                drops: named(&[("forward_full", 2 * n), ("no_flow", n)]),
                tcp: named(&tcp),
                ..Thread::default()
            };
            let second = Thread { tcp: named(&[("out_of_order", n)]), ..Thread::default() };
            Status { threads: vec![first, second], ..Status::default() }
        };
        before.add_dataplane(&looked(1));
        after.add_dataplane(&looked(2));
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
