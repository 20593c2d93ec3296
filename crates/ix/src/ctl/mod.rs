//! `ix ctl`: asks a running dataplane, and prints what it says for people or for programs.
pub mod args;
pub mod connections;
pub mod exposition;
mod look;
pub mod table;

use crate::control::{Change, Client, Request, View, find};
use crate::problem::{Problem, Result};
use crate::stats;
use args::{CtlArgs, CtlCommand, FlowGroupsArgs, LookArgs};
use serde_json::{Value, json};
use std::time::Duration;

/// `ix ctl`.
pub fn main(command: &CtlCommand) -> Result<()> {
    match command {
        CtlCommand::Status(args) => look(args, look::status),
        CtlCommand::Threads(args) => look(args, look::threads),
        CtlCommand::FlowGroups(args) => flow_groups(args),
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
        CtlCommand::Stats(args) => stats::main(args),
        CtlCommand::Metrics(args) => {
            print!("{}", exposition::text(&View::read(&connect(args)?.ask(&Request::Stats)?)?));
            Ok(())
        }
    }
}

fn connect(args: &CtlArgs) -> Result<Client> {
    Client::connect(&find(args)?)
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
