//! Clients that ask a web server all the time, each time on a connection of its own.
use crate::support::{Ends, PATIENCE, SERVICE, TestNet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Number of clients.
const CLIENTS: usize = 8;

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Answers.
    pub answers: usize,
    /// What went wrong, each with the seconds since the beginning.
    pub failures: Vec<(f64, String)>,
}

/// One request on a connection of its own; returns the answer's body.
pub fn ask(path: &str) -> std::io::Result<String> {
    ask_at(SERVICE.into(), path)
}

/// The same at another address.
pub fn ask_at(at: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: ix\r\n\r\n").as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let whole = said.split_once("\r\n\r\n").filter(|(head, _)| head.contains(" 200 "));
    let body = whole.map(|(_, body)| body.to_owned());
    body.ok_or_else(|| std::io::Error::other(format!("no answer: {said:?}")))
}

/// Asks as long as `meanwhile` takes. `is_answer` looks at each body.
pub fn during(
    net: &TestNet,
    path: &str,
    is_answer: impl Fn(&str) -> bool + Sync,
    meanwhile: impl FnOnce(),
) -> Outcome {
    during_at(net, SERVICE.into(), path, is_answer, meanwhile)
}

/// The same at another address.
pub fn during_at(
    net: &TestNet,
    at: SocketAddr,
    path: &str,
    is_answer: impl Fn(&str) -> bool + Sync,
    meanwhile: impl FnOnce(),
) -> Outcome {
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let client = || {
        net.client.run(|| {
            let mut outcome = Outcome::default();
            while !is_over.load(Ordering::Relaxed) {
                let asked_s = began.elapsed().as_secs_f64();
                match ask_at(at, path) {
                    Ok(body) if is_answer(&body) => outcome.answers += 1,
                    Ok(body) => outcome.failures.push((asked_s, body)),
                    Err(error) => outcome.failures.push((asked_s, error.to_string())),
                }
            }
            outcome
        })
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        {
            // They end where `meanwhile` fails, too.
            let _ends = Ends(&is_over);
            meanwhile();
        }
        clients.into_iter().fold(Outcome::default(), |mut all, client| {
            let one = client.join().expect("a client");
            all.answers += one.answers;
            all.failures.extend(one.failures);
            all
        })
    })
}
