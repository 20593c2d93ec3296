//! `ix ctl vnic`, `filter` and `rate`: what a dataplane may send and receive.
use super::args::{FilterCommand, LookArgs, QueueChoice, RateArgs, VnicArgs, VnicCommand};
use super::connect;
use ix_broker::control::Request;
use ix_report::problem::Result;
use ix_vnic::Filter;
use serde_json::Value;
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
    if look.json {
        println!("{answer:#}");
    } else if let (Some(device), Some(key)) =
        (answer["device"].as_str(), answer["capability"].as_str())
    {
        println!("device {device}\n  capability {key}");
    } else {
        println!("deleted");
    }
    Ok(())
}

fn show(args: &LookArgs) -> Result<()> {
    let mut client = connect(&args.dataplane)?;
    let mut value = client.ask(&Request::Vnic)?;
    let shares = !value["vnics"].is_null();
    if !shares {
        value["drops"] = held_back(&client.ask(&Request::Stats)?);
    }
    if args.json {
        println!("{value:#}");
    } else if shares {
        print!("{}", describe_share(&value));
    } else {
        print!("{}", describe(&value));
    }
    Ok(())
}

/// Packets that filters and rates have held back, by reason.
fn held_back(stats: &Value) -> Value {
    let threads = stats["threads"].as_array().into_iter().flatten();
    let mut sums = serde_json::Map::new();
    for thread in threads {
        for (name, count) in thread["drops"].as_object().into_iter().flatten() {
            let ours = name.starts_with("tx_foreign")
                || matches!(&**name, "rx_filtered" | "rx_rate" | "tx_rate");
            if ours {
                let sum = sums.get(name).and_then(Value::as_u64).unwrap_or(0);
                sums.insert(name.clone(), (sum + count.as_u64().unwrap_or(0)).into());
            }
        }
    }
    sums.into()
}

/// The vNICs of a shared interface, each with its filters.
fn describe_share(value: &Value) -> String {
    let mut out = String::new();
    let filters = || value["filters"].as_array().into_iter().flatten();
    for vnic in value["vnics"].as_array().into_iter().flatten() {
        let name = vnic["vnic"].as_str().unwrap_or("?");
        let link = vnic["link"].as_str().unwrap_or("?");
        let owner = vnic["owner"].as_u64().map(|pid| format!(", owner {pid}"));
        let _ = writeln!(
            out,
            "vNIC {name} on {link}, {} queue pairs{}: {} packets sent, {} received",
            vnic["queues"],
            owner.unwrap_or_default(),
            vnic["sent"],
            vnic["received"],
        );
        let rate = |key: &str| vnic[key].as_str().unwrap_or("without limit");
        let _ = writeln!(
            out,
            "  sends {}, receives {}, weight {}",
            rate("tx_rate"),
            rate("rx_rate"),
            vnic["weight"]
        );
        let _ = writeln!(
            out,
            "  dropped: {} with a foreign Ethernet address, {} others that no filter takes, {} beyond \
             its rate, {} beyond its share; {} for it beyond its rate",
            vnic["foreign_mac"],
            vnic["foreign"],
            vnic["over_rate"],
            vnic["over_share"],
            vnic["received_over_rate"]
        );
        filters().filter(|f| f["vnic"] == vnic["vnic"]).for_each(|f| line_of(&mut out, f));
    }
    let mut unassigned = filters().filter(|filter| filter["vnic"].is_null()).peekable();
    if unassigned.peek().is_some() {
        out.push_str("assigned to no vNIC, so Linux's:\n");
        unassigned.for_each(|filter| line_of(&mut out, filter));
    }
    if out.is_empty() {
        out.push_str("no vNICs: all is Linux's\n");
    }
    refused(&mut out, value);
    out
}

fn line_of(out: &mut String, filter: &Value) {
    let text = |key: &str| filter[key].as_str().unwrap_or("?");
    let from = filter["derived_from"].as_u64().map(|id| format!(", from {id}"));
    let (id, from) = (&filter["filter"], from.unwrap_or_default());
    let queue = filter["queue"].as_u64().map(|queue| format!(", queue {queue} only"));
    let queue = queue.unwrap_or_default();
    let card = if filter["in_hardware"] == true { ", the card asks it too" } else { "" };
    let _ =
        writeln!(out, "  filter {id}: {} ({}{from}{queue}{card})", text("text"), text("holder"));
}

fn describe(value: &Value) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "vNIC with {} queue pairs", value["queues"]);
    for (name, word) in [("rx", "receives"), ("tx", "sends")] {
        let all = !value[format!("{name}_filtered")].as_bool().unwrap_or(false);
        let rate = value[format!("{name}_rate")].as_str().unwrap_or("without limit");
        let what = if all { "everything" } else { "what its filters take" };
        let _ = writeln!(out, "  {word} {what}, {rate}");
    }
    for queue in value["queue_rates"].as_array().into_iter().flatten() {
        let rate = |key: &str| queue[key].as_str().unwrap_or("as its part");
        let _ = write!(out, "  queue {} receives {}", queue["queue"], rate("rx_rate"));
        let _ = write!(out, ", sends {}", rate("tx_rate"));
        let flow = queue["flow_rate"].as_str().map(|rate| format!(", each flow {rate}"));
        let _ = writeln!(out, "{}", flow.unwrap_or_default());
    }
    for filter in value["filters"].as_array().into_iter().flatten() {
        line_of(&mut out, filter);
    }
    let drops = value["drops"].as_object().into_iter().flatten();
    let drops: Vec<String> = drops
        .filter(|(_, count)| count.as_u64() != Some(0))
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    let _ = writeln!(out, "  held back since the start: {drops}");
    refused(&mut out, value);
    out
}

/// Requests that the control socket has refused, by reason.
fn refused(out: &mut String, value: &Value) {
    let reasons = value["refused"].as_object().into_iter().flatten();
    let reasons: Vec<String> = reasons.map(|(code, count)| format!("{code} {count}")).collect();
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
    if look.json {
        println!("{answer:#}");
        return Ok(());
    }
    for made in answer["filters"].as_array().into_iter().flatten() {
        let text = |key: &str| made[key].as_str().unwrap_or("?");
        println!("filter {}: {}", made["filter"], text("text"));
        println!("  capability {}", text("capability"));
    }
    if let Some(capability) = answer["capability"].as_str() {
        println!("filter {}\n  capability {capability}", answer["filter"]);
    }
    if let Some(gone) = answer["revoked"].as_u64() {
        println!("{} gone", super::table::plural(gone as usize, "filter"));
    }
    Ok(())
}

/// A line for each rate of a vNIC, after its name where there are several, and of its queues.
fn show_rates(vnic: &Value) {
    let name = vnic["vnic"].as_str().map(|name| format!("{name} "));
    let queue = || Some(format!("queue {} ", vnic["queue"].as_u64()?));
    let name = name.or_else(queue).unwrap_or_default();
    for kind in ["rx", "tx", "flow"] {
        // A shared interface knows no flows.
        let Some(rate) = vnic.get(format!("{kind}_rate")) else { continue };
        println!("{name}{kind} {}", rate.as_str().unwrap_or("no limit"));
    }
    vnic["queue_rates"].as_array().into_iter().flatten().for_each(show_rates);
    if let Some(weight) = vnic["weight"].as_u64() {
        println!("{name}weight {weight}");
    }
    if let Some(note) = vnic["note"].as_str() {
        println!("{note}");
    }
}

/// `ix ctl rate`.
pub fn rate(args: &RateArgs) -> Result<()> {
    let RateArgs { rx, tx, flow, vnic, queue, weight, .. } = args;
    let asks = rx.is_none() && tx.is_none() && flow.is_none() && weight.is_none();
    let request = match asks && vnic.is_none() && queue.is_none() {
        true => Request::Vnic,
        false => Request::Rate {
            rx: rx.clone(),
            tx: tx.clone(),
            flow: flow.clone(),
            vnic: vnic.clone(),
            queue: *queue,
            weight: *weight,
        },
    };
    let answer = connect(&args.look.dataplane)?.ask(&request)?;
    if args.look.json {
        println!("{answer:#}");
        return Ok(());
    }
    if !answer["vnics"].is_null() {
        answer["vnics"].as_array().into_iter().flatten().for_each(show_rates);
        return Ok(());
    }
    show_rates(&answer);
    Ok(())
}
