//! What the control socket of `ix run` serves: the control page, which it only reads, and commands
//! to the dataplane, which it answers later.
use super::{ActiveController, Backend, Captures, Name, Response, Ticket};
use crate::about;
use crate::commands::{Commands, Reply};
use crate::own_calls::OwnCallsPage;
use crate::surveys::Surveys;
use crate::vnic::{self, FilteredDevices, RateChanges, Vnic};
use ix_proto::control::{Answer, Look, Query, Refusal, Report, Request, Sharing, Topic};
use ix_proto::{Command, Outcome};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// Answers to commands that have ended, which wait to be sent.
#[derive(Clone, Default)]
pub struct Answers(Rc<RefCell<Vec<(Ticket, Response)>>>);

impl Answers {
    /// Takes all of them.
    pub fn take(&self) -> Vec<(Ticket, Response)> {
        self.0.take()
    }

    /// Adds an answer.
    pub fn push(&self, answer: (Ticket, Response)) {
        self.0.borrow_mut().push(answer);
    }
}

/// The dataplane while the control socket is served.
pub struct Dataplane<'a> {
    /// Program and process.
    pub name: Name,
    /// Number of elastic threads, in any state.
    pub threads: usize,
    /// Reads the control page. It takes the report of the active controller.
    pub snapshot: &'a dyn Fn(Option<Report>) -> Look,
    /// Commands to the dataplane.
    pub commands: &'a mut Commands,
    /// Requests for connections.
    pub surveys: &'a mut Surveys,
    /// Answers that come later.
    pub answers: &'a Answers,
    /// Its controller.
    pub controller: &'a mut ActiveController,
    /// Its capture.
    pub captures: &'a Captures,
    /// Its filters and rates.
    pub vnic: &'a mut Vnic,
    /// The processes of the program, if the dataplane has one of its own.
    pub sharing: Option<&'a Sharing>,
    /// Its devices, which apply its receive filters.
    pub devices: &'a mut dyn FilteredDevices,
    /// What the library in the program says.
    pub own_calls: &'a OwnCallsPage,
}

impl Backend for Dataplane<'_> {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn look(&mut self, _topic: Topic) -> Result<Look, Refusal> {
        Ok((self.snapshot)(self.controller.current(Instant::now()).cloned()))
    }

    fn begin(&mut self, request: &Request, ticket: Ticket) -> Option<Response> {
        match request {
            Request::Policy { text, slo_us } => {
                let told = self.controller.request(text.as_deref(), *slo_us, Instant::now());
                return Some(told.map(Answer::PolicySet));
            }
            Request::Control { report } => {
                return Some(
                    self.controller.report(report, Instant::now()).map(Answer::PolicyRequest),
                );
            }
            Request::Connections(query) => {
                let known = query.thread.map_or(Ok(0), |thread| self.thread(thread));
                let number = query.process.map(|pid| self.number_of(pid)).transpose();
                let asked = known.and(number).and_then(|process| {
                    self.surveys.ask(&Query { process, ..query.clone() }, ticket)
                });
                return asked.err().map(Err);
            }
            Request::Capture { wish } => {
                let (answers, now) = (self.answers.clone(), Instant::now());
                let reply = move |started: Result<_, Refusal>| {
                    answers.push((ticket, started.map(Answer::Capture)));
                };
                let begun = self.captures.start(wish, self.threads, self.commands, now, reply);
                return begun.map(|begun| begun.map(Answer::Capture));
            }
            Request::About { all } => {
                return Some(Ok(about::tell(*all, self.own_calls.said()).into()));
            }
            Request::CaptureStop { pid } => {
                self.captures.stop(*pid, self.commands);
                return Some(Ok(Answer::Done {}));
            }
            _ => {}
        }
        if let Some(change) = self.change(request) {
            return match change {
                Ok(vnic::Change { answer, rules: None }) => Some(Ok(answer)),
                Ok(vnic::Change { answer, rules: Some(rules) }) => {
                    self.commands.submit_rules(rules, self.reply_of_rules(ticket, answer));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            };
        }
        let command = match self.command(request) {
            Ok(command) => command,
            Err(refusal) => return Some(Err(refusal)),
        };
        self.commands.submit(command, self.reply(ticket));
        None
    }
}

impl Dataplane<'_> {
    /// Answers a command with its outcome.
    fn reply(&self, ticket: Ticket) -> Reply {
        let answers = self.answers.clone();
        Box::new(move |outcome: &Outcome| {
            let answer = match outcome {
                Outcome::Done => Ok(Answer::Done {}),
                Outcome::Refused(why) | Outcome::TimedOut(why) => {
                    Err(Refusal::Dataplane(why.clone()))
                }
            };
            answers.push((ticket, answer));
        })
    }

    /// The same for filters and rates. They apply from the next cycle on, even if it comes late: a
    /// dataplane that runs no cycle sends nothing.
    fn reply_of_rules(&self, ticket: Ticket, done: Answer) -> Reply {
        let answers = self.answers.clone();
        Box::new(move |outcome: &Outcome| {
            let answer = match outcome {
                Outcome::Done | Outcome::TimedOut(_) => Ok(done),
                Outcome::Refused(why) => Err(Refusal::Dataplane(why.clone())),
            };
            answers.push((ticket, answer));
        })
    }

    /// Carries out a request about the vNIC; the kernel applies it when this returns. `None` if the
    /// request is about something else.
    fn change(&mut self, request: &Request) -> Option<Result<vnic::Change, Refusal>> {
        Some(match request {
            Request::Vnic => Ok(vnic::Change { answer: self.vnic.look().into(), rules: None }),
            Request::FilterCreate { vnic: Some(_), .. }
            | Request::FilterAssign { vnic: Some(_), .. }
            | Request::VnicCreate { .. }
            | Request::VnicDelete { .. }
            | Request::Rate { vnic: Some(_), .. }
            | Request::Rate { weight: Some(_), .. } => {
                Err(Refusal::Unsupported("do that: it has one vNIC; `ix share` makes several"))
            }
            Request::FilterCreate { filters, holder, vnic: None, queue } => vnic::linux_addresses()
                .and_then(|linux| {
                    self.vnic.create(self.devices, filters, holder.as_deref(), *queue, linux)
                }),
            Request::FilterAssign { capability, vnic: None, queue } => {
                self.vnic.assign(self.devices, capability, *queue)
            }
            Request::FilterDerive { capability, filter } => {
                self.vnic.derive(self.devices, capability, filter.clone())
            }
            Request::FilterRevoke { capability } => self.vnic.revoke(self.devices, capability),
            Request::FilterRemove { filter } => self.vnic.remove(self.devices, *filter),
            Request::Rate { rx, tx, flow, queue, .. } => {
                self.vnic.rate(*queue, RateChanges { rx: *rx, tx: *tx, flow: *flow })
            }
            _ => return None,
        })
    }

    /// The command to the dataplane that a request asks for.
    fn command(&self, request: &Request) -> Result<Command, Refusal> {
        match request {
            Request::Migrate { groups, to } => {
                Ok(Command::Migrate { groups: *groups, to: self.thread(*to)? })
            }
            Request::Park { thread } => Ok(Command::Park { thread: self.thread(*thread)? }),
            Request::Resume { thread } => Ok(Command::Resume { thread: self.thread(*thread)? }),
            Request::Drain { thread } => Ok(Command::Drain { thread: self.thread(*thread)? }),
            Request::Status
            | Request::Stats
            | Request::Subscribe { .. }
            | Request::Unsubscribe
            | Request::Connections(_)
            | Request::Policy { .. }
            | Request::Capture { .. }
            | Request::CaptureStop { .. }
            | Request::About { .. }
            | Request::Vnic
            | Request::FilterCreate { .. }
            | Request::FilterDerive { .. }
            | Request::FilterAssign { .. }
            | Request::VnicCreate { .. }
            | Request::VnicDelete { .. }
            | Request::FilterRevoke { .. }
            | Request::FilterRemove { .. }
            | Request::Rate { .. }
            | Request::Control { .. } => Err(Refusal::Unsupported("do that")),
        }
    }

    /// The number by which the dataplane knows a process of the program.
    fn number_of(&self, pid: u32) -> Result<u32, Refusal> {
        let number = match self.sharing {
            Some(sharing) => {
                sharing.processes.iter().find(|one| one.pid == pid).map(|one| one.number)
            }
            None => (pid == self.name.pid).then_some(0),
        };
        number.ok_or_else(|| {
            Refusal::Dataplane(format!(
                "process {pid} does not share this dataplane; `ix ctl status` lists those that do"
            ))
        })
    }

    fn thread(&self, thread: usize) -> Result<usize, Refusal> {
        let there = thread < self.threads;
        if there { Ok(thread) } else { Err(Refusal::NoSuchThread(thread, self.threads)) }
    }
}
