//! `ix ctl vnic`, `filter` and `rate`: what a dataplane may send and receive.
use super::args::{FilterCommand, LookArgs, QueueChoice, RateArgs, VnicArgs, VnicCommand};
use super::{connect, gives};
use ix_proto::control::vnic::{
    FilterCreated, FilterDerived, FiltersCreated, FiltersRevoked, OwnFilter, OwnRates, OwnVnic,
    QueueRates, RateChange, Rates, RatesSet, SharedFilter, SharedInterface, SharedRates, View,
    VnicCreated,
};
use ix_proto::control::{Answer, Code, Request, Status};
use ix_report::problem::{Problem, Result};
use ix_vnic::{Filter, Rate};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// `ix ctl vnic`.
pub fn vnic(args: &VnicArgs) -> Result<()> {
    let (look, request) = match &args.command {
        None => return show(&args.look),
        Some(VnicCommand::Create(args)) => {
            let (name, queues, owner) = (args.name.clone(), args.queues, args.owner);
            let device = args.device;
            (&args.look, Request::VnicCreate { name, queues, owner, device })
        }
        Some(VnicCommand::Delete(args)) => {
            (&args.look, Request::VnicDelete { name: args.name.clone() })
        }
    };
    let answer = connect(&look.dataplane)?.ask(&request)?;
    if gives(look, &answer)? {
        return Ok(());
    }
    match answer {
        Answer::VnicCreated(VnicCreated { device, capability, .. }) => {
            ix_sys::outln!("device {device}\n  capability {capability}");
        }
        _ => ix_sys::outln!("deleted"),
    }
    Ok(())
}

fn show(args: &LookArgs) -> Result<()> {
    let mut client = connect(&args.dataplane)?;
    match client.get(&Request::Vnic)? {
        View::Shared(shared) => {
            if !gives(args, &shared)? {
                ix_sys::out!("{}", describe_share(&shared));
            }
        }
        View::Own(vnic) => {
            let shown = Shown { vnic: *vnic, drops: held_back(&client.stats()?) };
            if !gives(args, &shown)? {
                ix_sys::out!("{}", describe(&shown));
            }
        }
    }
    Ok(())
}

/// The vNIC of a dataplane, with what its threads have counted.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    vnic: OwnVnic,
    /// Packets that filters and rates have held back, by reason.
    drops: BTreeMap<String, u64>,
}

/// Packets that filters and rates have held back, by reason.
fn held_back(stats: &Status) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in stats.threads.iter().flat_map(|thread| &thread.drops) {
        let ours = name.starts_with("tx_foreign")
            || matches!(&**name, "rx_filtered" | "rx_rate" | "tx_rate");
        if ours {
            *sums.entry(name.clone()).or_default() += count;
        }
    }
    sums
}

/// The vNICs of a shared interface, each with its filters.
fn describe_share(shared: &SharedInterface) -> String {
    let mut out = String::new();
    for vnic in &shared.vnics {
        let owner = vnic.owner.map(|pid| format!(", owner {pid}"));
        let _ = writeln!(
            out,
            "vNIC {} on {}, {} queue pairs{}: {} packets sent, {} received",
            vnic.vnic,
            vnic.link.as_deref().unwrap_or("?"),
            vnic.queues,
            owner.unwrap_or_default(),
            vnic.sent,
            vnic.received,
        );
        if let Some(SharedRates { rx_rate, tx_rate, weight, .. }) = vnic.rates {
            let [rx, tx] = [rx_rate, tx_rate].map(|rate| limit(rate, "without limit"));
            let _ = writeln!(out, "  sends {tx}, receives {rx}, weight {weight}");
        }
        let _ = writeln!(
            out,
            "  dropped: {} with a foreign Ethernet address, {} others that no filter takes, {} beyond \
             its rate, {} beyond its share; {} for it beyond its rate",
            vnic.foreign_mac,
            vnic.foreign,
            vnic.over_rate,
            vnic.over_share,
            vnic.received_over_rate
        );
        let own = shared.filters.iter().filter(|filter| filter.vnic.as_ref() == Some(&vnic.vnic));
        own.for_each(|filter| shared_line(&mut out, filter));
    }
    let mut unassigned = shared.filters.iter().filter(|filter| filter.vnic.is_none()).peekable();
    if unassigned.peek().is_some() {
        out.push_str("assigned to no vNIC, so Linux's:\n");
        unassigned.for_each(|filter| shared_line(&mut out, filter));
    }
    if out.is_empty() {
        out.push_str("no vNICs: all is Linux's\n");
    }
    refused(&mut out, &shared.refused);
    out
}

/// What a filter is but for its number: text, holder, origin, queue, and whether a card asks it.
struct FilterLine<'a> {
    filter: u32,
    text: &'a Filter,
    holder: &'a str,
    derived_from: Option<u32>,
    queue: Option<usize>,
    in_hardware: bool,
}

impl FilterLine<'_> {
    fn write(&self, out: &mut String) {
        let FilterLine { filter, text, holder, .. } = self;
        let from = self.derived_from.map(|id| format!(", from {id}")).unwrap_or_default();
        let queue = self.queue.map(|queue| format!(", queue {queue} only")).unwrap_or_default();
        let card = if self.in_hardware { ", the card asks it too" } else { "" };
        let _ = writeln!(out, "  filter {filter}: {text} ({holder}{from}{queue}{card})");
    }
}

fn shared_line(out: &mut String, filter: &SharedFilter) {
    let SharedFilter { filter, text, holder, derived_from, .. } = filter;
    let (filter, derived_from) = (*filter, *derived_from);
    FilterLine { filter, text, holder, derived_from, queue: None, in_hardware: false }.write(out);
}

fn own_line(out: &mut String, filter: &OwnFilter) {
    let OwnFilter { filter, text, holder, derived_from, queue, in_hardware } = filter;
    let (filter, derived_from) = (*filter, *derived_from);
    let (queue, in_hardware) = (*queue, *in_hardware);
    FilterLine { filter, text, holder, derived_from, queue, in_hardware }.write(out);
}

fn describe(Shown { vnic, drops }: &Shown) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "vNIC with {} queue pairs", vnic.queues);
    let Rates { rx_rate, tx_rate, .. } = vnic.rates.rates;
    let both = [("receives", vnic.rx_filtered, rx_rate), ("sends", vnic.tx_filtered, tx_rate)];
    for (word, filtered, rate) in both {
        let what = if filtered { "what its filters take" } else { "everything" };
        let _ = writeln!(out, "  {word} {what}, {}", limit(rate, "without limit"));
    }
    for QueueRates { queue, rates } in &vnic.rates.queue_rates {
        let rate = |rate| limit(rate, "as its part");
        let _ = write!(out, "  queue {queue} receives {}", rate(rates.rx_rate));
        let _ = write!(out, ", sends {}", rate(rates.tx_rate));
        let flow = rates.flow_rate.map(|rate| format!(", each flow {rate}"));
        let _ = writeln!(out, "{}", flow.unwrap_or_default());
    }
    vnic.filters.iter().for_each(|filter| own_line(&mut out, filter));
    let drops = drops.iter().filter(|(_, count)| **count != 0);
    let drops: Vec<String> = drops.map(|(name, count)| format!("{name} {count}")).collect();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    let _ = writeln!(out, "  held back since the start: {drops}");
    refused(&mut out, &vnic.refused);
    out
}

/// A rate, or what there is instead.
fn limit(rate: Option<Rate>, none: &str) -> String {
    rate.map_or(none.to_owned(), |rate| rate.to_string())
}

/// Requests that the control socket has refused, by reason.
fn refused(out: &mut String, reasons: &BTreeMap<Code, u64>) {
    let mut reasons: Vec<String> =
        reasons.iter().map(|(code, count)| format!("{code} {count}")).collect();
    reasons.sort();
    if !reasons.is_empty() {
        let _ = writeln!(out, "requests refused since the start: {}", reasons.join(", "));
    }
}

/// `ix ctl filter`.
pub fn filter(command: &FilterCommand) -> Result<()> {
    let (look, request) = match command {
        FilterCommand::Create(args) => {
            let both = args.both.then(|| args.filters.iter().map(Filter::reversed));
            let filters = args.filters.iter().cloned().chain(both.into_iter().flatten()).collect();
            let (holder, vnic) = (args.holder.clone(), args.vnic.clone());
            let queue = args.queue;
            (&args.look, Request::FilterCreate { filters, holder, vnic, queue })
        }
        FilterCommand::Derive(args) => {
            let (capability, filter) = (args.capability.clone(), args.filter.clone());
            (&args.look, Request::FilterDerive { capability, filter })
        }
        FilterCommand::Assign(args) => {
            let (capability, vnic) = (args.capability.clone(), args.to.clone());
            let queue = args.queue.and_then(|QueueChoice(queue)| queue);
            (&args.look, Request::FilterAssign { capability, vnic, queue })
        }
        FilterCommand::Revoke(args) => {
            (&args.look, Request::FilterRevoke { capability: args.capability.clone() })
        }
        FilterCommand::Remove(args) => (&args.look, Request::FilterRemove { filter: args.filter }),
    };
    let answer = connect(&look.dataplane)?.ask(&request)?;
    if gives(look, &answer)? {
        return Ok(());
    }
    match answer {
        Answer::FiltersCreated(FiltersCreated { filters }) => {
            for FilterCreated { filter, text, capability, .. } in filters {
                ix_sys::outln!("filter {filter}: {text}\n  capability {capability}");
            }
        }
        Answer::FilterDerived(FilterDerived { filter, capability }) => {
            ix_sys::outln!("filter {filter}\n  capability {capability}");
        }
        Answer::FiltersRevoked(FiltersRevoked { revoked }) => {
            ix_sys::outln!("{} gone", ix_report::figure::plural(revoked, "filter"));
        }
        _ => {}
    }
    Ok(())
}

/// A line for each rate, after the name of what has it where there are several.
fn show_limits(name: &str, rates: &[(&str, Option<Rate>)]) {
    for (kind, rate) in rates {
        ix_sys::outln!("{name}{kind} {}", limit(*rate, "no limit"));
    }
}

/// Rates of a dataplane's vNIC or of a queue of it.
fn show_rates(name: &str, rates: &Rates) {
    let Rates { rx_rate, tx_rate, flow_rate } = *rates;
    show_limits(name, &[("rx", rx_rate), ("tx", tx_rate), ("flow", flow_rate)]);
}

fn show_queue_rates(QueueRates { queue, rates }: &QueueRates) {
    show_rates(&format!("queue {queue} "), rates);
}

fn show_own_rates(own: &OwnRates) {
    show_rates("", &own.rates);
    own.queue_rates.iter().for_each(show_queue_rates);
}

/// Rates of a vNIC of a shared interface, which knows no flows.
fn show_shared_rates(vnic: &str, rates: &SharedRates) {
    let name = format!("{vnic} ");
    show_limits(&name, &[("rx", rates.rx_rate), ("tx", rates.tx_rate)]);
    ix_sys::outln!("{name}weight {}", rates.weight);
}

/// `ix ctl rate`.
pub fn rate(args: &RateArgs) -> Result<()> {
    let RateArgs { rx, tx, flow, vnic, queue, weight, .. } = args;
    let asks = rx.is_none() && tx.is_none() && flow.is_none() && weight.is_none();
    let change = |flag, text: &Option<String>| {
        let change: Option<RateChange> = text
            .as_deref()
            .map(str::parse)
            .transpose()
            .map_err(|e| Problem::new(format!("cannot use {flag}"), e))?;
        Ok::<_, Problem>(change.unwrap_or_default())
    };
    let request = match asks && vnic.is_none() && queue.is_none() {
        true => Request::Vnic,
        false => Request::Rate {
            rx: change("--rx", rx)?,
            tx: change("--tx", tx)?,
            flow: change("--flow", flow)?,
            vnic: vnic.clone(),
            queue: *queue,
            weight: *weight,
        },
    };
    let answer = connect(&args.look.dataplane)?.ask(&request)?;
    if gives(&args.look, &answer)? {
        return Ok(());
    }
    match answer {
        Answer::Vnic(View::Own(vnic)) => show_own_rates(&vnic.rates),
        Answer::Vnic(View::Shared(shared)) => {
            let all = shared.vnics.iter().filter_map(|vnic| Some((&vnic.vnic, vnic.rates?)));
            all.for_each(|(name, rates)| show_shared_rates(name, &rates));
        }
        Answer::RatesSet(RatesSet::Own(own)) => show_own_rates(&own),
        Answer::RatesSet(RatesSet::Queue(queue)) => show_queue_rates(&queue),
        Answer::RatesSet(RatesSet::Shared(set)) => {
            show_shared_rates(&set.vnic, &set.rates);
            set.note.iter().for_each(|note| ix_sys::outln!("{note}"));
        }
        _ => {}
    }
    Ok(())
}
