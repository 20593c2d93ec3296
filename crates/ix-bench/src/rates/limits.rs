//! How exactly a limit holds.
use super::{limit, quantile, rounded};
use crate::lab::{Host, Lab};
use crate::path::flows::Receivers;
use crate::serve::Serve;
use ix_cli::problem::{Problem, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The usual ones, bits a second; the last is a part of what the link carries.
const RATES: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
const OF_LINK: f64 = 0.8;
/// A limit that is new has a moment in which queues run dry.
const SETTLE: Duration = Duration::from_millis(700);
const FLOWS: usize = 2;

pub(super) fn measure(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let seconds = if quick { 2 } else { 10 };
    let server = lab.start(Host::Ix, &Serve::echo(&["bulk".to_owned()]))?;
    let control = server.control().unwrap_or_default();
    let receivers = Receivers::start(lab.client_namespace(), &[server.address(); FLOWS])?;
    std::thread::sleep(SETTLE);
    let link = windows(lab, 2)?.into_iter().fold(0.0, f64::max);
    let of_link = (link * OF_LINK / 1e6).round() as u64 * 1_000_000;
    // From fast to slow: what waits in queues drains the sooner.
    let mut rates: Vec<u64> = RATES.into_iter().filter(|rate| *rate < of_link).collect();
    rates.push(of_link);
    let mut rows = Vec::new();
    for rate in rates.into_iter().rev() {
        eprintln!("ix: a limit of {} Mbit/s", rate / 1_000_000);
        limit(&control, Some(&format!("{rate}bit")), None)?;
        std::thread::sleep(SETTLE);
        let mut errors: Vec<f64> = windows(lab, seconds)?
            .into_iter()
            .map(|bits| (bits / rate as f64 - 1.0).abs() * 100.0)
            .collect();
        errors.sort_by(f64::total_cmp);
        let worst = errors.last().copied().unwrap_or(0.0);
        rows.push(json!({
            "what": "limits",
            "system": "ix",
            "device": "afxdp",
            "limit_mbit_per_s": rate / 1_000_000,
            "seconds": seconds,
            "error_percent": rounded(quantile(&errors, 0.5)),
            "worst_error_percent": rounded(worst),
            "link_mbit_per_s": (link / 1e6).round(),
        }));
    }
    rows.reverse();
    drop(receivers);
    server.stop();
    Ok(rows)
}

/// Bits that the client's end of the link got, second by second.
fn windows(lab: &Lab, seconds: usize) -> Result<Vec<f64>> {
    let mut windows = Vec::new();
    let (mut before, mut since) = (received(lab)?, Instant::now());
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1).saturating_sub(since.elapsed()));
        let (now, at) = (received(lab)?, Instant::now());
        let took = at.duration_since(since).as_secs_f64();
        windows.push((now - before) as f64 * 8.0 / took);
        (before, since) = (now, at);
    }
    Ok(windows)
}

/// Bytes that came to the client's end, Ethernet headers and all.
fn received(lab: &Lab) -> Result<u64> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let text = lab.client_namespace().run(read);
    let text = text.map_err(|e| Problem::new("cannot read the link's counters", e))?;
    let link = format!("{}:", crate::lab::CLIENT_LINK);
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&link));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.ok_or_else(|| Problem::new("cannot read the link's counters", "it has none"))
}
