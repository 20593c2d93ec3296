//! Links of Linux that change while the program runs.
use super::{Running, channel};
use crate::link_rates::LinkRates;
use ix_netdev::LinkChange;

impl Running {
    pub(super) fn link_changes(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for change in self.watch.changes() {
            lines.extend(self.link_rate_changed(&change));
            lines.extend(
                self.devices.link_changed(&change, channel(&self.child, self.apart.as_ref())),
            );
        }
        lines
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
