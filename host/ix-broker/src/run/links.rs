//! Links of Linux that change while the program runs.
use super::{Running, channel};
use crate::link_rates::LinkRates;
use ix_netdev::LinkChange;
use ix_sys::poll::is_readable;
use std::time::Duration;

/// Longest time from the first sign of a dataplane's end to its end.
const ENDING: Duration = Duration::from_millis(100);

impl Running {
    pub(super) fn link_changes(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for change in self.watch.changes() {
            lines.extend(self.link_rate_changed(&change));
            let channel = channel(&self.child, self.apart.as_ref());
            let line = self.devices.link_changed(&change, channel);
            let is_gone = matches!(change, LinkChange::Removed(_));
            lines.extend(line.filter(|_| !(is_gone && self.dataplane_ends())));
        }
        lines
    }

    /// Whether a dataplane of its own process has ended, or ends now: its taps go along. The next
    /// one opens them again.
    fn dataplane_ends(&self) -> bool {
        let Some(apart) = &self.apart else { return false };
        apart.ending().is_none_or(|ending| is_readable(&ending, ENDING).unwrap_or(false))
    }

    /// Applies the rates that `ix share` has written as the link's alias. Returns a line for the
    /// user if the limit changes; the part of a full interface changes too often for that.
    fn link_rate_changed(&mut self, change: &LinkChange) -> Option<String> {
        let (name, text) = match change {
            LinkChange::Alias { name, text } => (name, text.as_str()),
            LinkChange::Removed(name) | LinkChange::Moved(name) => (name, ""),
            _ => return None,
        };
        if !self.devices.is_only_link(name) {
            return None;
        }
        let (before, rates) = (self.vnic.link_rates(), LinkRates::read(text));
        if let Some(rules) = self.vnic.set_link_rates(rates) {
            // A dataplane that has ended needs no rate.
            self.commands.submit_rules(rules, Box::new(|_| {}));
            self.commands.service(channel(&self.child, self.apart.as_ref()));
        }
        let changed = rates.limit != before.limit;
        changed.then(|| match rates.limit {
            Some(rate) => format!("link {name} is limited to {rate} by `ix share`"),
            None => format!("link {name} has no rate limit any more"),
        })
    }
}
