//! Asks all dataplanes at once, and waits for them only so long.
//!
//! A dataplane is asked by a thread, because its socket may block in many ways. A thread that has
//! no answer yet is not joined by a second one, so a dataplane that hangs holds one thread and one
//! place in its queue, however often it is scraped.
use super::places::Places;
use ix_broker::control::Client;
use ix_broker::control::exposition::{Answered, Source};
use ix_proto::control::Status;
use ix_report::problem::{Problem, Result};
use ix_sys::{event, say};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Longest wait for the dataplanes' answers. A server waits ten seconds by default.
const WITHIN: Duration = Duration::from_secs(1);

/// What all dataplanes say.
pub struct Asker {
    places: Places,
    known: BTreeMap<PathBuf, Known>,
    /// The round that runs, and until when it waits.
    until: Option<Instant>,
    bell: Arc<OwnedFd>,
    sender: Sender<News>,
    news: Receiver<News>,
}

/// A socket.
#[derive(Default)]
struct Known {
    /// Whose it is, as far as it was said.
    source: Source,
    /// A thread waits for its answer.
    is_asked: bool,
    /// It belongs to the round that runs.
    in_round: bool,
    /// The answer of this round, and how long it took, seconds.
    answer: Option<(Status, f64)>,
    /// Why there was none, which is said once until it answers again.
    why: Option<String>,
}

/// What a thread has heard.
struct News {
    path: PathBuf,
    heard: Result<(Source, Status)>,
    took: Duration,
}

impl Asker {
    /// Asks nobody yet.
    pub fn new(places: Places) -> io::Result<Asker> {
        let (sender, news) = channel();
        let bell = Arc::new(event::open()?);
        Ok(Asker { places, known: BTreeMap::new(), until: None, bell, sender, news })
    }

    /// Readable when [`Asker::step`] has something to do.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// When to call [`Asker::step`] even so; `None`: no round runs.
    pub fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Begins a round.
    pub fn begin(&mut self, now: Instant) {
        self.until = Some(now + WITHIN);
        let listed = self.places.list();
        self.known.retain(|path, known| known.is_asked || listed.contains_key(path));
        for (path, pid) in listed {
            let known = self.known.entry(path.clone()).or_default();
            if pid > 0 {
                known.source.pid = pid;
            }
            known.in_round = true;
            if !known.is_asked {
                known.answer = None;
                known.is_asked = ask(path, self.sender.clone(), self.bell.clone());
            }
        }
        // There may be nobody to wait for.
        event::ring(self.bell.as_fd());
    }

    /// Hears what has been said. Returns the answers of a round that is over, by process.
    pub fn step(&mut self, now: Instant) -> Option<Vec<Answered>> {
        event::silence(self.bell.as_fd());
        while let Ok(news) = self.news.try_recv() {
            self.hear(news);
        }
        let until = self.until?;
        let waits = |known: &Known| known.in_round && known.is_asked;
        if self.known.values().any(waits) && now < until {
            return None;
        }
        self.until = None;
        let round = self.known.iter_mut().filter(|(_, known)| known.in_round);
        let mut answers: Vec<Answered> = round.map(|(path, known)| known.conclude(path)).collect();
        answers.sort_by_key(|answered| answered.source.pid);
        Some(answers)
    }

    fn hear(&mut self, News { path, heard, took }: News) {
        let Some(known) = self.known.get_mut(&path) else { return };
        known.is_asked = false;
        match heard {
            Ok((source, status)) => {
                // The socket's name is not what the dataplane says.
                let pid = if known.source.pid > 0 { known.source.pid } else { source.pid };
                known.source = Source { pid, ..source };
                known.answer = Some((status, took.as_secs_f64()));
                if known.why.take().is_some() {
                    say!("the dataplane of process {pid} answers again");
                }
            }
            // It has ended, and its socket with it.
            Err(_) if !path.exists() => drop(self.known.remove(&path)),
            Err(problem) => known.misses(&problem.to_string()),
        }
    }
}

impl Known {
    /// What came of the round.
    fn conclude(&mut self, path: &Path) -> Answered {
        self.in_round = false;
        if self.is_asked {
            self.misses(&format!("no answer from {} within {WITHIN:?}", path.display()));
        }
        // A late answer is none.
        let status = self.answer.take().filter(|_| !self.is_asked);
        Answered { source: self.source.clone(), status }
    }

    /// Says why there is no answer, unless that is known.
    fn misses(&mut self, why: &str) {
        if self.why.is_none() {
            say!("{why}");
        }
        self.why = Some(why.to_owned());
    }
}

/// Starts a thread that asks; returns whether there is one.
fn ask(path: PathBuf, to: Sender<News>, bell: Arc<OwnedFd>) -> bool {
    let thread = std::thread::Builder::new().name("ix-ask".to_owned());
    let started = thread.spawn(move || {
        let began = Instant::now();
        let heard = look(&path);
        // Nobody is there any more if this fails.
        let _ = to.send(News { path, heard, took: began.elapsed() });
        event::ring(bell.as_fd());
    });
    started.is_ok()
}

/// The state of the dataplane of a socket.
fn look(path: &Path) -> Result<(Source, Status)> {
    let mut client = Client::connect(path)?;
    let hello = client.hello().clone();
    let status = client
        .stats()
        .map_err(|why| Problem::new(format!("no metrics from {}", path.display()), why))?;
    let mut source = Source::of(&status, &hello.ix);
    if source.pid == 0 {
        source.pid = hello.pid;
    }
    Ok((source, status))
}
