//! The thread that talks to one dataplane's control socket: attaches, asks, and attaches again when
//! an answer did not come. Whatever it has to wait for, the controller does not.
use ix_broker::control::Client;
use ix_controller::Step;
use ix_proto::GroupSet;
use ix_proto::control::{Answer, PolicyRequest, Report, Request, Role, Status};
use ix_report::problem::{Problem, Result};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Between two tries to attach.
const AGAIN: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
pub(super) enum Work {
    /// See what the dataplane does.
    Look,
    /// Say who is in charge.
    Report(Report),
    /// Change something; the answer goes there.
    Do(Request, Sender<Result<Answer>>),
}

/// What the thread has heard.
pub(super) enum Heard {
    /// We are in charge of this program's dataplane.
    Attached { pid: u32, program: String, wish_serial: u64 },
    /// We are not, why, and whether that may pass: a controller that was killed counts as alive for
    /// a while.
    Refused(Problem, bool),
    /// What it does.
    Look(Box<Status>),
    /// What its operators ask for.
    PolicyRequest(PolicyRequest),
    /// It has ended.
    Gone(String),
}

/// Starts it. It ends with the dataplane, or when nobody listens any more.
pub(super) fn start(
    path: &Path,
    report: Report,
    jobs: Receiver<Work>,
    heard: Sender<Heard>,
) -> Result<()> {
    let path = path.to_owned();
    let mut talk = Talk { path, report, jobs, heard };
    let thread = std::thread::Builder::new().name("ix-cp-talk".to_owned());
    let thread = thread.spawn(move || while talk.attach_and_serve().is_some() {});
    thread.map(|_| ()).map_err(|e| Problem::new("cannot start a thread", e))
}

/// The request that is a step; `None`: it is not for the dataplane.
pub(super) fn request(step: &Step) -> Option<Request> {
    match step {
        Step::Resume { thread } => Some(Request::Resume { thread: usize::from(*thread) }),
        Step::Park { thread } => Some(Request::Park { thread: usize::from(*thread) }),
        Step::Migrate { to, groups, .. } => {
            let groups: GroupSet = groups.iter().map(|group| usize::from(*group)).collect();
            Some(Request::Migrate { groups, to: usize::from(*to) })
        }
        Step::Clock { .. } | Step::Background { .. } => None,
    }
}

struct Talk {
    path: PathBuf,
    report: Report,
    jobs: Receiver<Work>,
    heard: Sender<Heard>,
}

impl Talk {
    /// `None`: that was all.
    fn attach_and_serve(&mut self) -> Option<()> {
        if let Err(e) = UnixStream::connect(&self.path) {
            let _ = self.heard.send(Heard::Gone(e.to_string()));
            return None;
        }
        match self.attach() {
            Ok((client, attached)) => {
                self.heard.send(attached).ok()?;
                self.serve(client)
            }
            Err(refused) => {
                self.heard.send(refused).ok()?;
                self.refuse_for(AGAIN)
            }
        }
    }

    fn attach(&self) -> std::result::Result<(Client, Heard), Heard> {
        let for_ever = |problem| Heard::Refused(problem, false);
        let mut client = Client::connect(&self.path).map_err(for_ever)?;
        let hello = client.hello().clone();
        if hello.role != Role::Operator {
            let what = format!("cannot control the dataplane at {}", self.path.display());
            return Err(for_ever(
                Problem::new(what, "its socket is for looking only")
                    .mend("run the controller as its user or as root"),
            ));
        }
        // If another controller is in charge, this is refused.
        let wish = client.get::<PolicyRequest>(&Request::Control { report: self.report.clone() });
        let wish_serial = wish.map_err(|problem| Heard::Refused(problem, true))?.serial;
        let program = hello.program.rsplit('/').next().unwrap_or(&hello.program).to_owned();
        Ok((client, Heard::Attached { pid: hello.pid, program, wish_serial }))
    }

    /// Until an answer does not come: what comes later would be taken for the next one's.
    fn serve(&mut self, mut client: Client) -> Option<()> {
        loop {
            let heard = match self.jobs.recv().ok()? {
                Work::Look => {
                    let Ok(status) = client.status() else { return Some(()) };
                    Heard::Look(Box::new(status))
                }
                Work::Report(report) => {
                    self.report = report;
                    match client.get(&Request::Control { report: self.report.clone() }) {
                        Ok(wish) => Heard::PolicyRequest(wish),
                        // Whatever it is: attaching again will say.
                        Err(_) => return Some(()),
                    }
                }
                Work::Do(request, answer) => {
                    let done = client.ask(&request);
                    let lost = done.is_err() && !is_alive(&mut client);
                    // Who asked may have given up.
                    let _ = answer.send(done);
                    if lost {
                        return Some(());
                    }
                    continue;
                }
            };
            self.heard.send(heard).ok()?;
        }
    }

    /// Nothing can be done for a while.
    fn refuse_for(&mut self, time: Duration) -> Option<()> {
        let until = Instant::now() + time;
        loop {
            match self.jobs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Work::Do(_, answer)) => {
                    let _ = answer.send(Err(Problem::line("we are not in charge of it")));
                }
                Ok(Work::Report(report)) => self.report = report,
                Ok(Work::Look) => {}
                Err(RecvTimeoutError::Timeout) => return Some(()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// A step that was refused leaves the connection in order, one that was not answered does not.
fn is_alive(client: &mut Client) -> bool {
    client.status().is_ok()
}
