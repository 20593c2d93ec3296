//! Snapshots of one dataplane, read by a thread of their own.
use ix_broker::control::{Client, Found};
use ix_proto::control::{Connections, Query, Request, Status, Topic};
use ix_report::problem::Result;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two attempts to reach a dataplane.
const RETRY: Duration = Duration::from_secs(1);

/// A message of the thread.
pub enum News {
    /// A snapshot of the dataplane.
    Look(Box<Status>),
    /// Its TCP connections, or why they cannot be listed.
    Connections(std::result::Result<Connections, String>),
    /// Why it cannot be reached.
    Lost(String),
}

/// The receiving end; its thread ends with it.
pub struct Feed {
    news: Receiver<News>,
    ended: Arc<AtomicBool>,
    path: std::path::PathBuf,
    sender: Arc<Mutex<Sender<News>>>,
}

impl Feed {
    /// Starts the thread.
    pub fn start(of: &Found, interval: Duration) -> Feed {
        let (sender, news) = channel();
        let (ended, path) = (Arc::new(AtomicBool::new(false)), of.path.clone());
        let feed = Feed {
            news,
            ended: ended.clone(),
            path: path.clone(),
            sender: Arc::new(Mutex::new(sender.clone())),
        };
        std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                let Err(problem) = follow(&path, interval, &sender, &ended) else { return };
                if sender.send(News::Lost(problem.to_string())).is_err() {
                    return;
                }
                std::thread::sleep(RETRY);
            }
        });
        feed
    }

    /// The next message, if there is one.
    pub fn next(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Asks for the connections, which a later message has.
    pub fn want_connections(&self, query: Query) {
        let (path, sender) = (self.path.clone(), self.sender.clone());
        std::thread::spawn(move || {
            let ask = || Client::connect(&path)?.get(&Request::Connections(query));
            let answer = ask().map_err(|problem| problem.to_string());
            let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            // The receiver may have been dropped.
            let _ = sender.send(News::Connections(answer));
        });
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

/// Passes snapshots on until the receiver is dropped (`Ok`) or the connection is lost.
fn follow(path: &Path, interval: Duration, to: &Sender<News>, ended: &AtomicBool) -> Result<()> {
    let mut client = Client::connect(path)?;
    let interval_ms = interval.as_millis() as u64;
    client.ask(&Request::Subscribe { to: Topic::Status, interval_ms })?;
    loop {
        let status = client.next_snapshot()?;
        if ended.load(Relaxed) || to.send(News::Look(Box::new(status))).is_err() {
            return Ok(());
        }
    }
}
