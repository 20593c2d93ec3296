//! The thread for one dataplane's control socket. It attaches, sends requests, and attaches again
//! when an answer is missing. The controller's own thread never waits for a dataplane.
use ix_broker::control::Client;
use ix_controller::Step;
use ix_proto::GroupSet;
use ix_proto::control::{Answer, PolicyRequest, Report, Request, Role, Status};
use ix_report::problem::{Problem, Result};
use ix_sys::socket::connect_unix_within;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Longest wait for a place in the queue of a socket.
const CONNECTING: Duration = Duration::from_secs(2);
/// Time between two attempts to attach.
const AGAIN: Duration = Duration::from_secs(1);

/// Work for the thread.
pub(super) enum Work {
    /// Get the dataplane's state.
    Look,
    /// Send the controller's report.
    Report(Report),
    /// Send a request; the answer goes to this channel.
    Do(Request, Sender<Result<Answer>>),
}

/// A message from the thread.
pub(super) enum Message {
    /// The controller is now the active one of this program's dataplane.
    Attached { pid: u32, program: String, request_serial: u64 },
    /// The dataplane refuses the controller: the reason, and whether a later attempt may succeed. A
    /// controller that was killed counts as active for some seconds.
    Refused(Problem, bool),
    /// The dataplane's state.
    Look(Box<Status>),
    /// What its operators have asked for.
    Request(PolicyRequest),
    /// It has ended.
    Gone(String),
}

/// Starts the thread. It ends with the dataplane, or when the controller has ended.
pub(super) fn start(
    path: &Path,
    report: Report,
    jobs: Receiver<Work>,
    message: Sender<Message>,
) -> Result<()> {
    let path = path.to_owned();
    let mut talk = Talk { path, report, jobs, message };
    let thread = std::thread::Builder::new().name("ix-cp-talk".to_owned());
    let thread = thread.spawn(move || while talk.attach_and_serve().is_some() {});
    thread.map(|_| ()).map_err(|e| Problem::new("cannot start a thread", e))
}

/// The request that carries out a step; `None`: the step is not the dataplane's.
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
    message: Sender<Message>,
}

impl Talk {
    /// `None`: the thread ends.
    fn attach_and_serve(&mut self) -> Option<()> {
        let attached = match connect_unix_within(&self.path, CONNECTING) {
            Ok(_) => self.attach(),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Err(self.is_stopped()),
            Err(e) => {
                let _ = self.message.send(Message::Gone(e.to_string()));
                return None;
            }
        };
        match attached {
            Ok((client, attached)) => {
                self.message.send(attached).ok()?;
                self.serve(client)
            }
            Err(refused) => {
                self.message.send(refused).ok()?;
                self.refuse_for(AGAIN)
            }
        }
    }

    /// Nobody takes a connection: the dataplane has not ended.
    fn is_stopped(&self) -> Message {
        let what = format!("cannot control the dataplane at {}", self.path.display());
        let why = "too many clients wait for its `ix run`";
        Message::Refused(Problem::new(what, why).mend("check that it is not stopped"), true)
    }

    fn attach(&self) -> std::result::Result<(Client, Message), Message> {
        let for_ever = |problem| Message::Refused(problem, false);
        let mut client = Client::connect(&self.path).map_err(for_ever)?;
        let hello = client.hello().clone();
        if hello.role != Role::Operator {
            let what = format!("cannot control the dataplane at {}", self.path.display());
            return Err(for_ever(
                Problem::new(what, "its socket is read-only")
                    .mend("run the controller as its user or as root"),
            ));
        }
        // The dataplane refuses this if another controller is active.
        let request =
            client.get::<PolicyRequest>(&Request::Control { report: self.report.clone() });
        let request_serial = request.map_err(|problem| Message::Refused(problem, true))?.serial;
        let program = hello.program.rsplit('/').next().unwrap_or(&hello.program).to_owned();
        Ok((client, Message::Attached { pid: hello.pid, program, request_serial }))
    }

    /// Serves requests until an answer is missing. After that, a late answer would be taken for the
    /// next request's.
    fn serve(&mut self, mut client: Client) -> Option<()> {
        loop {
            let message = match self.jobs.recv().ok()? {
                Work::Look => {
                    let Ok(status) = client.status() else { return Some(()) };
                    Message::Look(Box::new(status))
                }
                Work::Report(report) => {
                    self.report = report;
                    match client.get(&Request::Control { report: self.report.clone() }) {
                        Ok(request) => Message::Request(request),
                        // Attaching again shows the reason.
                        Err(_) => return Some(()),
                    }
                }
                Work::Do(request, answer) => {
                    let done = client.ask(&request);
                    let lost = done.is_err() && !is_alive(&mut client);
                    // The controller may have stopped waiting.
                    let _ = answer.send(done);
                    if lost {
                        return Some(());
                    }
                    continue;
                }
            };
            self.message.send(message).ok()?;
        }
    }

    /// Waits before the next attempt; refuses all work meanwhile.
    fn refuse_for(&mut self, time: Duration) -> Option<()> {
        let until = Instant::now() + time;
        loop {
            match self.jobs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Work::Do(_, answer)) => {
                    let _ = answer.send(Err(Problem::line("another controller controls it")));
                }
                Ok(Work::Report(report)) => self.report = report,
                Ok(Work::Look) => {}
                Err(RecvTimeoutError::Timeout) => return Some(()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// After a refused step the connection can be used; after a missing answer it cannot.
fn is_alive(client: &mut Client) -> bool {
    client.status().is_ok()
}
