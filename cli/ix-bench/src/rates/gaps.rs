//! Measures how evenly packets leave.
use super::{limit, quantile, rounded};
use crate::lab::{CLIENT_LINK, Host, Lab};
use crate::path::flows::Receivers;
use crate::serve::Serve;
use ix_proto::control::vnic::RateChange;
use ix_report::problem::{Problem, Result};
use ix_sys::socket::set_receive_timeout;
use ix_sys::stamps;
use ix_testbed::PacketSocket;
use ix_vnic::Rate;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const FLOW_MBIT_PER_S: u64 = 100;
const SETTLE: Duration = Duration::from_millis(700);
/// A bucket of the histogram is a slot of the wheel, µs; the last one has all longer gaps.
const BUCKET_US: f64 = 16.0;
const BUCKETS: usize = 20;
/// Longest wait for a packet.
const PATIENCE: Duration = Duration::from_millis(100);
/// Shorter packets carry no data.
const DATA_BYTES: usize = 1000;

pub(super) fn measure(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let seconds = Duration::from_secs(if quick { 1 } else { 5 });
    let server = lab.start(Host::IX, &Serve::echo(&["bulk".to_owned()]))?;
    let control = server.control().unwrap_or_default();
    let mut rows = Vec::new();
    for (flows, paced) in [(1, true), (4, true), (4, false)] {
        let kind = if paced { "each flow" } else { "all flows" };
        eprintln!("ix: {flows} flows, {FLOW_MBIT_PER_S} Mbit/s for {kind}");
        let mbit = |rate: u64| RateChange::Set(Rate::bits(rate * 1_000_000));
        match paced {
            true => limit(&control, RateChange::Remove, mbit(FLOW_MBIT_PER_S))?,
            false => limit(&control, mbit(FLOW_MBIT_PER_S * flows as u64), RateChange::Remove)?,
        }
        let receivers = Receivers::start(lab.client_namespace(), &vec![server.address(); flows])?;
        std::thread::sleep(SETTLE);
        let mut gaps = arrivals(lab, seconds)?;
        drop(receivers);
        gaps.sort_unstable_by(f64::total_cmp);
        let mut histogram = [0u64; BUCKETS + 1];
        gaps.iter().for_each(|gap| histogram[((gap / BUCKET_US) as usize).min(BUCKETS)] += 1);
        rows.push(json!({
            "what": "gaps",
            "system": "ix",
            "device": "afxdp",
            "flows": flows,
            "limit_for": kind,
            "flow_mbit_per_s": FLOW_MBIT_PER_S,
            "even_us": rounded(1514.0 * 8.0 / FLOW_MBIT_PER_S as f64),
            "p10_us": rounded(quantile(&gaps, 0.1)),
            "p50_us": rounded(quantile(&gaps, 0.5)),
            "p90_us": rounded(quantile(&gaps, 0.9)),
            "p99_us": rounded(quantile(&gaps, 0.99)),
            "packets": gaps.len(),
            "histogram_of_16_us": histogram,
        }));
    }
    server.stop();
    Ok(rows)
}

/// Gaps between arrivals of packets of the same flow, µs.
fn arrivals(lab: &Lab, time: Duration) -> Result<Vec<f64>> {
    let cannot = |e: io::Error| Problem::new("cannot watch the link", e);
    let socket = PacketSocket::open(lab.client_namespace(), CLIENT_LINK)
        .map_err(|e| Problem::new("cannot watch the link", e))?;
    ask_for_times(&socket).map_err(cannot)?;
    let (end, mut last, mut gaps) = (Instant::now() + time, BTreeMap::new(), Vec::new());
    while Instant::now() < end {
        let Some(arrival) = next_arrival(&socket).map_err(cannot)? else { continue };
        if arrival.bytes >= DATA_BYTES
            && let Some(before) = last.insert(arrival.port, arrival.at_ns)
        {
            gaps.push(arrival.at_ns.saturating_sub(before) as f64 / 1000.0);
        }
    }
    Ok(gaps)
}

struct Arrival {
    at_ns: u64,
    bytes: usize,
    /// The client's port, which identifies the flow.
    port: u16,
}

/// Asks the kernel for time stamps of arrivals, and bounds each wait.
fn ask_for_times(socket: &PacketSocket) -> io::Result<()> {
    set_receive_timeout(socket.as_fd(), PATIENCE)?;
    stamps::enable_receive(socket.as_fd())
}

/// Returns the next packet; `None` if none came for a while, or one without a time stamp.
fn next_arrival(socket: &PacketSocket) -> io::Result<Option<Arrival>> {
    // The beginning of a frame is enough.
    let mut front = [0u8; 64];
    let Some((bytes, Some(at_ns))) = stamps::receive_packet(socket.as_fd(), &mut front)? else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([front[36], front[37]]);
    Ok(Some(Arrival { at_ns, bytes, port }))
}
