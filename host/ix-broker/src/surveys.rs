//! Surveys of all connections: the broker asks the dataplane for one, and answers everybody who
//! waited for it. One at a time; a rate takes two of them.
use crate::control::{Answers, Query, Refusal, Ticket, address, state_name};
use ix_dataplane::{FlowRecord, SurveyArea};
use ix_launch::Channel;
use ix_proto::{Codec, FromImage, GroupSet, ToImage};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

/// What threads have not told by then is missing in the answer.
const TIME_MAX: Duration = Duration::from_millis(1200);
/// Room for more connections than there are: they come while they are told.
const ROOM_MIN: usize = 4096;
/// Most connections that are told.
const ROOM_MAX: usize = 2 << 20;
/// Requests that wait, at most.
const QUEUE_MAX: usize = 64;

/// Requests for connections, and the survey that runs.
#[derive(Default)]
pub struct Surveys {
    waiting: Vec<(Query, Ticket)>,
    stage: Stage,
    serial: u64,
}

/// A request that is answered by this survey or the next.
type Asked = Vec<(Query, Ticket)>;

/// Payload so far, by connection.
type Before = HashMap<u64, u64>;

#[derive(Default)]
enum Stage {
    /// Nobody asks.
    #[default]
    Rest,
    /// The dataplane goes through its connections.
    Runs { area: SurveyArea, until: Instant, began: Instant, asked: Asked, before: Option<Look> },
    /// Until the second look.
    Pause { until: Instant, asked: Asked, before: Look },
}

/// The first of two looks.
struct Look {
    at: Instant,
    bytes: Before,
}

impl Surveys {
    /// Somebody asks; the answer comes later.
    pub fn ask(&mut self, query: &Query, ticket: Ticket) -> Result<(), Refusal> {
        if self.waiting.len() >= QUEUE_MAX {
            return Err(Refusal::Dataplane("too many ask for connections".to_owned()));
        }
        self.waiting.push((query.clone(), ticket));
        Ok(())
    }

    /// The dataplane says something; answers false when it is not about a survey.
    pub fn heard(&mut self, message: &FromImage) -> bool {
        let FromImage::Surveyed { serial } = message else { return false };
        if let Stage::Runs { until, .. } = &mut self.stage
            && *serial == self.serial
        {
            *until = Instant::now();
        }
        true
    }

    /// When to call [`Surveys::service`] even if nothing was heard.
    pub fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Rest => (!self.waiting.is_empty()).then(Instant::now),
            Stage::Runs { until, .. } | Stage::Pause { until, .. } => Some(*until),
        }
    }

    /// Does what is due. `flows`: how many connections there are, about.
    pub fn service(&mut self, channel: Option<&Channel>, flows: usize, answers: &Answers) {
        let now = Instant::now();
        self.stage = match std::mem::take(&mut self.stage) {
            Stage::Runs { area, until, began, asked, before } if until <= now => {
                self.looked(&area, began, asked, before, answers)
            }
            Stage::Pause { until, asked, before } if until <= now => {
                self.begin(channel, flows, asked, Some(before), answers)
            }
            stage => stage,
        };
        if matches!(self.stage, Stage::Rest) && !self.waiting.is_empty() {
            let asked = std::mem::take(&mut self.waiting);
            self.stage = self.begin(channel, flows, asked, None, answers);
        }
    }

    fn begin(
        &mut self,
        channel: Option<&Channel>,
        flows: usize,
        asked: Asked,
        before: Option<Look>,
        answers: &Answers,
    ) -> Stage {
        self.serial += 1;
        let now = Instant::now();
        let until_us = crate::commands::monotonic_us() + TIME_MAX.as_micros() as u64;
        let sent = channel.ok_or_else(|| "the dataplane is gone".to_owned()).and_then(|channel| {
            let file = memory(flows).map_err(|e| format!("no memory for the answer: {e}"))?;
            let area = SurveyArea::map(file.as_fd()).map_err(|e| e.to_string())?;
            let message = ToImage::Survey { serial: self.serial, until_us };
            let sent = channel.try_send(&message.encode(), &[file.as_fd()]);
            sent.map_err(|e| format!("the dataplane does not listen: {e}"))?;
            Ok(area)
        });
        match sent {
            Ok(area) => Stage::Runs { area, until: now + TIME_MAX, began: now, asked, before },
            Err(why) => {
                let refuse = |(_, ticket)| (ticket, Err(Refusal::Dataplane(why.clone())));
                asked.into_iter().map(refuse).for_each(|answer| answers.push(answer));
                Stage::Rest
            }
        }
    }

    /// A look is over: answers those who wanted no more.
    fn looked(
        &mut self,
        area: &SurveyArea,
        began: Instant,
        asked: Asked,
        before: Option<Look>,
        answers: &Answers,
    ) -> Stage {
        let records = distinct(area);
        let result = Survey {
            records,
            missing: area.missing(),
            overflow: area.overflow(),
            took: began.elapsed(),
        };
        let wants_more = |query: &Query| before.is_none() && query.interval_ms > 0;
        let (later, now): (Asked, Asked) = asked.into_iter().partition(|(q, _)| wants_more(q));
        for (query, ticket) in now {
            let before = before.as_ref().filter(|_| query.interval_ms > 0);
            answers.push((ticket, Ok(result.answer(&query, before.map(|look| (look, began))))));
        }
        let Some(interval_ms) = later.iter().map(|(query, _)| query.interval_ms).max() else {
            return Stage::Rest;
        };
        let bytes = result.records.iter().map(|r| (r.handle, r.bytes_in + r.bytes_out)).collect();
        let until = began + Duration::from_millis(interval_ms);
        Stage::Pause { until, asked: later, before: Look { at: began, bytes } }
    }
}

/// A connection that moved while it was told may have been told twice: the last word counts.
fn distinct(area: &SurveyArea) -> Vec<FlowRecord> {
    let mut records: Vec<FlowRecord> = area.records().collect();
    records.sort_by_key(|record| record.handle);
    records.dedup_by_key(|record| record.handle);
    records
}

/// Sealed memory, so that no side can make the other one fault by truncating it.
fn memory(flows: usize) -> io::Result<File> {
    let records = (flows + flows / 4 + ROOM_MIN).min(ROOM_MAX);
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; a descriptor that the call answers is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"ix-survey".as_ptr(), flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    // Reserved now, so that an elastic thread does not find out that there is none.
    let bytes = SurveyArea::bytes_for(records) as libc::off_t;
    // SAFETY: no pointers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
    // SAFETY: no pointers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0.. => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a survey brought.
struct Survey {
    records: Vec<FlowRecord>,
    missing: GroupSet,
    overflow: u64,
    took: Duration,
}

impl Survey {
    /// What one who asked hears. `before`: an earlier look, and when this one was.
    fn answer(&self, query: &Query, before: Option<(&Look, Instant)>) -> Value {
        // What came since has moved all it has.
        let moved = |record: &FlowRecord| {
            let bytes = record.bytes_in.saturating_add(record.bytes_out);
            let earlier = before.and_then(|(look, _)| look.bytes.get(&record.handle));
            bytes.saturating_sub(earlier.copied().unwrap_or(0))
        };
        let mut picked: Vec<(u64, &FlowRecord)> = self
            .records
            .iter()
            .filter(|record| query.wants(record))
            .map(|record| (query.sort.key(record, moved(record)), record))
            .collect();
        let matched = picked.len();
        let most_first = |(key, record): &(u64, &FlowRecord)| (u64::MAX - key, record.handle);
        if query.max < matched && query.max > 0 {
            picked.select_nth_unstable_by_key(query.max - 1, most_first);
        }
        picked.truncate(query.max);
        picked.sort_unstable_by_key(most_first);
        let seconds = before.map(|(look, at)| (at - look.at).as_secs_f64());
        let connection = |(_, record): (u64, &FlowRecord)| {
            let mut value = to_json(record);
            if let Some(seconds) = seconds {
                value["bytes_per_s"] = (moved(record) as f64 / seconds.max(1e-6)).round().into();
            }
            value
        };
        json!({
            "total": self.records.len() as u64 + self.overflow,
            "matched": matched,
            "sort": query.sort,
            "took_us": self.took.as_micros() as u64,
            "missing_flow_groups": self.missing.to_string(),
            "left_out": self.overflow,
            "connections": picked.into_iter().map(connection).collect::<Vec<_>>(),
        })
    }
}

fn to_json(record: &FlowRecord) -> Value {
    let socket = |bytes, port| std::net::SocketAddr::new(address(bytes), port).to_string();
    json!({
        "peer": socket(&record.peer, record.peer_port),
        "local": socket(&record.local, record.local_port),
        "state": state_name(record.state),
        "thread": record.thread,
        "flow_group": record.flow_group,
        "cwnd_bytes": record.cwnd_bytes,
        "ssthresh_bytes": record.ssthresh_bytes,
        "mss_bytes": record.mss_bytes,
        "srtt_us": record.srtt_us,
        "rttvar_us": record.rttvar_us,
        "rto_us": record.rto_us,
        "snd_wnd_bytes": record.snd_wnd_bytes,
        "rcv_wnd_bytes": record.rcv_wnd_bytes,
        "in_flight_bytes": record.in_flight_bytes,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "retransmits": record.retransmits,
        "snd_queued_bytes": record.snd_queued_bytes,
        "rcv_queued_bytes": record.rcv_queued_bytes,
        "age_us": record.age_us,
        "idle_us": record.idle_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Sort;

    fn survey(count: u64) -> Survey {
        let record = |handle: u64| FlowRecord {
            handle,
            bytes_in: handle * 10,
            srtt_us: 1000 - handle as u32,
            thread: (handle % 2) as u16,
            ..FlowRecord::default()
        };
        let records = (1..=count).map(record).collect();
        Survey { records, missing: GroupSet::EMPTY, overflow: 0, took: Duration::ZERO }
    }

    fn keys(answer: &Value, name: &str) -> Vec<u64> {
        let list = answer["connections"].as_array().expect("a list");
        list.iter().filter_map(|connection| connection[name].as_u64()).collect()
    }

    #[test]
    fn the_most_come_first_and_no_more_than_asked_for() {
        let survey = survey(100);
        let query = Query { max: 3, ..Query::default() };
        let answer = survey.answer(&query, None);
        assert_eq!(keys(&answer, "bytes_in"), [1000, 990, 980]);
        assert_eq!((&answer["total"], &answer["matched"]), (&json!(100), &json!(100)));
        let query = Query { max: 2, thread: Some(1), sort: Sort::Rtt, ..Query::default() };
        let answer = survey.answer(&query, None);
        assert_eq!(keys(&answer, "srtt_us"), [999, 997]);
        assert_eq!(answer["matched"], 50);
        assert!(survey.answer(&Query { max: 0, ..query }, None)["connections"] == json!([]));
    }

    #[test]
    fn rates_are_of_what_came_between_two_looks() {
        let at = Instant::now();
        let look = Look { at, bytes: HashMap::from([(1, 0), (2, 20)]) };
        let query = Query { sort: Sort::Rate, interval_ms: 500, ..Query::default() };
        let answer = survey(3).answer(&query, Some((&look, at + Duration::from_millis(500))));
        let list = answer["connections"].as_array().expect("a list");
        let rates: Vec<_> = list.iter().map(|c| c["bytes_per_s"].as_f64()).collect();
        assert_eq!(rates, [Some(60.0), Some(20.0), Some(0.0)]);
    }
}
