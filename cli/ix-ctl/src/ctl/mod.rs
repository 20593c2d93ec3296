//! `ix ctl`: asks a running dataplane, and prints what it says for people or for programs.
pub mod args;
pub mod connections;
pub mod dump;
mod look;
mod vnic;

pub use look::controller_line;

use crate::stats;
use args::{ConnectionsArgs, CtlArgs, CtlCommand, FlowGroupsArgs, LookArgs, PolicyArgs};
use ix_broker::control::{Change, Client, exposition};
use ix_controller::policy::BUILT_IN;
use ix_proto::control::{Answer, Connections, Group, PolicySet, Request, Status};
use ix_report::figure::plural;
use ix_report::problem::{Problem, Result};
use serde::Serialize;
use std::time::Duration;

/// `ix ctl`, which does not capture itself.
pub fn main(command: &CtlCommand, capture: dump::Capture) -> Result<()> {
    match command {
        CtlCommand::Status(args) => look(args, look::status),
        CtlCommand::Threads(args) => look(args, look::threads),
        CtlCommand::FlowGroups(args) => flow_groups(args),
        CtlCommand::Connections(args) => list_connections(args),
        CtlCommand::Migrate(args) => {
            let request = Request::Migrate { groups: args.groups, to: args.to };
            order(&args.look, &request, |after| {
                let thread = after.threads.get(args.to);
                let groups = thread.map_or(0, |thread| thread.flow_groups.len());
                format!("elastic thread {} has {} now", args.to, plural(groups, "flow group"))
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
        CtlCommand::Slo(args) => policy_request(&args.look, None, args.set, look::slo),
        CtlCommand::Stats(args) => stats::main(args),
        CtlCommand::Metrics(args) => {
            let text = exposition::text(&connect(&args.dataplane)?.stats()?);
            let Some(file) = &args.output else {
                ix_sys::out!("{text}");
                return Ok(());
            };
            std::fs::write(file, text).map_err(|e| {
                Problem::new(format!("cannot write {}", file.display()), e)
                    .mend("choose another file")
            })
        }
        CtlCommand::Dump(args) => dump::main(args, capture),
    }
}

fn connect(args: &CtlArgs) -> Result<Client> {
    Client::connect(&args.find()?)
}

/// Looks once, and prints.
fn look(args: &LookArgs, text: impl Fn(&Status) -> String) -> Result<()> {
    let status = connect(&args.dataplane)?.status()?;
    if !gives(args, &status)? {
        ix_sys::out!("{}", text(&status));
    }
    Ok(())
}

/// What users of `--json` read: keys in the order of the alphabet.
pub(crate) fn json(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|e| Problem::new("cannot print JSON", e))
}

/// Gives the JSON to all who asked for it. Returns whether standard output has it.
fn gives(args: &LookArgs, value: &impl Serialize) -> Result<bool> {
    args.print.give(|| json(value))
}

fn list_connections(args: &ConnectionsArgs) -> Result<()> {
    let request = Request::Connections(args.query());
    let answer: Connections = connect(&args.look.dataplane)?.get(&request)?;
    if !gives(&args.look, &answer)? {
        ix_sys::out!("{}", connections::table(&answer));
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
    policy_request(&args.look, Some(text), None, look::policy)
}

/// Asks the controller for another policy or bound, which it applies within a second; without
/// either, prints the present ones.
fn policy_request(
    args: &LookArgs,
    text: Option<String>,
    slo_us: Option<f64>,
    says: impl Fn(&Status) -> String,
) -> Result<()> {
    if text.is_none() && slo_us.is_none() {
        return look(args, says);
    }
    let request = Request::Policy { text, slo_us };
    let answer: PolicySet = connect(&args.dataplane)?.get(&request)?;
    if !gives(args, &answer)? {
        let bound = slo_us.map_or(String::new(), |slo| {
            format!(", at most {} µs", ix_report::figure::micros(slo))
        });
        ix_sys::outln!("controller {} gets policy {}{bound}", answer.controller, answer.policy);
    }
    Ok(())
}

/// Carries out a request, and prints the state afterwards.
fn order(args: &LookArgs, request: &Request, says: impl Fn(&Status) -> String) -> Result<()> {
    let mut client = connect(&args.dataplane)?;
    let answer = client.ask(request)?;
    let status = client.status()?;
    let said = says(&status);
    if !gives(args, &Done { answer, status })? {
        ix_sys::outln!("{said}");
    }
    Ok(())
}

/// The answer, and the state afterwards.
#[derive(Serialize)]
struct Done {
    answer: Answer,
    status: Status,
}

/// The state of an elastic thread, in words.
fn now_is(status: &Status, thread: usize) -> String {
    let (state, groups) = status
        .threads
        .get(thread)
        .map_or(("?", 0), |thread| (thread.state.name(), thread.flow_groups.len()));
    format!("elastic thread {thread} is {state} with {}", plural(groups, "flow group"))
}

fn flow_groups(args: &FlowGroupsArgs) -> Result<()> {
    let mut client = connect(&args.look.dataplane)?;
    let before = client.status()?;
    std::thread::sleep(Duration::from_secs_f64(args.interval));
    let after = client.status()?;
    let change = Change::between(&before, &after).ok_or_else(|| {
        Problem::new("cannot compare two looks", "the dataplane was started anew in between")
    })?;
    if !gives(&args.look, &GroupLoads::of(&after, &change))? {
        ix_sys::out!("{}", look::flow_groups(&change, &after, args.all));
    }
    Ok(())
}

/// The groups with their rates.
#[derive(Serialize)]
struct GroupLoads {
    seconds: f64,
    groups: Vec<GroupLoad>,
}

#[derive(Serialize)]
struct GroupLoad {
    #[serde(flatten)]
    group: Group,
    packets_per_s: f64,
}

impl GroupLoads {
    fn of(after: &Status, change: &Change<'_>) -> GroupLoads {
        let loads = after.groups.iter().zip(change.group_rates());
        let load =
            |(group, packets_per_s): (&Group, f64)| GroupLoad { group: *group, packets_per_s };
        GroupLoads { seconds: change.seconds(), groups: loads.map(load).collect() }
    }
}
