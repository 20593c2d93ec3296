//! Measures how exactly a limit holds.
use super::shared::{PORT, Shared, TENANTS};
use super::{limit, quantile, rounded};
use crate::lab::{CLIENT_LINK, Host, Lab};
use crate::path::flows::Receivers;
use crate::serve::Serve;
use ix_proto::control::vnic::RateChange;
use ix_report::problem::{Problem, Result};
use ix_vnic::Rate;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The limits to measure, bits per second; the last one is a share of what the link carries in its
/// slowest second.
const RATES: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
const OF_LINK: f64 = 0.8;
/// After a limit was set, queues drain for a moment.
const SETTLE: Duration = Duration::from_millis(700);
const FLOWS: usize = 2;
/// A counter that took longer to read is read again, because the time of its value is too
/// uncertain.
const READ: Duration = Duration::from_micros(200);
const READS: usize = 50;

pub(super) fn measure(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let server = lab.start(Host::IX, &Serve::echo(&["bulk".to_owned()]))?;
    let control = server.control().unwrap_or_default();
    let set = |rate: u64| limit(&control, RateChange::Set(Rate::bits(rate)), RateChange::Keep);
    let limited = Limited { by: "its dataplane", set: &set, dropped: &|| Ok(None) };
    let mut rows = all_rates(lab, quick, server.address(), &limited)?;
    server.stop();

    let shared = Shared::start(lab, "100Gbit")?;
    let tenant = shared.tenant("limited", TENANTS[0], lab.cpus.0, "bulk")?;
    let set = |rate: u64| shared.rate("limited", RateChange::Set(Rate::bits(rate)), 1);
    let dropped = || shared.dropped().map(Some);
    let limited = Limited { by: "it and the kernel", set: &set, dropped: &dropped };
    rows.extend(all_rates(lab, quick, SocketAddr::from((TENANTS[0], PORT)), &limited)?);
    tenant.stop();
    shared.stop();
    Ok(rows)
}

/// What enforces a limit, how it is set, and how many packets the kernel has dropped for it.
struct Limited<'a> {
    by: &'a str,
    set: &'a dyn Fn(u64) -> Result<()>,
    dropped: &'a dyn Fn() -> Result<Option<u64>>,
}

/// Rows of a server that sends all it may, under one limit after another.
fn all_rates(
    lab: &Lab,
    quick: bool,
    server: SocketAddr,
    limited: &Limited<'_>,
) -> Result<Vec<Value>> {
    let seconds = if quick { 3 } else { 10 };
    let receivers = Receivers::start(lab.client_namespace(), &[server; FLOWS])?;
    std::thread::sleep(SETTLE);
    // What the link carries in every second: its speed depends on processor time and varies, and a
    // limit above the link's speed cannot be measured.
    let link = windows(lab, seconds)?;
    let (link, link_most) =
        (link.iter().copied().fold(f64::MAX, f64::min), link.into_iter().fold(0.0, f64::max));
    let of_link = (link * OF_LINK / 1e6).round() as u64 * 1_000_000;
    // From fast to slow, so that queues drain sooner.
    let mut rates: Vec<u64> = RATES.into_iter().filter(|rate| *rate < of_link).collect();
    rates.push(of_link);
    let mut rows = Vec::new();
    for rate in rates.into_iter().rev() {
        eprintln!("ix: a limit of {} Mbit/s, enforced by {}", rate / 1_000_000, limited.by);
        (limited.set)(rate)?;
        std::thread::sleep(SETTLE);
        let dropped = (limited.dropped)()?;
        let error = |bits: f64| (bits / rate as f64 - 1.0) * 100.0;
        let mut errors: Vec<f64> = windows(lab, seconds)?.into_iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        let dropped = (limited.dropped)()?.zip(dropped).map(|(after, before)| after - before);
        let (least, most) = (quantile(&errors, 0.0), quantile(&errors, 1.0));
        rows.push(json!({
            "what": "limits",
            "system": "ix",
            "device": "afxdp",
            "kept_by": limited.by,
            "kernel_dropped": dropped,
            "limit_mbit_per_s": rate / 1_000_000,
            "seconds": seconds,
            "error_percent": rounded(quantile(&errors, 0.5)),
            "least_percent": rounded(least),
            "most_percent": rounded(most),
            "worst_error_percent": rounded(least.abs().max(most.abs())),
            "link_mbit_per_s": (link / 1e6).round(),
            "link_most_mbit_per_s": (link_most / 1e6).round(),
        }));
    }
    rows.reverse();
    drop(receivers);
    Ok(rows)
}

/// Bits per second that arrived at the client's end of the link, second by second, each by the true
/// time between its readings.
fn windows(lab: &Lab, seconds: usize) -> Result<Vec<f64>> {
    let mut windows = Vec::new();
    let mut last = received(lab)?;
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1).saturating_sub(last.1.elapsed()));
        let next = received(lab)?;
        let took = next.1.duration_since(last.1).as_secs_f64();
        windows.push((next.0 - last.0) as f64 * 8.0 / took);
        last = next;
    }
    Ok(windows)
}

/// Bytes that arrived at the client's end, with Ethernet headers, and the time of the reading.
fn received(lab: &Lab) -> Result<(u64, Instant)> {
    let cannot = |e: std::io::Error| Problem::new("cannot read the link's counters", e);
    let (text, at) = lab.client_namespace().run(read_counters).map_err(cannot)?;
    let link = format!("{CLIENT_LINK}:");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&link));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let none = || Problem::new("cannot read the link's counters", "it has none");
    Ok((bytes.ok_or_else(none)?, at))
}

/// All links' counters, and when they were read, as exactly as a busy machine allows.
fn read_counters() -> std::io::Result<(String, Instant)> {
    let mut tries = 0;
    loop {
        let before = Instant::now();
        let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let took = before.elapsed();
        tries += 1;
        if took <= READ || tries == READS {
            return Ok((text, before + took / 2));
        }
    }
}
