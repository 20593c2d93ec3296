//! `ix ctl`: asks a running dataplane, and prints what it says for people or for programs.
pub mod args;
pub mod connections;
mod look;
pub mod table;
mod vnic;

pub use look::controller_line;

use crate::stats;
use args::{ConnectionsArgs, CtlArgs, CtlCommand, FlowGroupsArgs, LookArgs, PolicyArgs};
use ix_broker::control::{Change, Client, Request, View};
use ix_controller::policy::BUILT_IN;
use ix_report::problem::{Problem, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// `ix ctl`.
pub fn main(command: &CtlCommand) -> Result<()> {
    match command {
        CtlCommand::Status(args) => look(args, look::status),
        CtlCommand::Threads(args) => look(args, look::threads),
        CtlCommand::FlowGroups(args) => flow_groups(args),
        CtlCommand::Connections(args) => list_connections(args),
        CtlCommand::Migrate(args) => {
            let request = Request::Migrate { groups: args.groups, to: args.to };
            order(&args.look, &request, |after| {
                let thread = after.threads.get(args.to);
                let groups = thread.map_or(0, |thread| thread.groups());
                format!("elastic thread {} has {groups} flow groups now", args.to)
            })
        }
        CtlCommand::Park(args) => {
            order(&args.look, &Request::Park { thread: args.thread }, |after| {
                now_is(after, args.thread)
            })
        }
        CtlCommand::Resume(args) => {
            order(&args.look, &Request::Resume { thread: args.thread }, |after| {
                now_is(after, args.thread)
            })
        }
        CtlCommand::Drain(args) => {
            order(&args.look, &Request::Drain { thread: args.thread }, |after| {
                now_is(after, args.thread)
            })
        }
        CtlCommand::Vnic(args) => vnic::vnic(args),
        CtlCommand::Filter(command) => vnic::filter(command),
        CtlCommand::Rate(args) => vnic::rate(args),
        CtlCommand::Policy(args) => policy(args),
        CtlCommand::Slo(args) => wish(&args.look, None, args.set, look::slo),
        CtlCommand::Stats(args) => stats::main(args),
        CtlCommand::Metrics(args) => {
            print!(
                "{}",
                ix_broker::control::exposition::text(&View::read(
                    &connect(args)?.ask(&Request::Stats)?
                )?)
            );
            Ok(())
        }
    }
}

fn connect(args: &CtlArgs) -> Result<Client> {
    Client::connect(&args.find()?)
}

/// Looks once, and prints.
fn look(args: &LookArgs, text: impl Fn(&View) -> String) -> Result<()> {
    let value = connect(&args.dataplane)?.ask(&Request::Status)?;
    let view = View::read(&value)?;
    if args.json {
        println!("{value:#}")
    } else {
        print!("{}", text(&view))
    }
    Ok(())
}

fn list_connections(args: &ConnectionsArgs) -> Result<()> {
    let answer = connect(&args.look.dataplane)?.ask(&Request::Connections(args.query()))?;
    if args.look.json {
        println!("{answer:#}");
    } else {
        print!("{}", connections::table(&answer));
    }
    connections::remarks(&answer).iter().for_each(|line| eprintln!("ix: {line}"));
    Ok(())
}

/// Another policy, or how it stands.
fn policy(args: &PolicyArgs) -> Result<()> {
    let Some(name) = &args.set else { return look(&args.look, look::policy) };
    let known = BUILT_IN.iter().find(|(known, _)| known == name).map(|(_, text)| *text);
    let text = match known {
        Some(text) => text.to_owned(),
        None => std::fs::read_to_string(name).map_err(|e| {
            let names = BUILT_IN.map(|(name, _)| name).join(", ");
            Problem::new(format!("cannot read the policy {name}"), e)
                .mend(format!("give a file, or one of {names}"))
        })?,
    };
    wish(&args.look, Some(text), None, look::policy)
}

/// Tells the controller what is wanted of it, and prints how it stands; it may take a second until
/// it has heard.
fn wish(
    args: &LookArgs,
    text: Option<String>,
    slo_us: Option<f64>,
    says: impl Fn(&View) -> String,
) -> Result<()> {
    if text.is_none() && slo_us.is_none() {
        return look(args, says);
    }
    let answer = connect(&args.dataplane)?.ask(&Request::Policy { text, slo_us })?;
    if args.json {
        println!("{answer:#}");
    } else {
        let bound =
            slo_us.map_or(String::new(), |slo| format!(", at most {} µs", table::micros(slo)));
        let name = answer["policy"].as_str().unwrap_or("?");
        println!("told controller {}: policy {name}{bound}", answer["controller"]);
    }
    Ok(())
}

/// Has something done, and prints what there is then.
fn order(args: &LookArgs, request: &Request, says: impl Fn(&View) -> String) -> Result<()> {
    let mut client = connect(&args.dataplane)?;
    let answer = client.ask(request)?;
    let value = client.ask(&Request::Status)?;
    if args.json {
        println!("{:#}", json!({ "answer": answer, "status": value }));
    } else {
        println!("{}", says(&View::read(&value)?));
    }
    Ok(())
}

/// What an elastic thread is now.
fn now_is(view: &View, thread: usize) -> String {
    let (state, groups) = view
        .threads
        .get(thread)
        .map_or(("?", 0), |thread| (thread.state.as_str(), thread.groups()));
    format!("elastic thread {thread} is {state} with {}", table::plural(groups, "flow group"))
}

fn flow_groups(args: &FlowGroupsArgs) -> Result<()> {
    let mut client = connect(&args.look.dataplane)?;
    let before = View::read(&client.ask(&Request::Status)?)?;
    std::thread::sleep(Duration::from_secs_f64(args.interval));
    let value = client.ask(&Request::Status)?;
    let after = View::read(&value)?;
    let change = Change::between(&before, &after).ok_or_else(|| {
        Problem::new("cannot compare two looks", "the dataplane was started anew in between")
    })?;
    if args.look.json {
        println!("{:#}", groups_json(&value, &change));
    } else {
        print!("{}", look::flow_groups(&change, &after, args.all));
    }
    Ok(())
}

/// The groups with their rates.
fn groups_json(value: &Value, change: &Change<'_>) -> Value {
    let groups = value["groups"].as_array().into_iter().flatten().cloned();
    let groups = groups.zip(change.group_rates()).map(|(mut group, rate)| {
        group["packets_per_s"] = rate.into();
        group
    });
    json!({ "seconds": change.seconds(), "groups": groups.collect::<Vec<_>>() })
}
