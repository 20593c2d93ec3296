//! Surveys of all connections: the broker asks the dataplane for one and answers all requests that
//! wait for it. One survey runs at a time; rates need two surveys.
use crate::commands::AWAY;
use crate::control::{Answers, Ticket};
use ix_dataplane::SurveyArea;
use ix_entry::Channel;
use ix_proto::control::{Connection, Connections, Query, Refusal, Sort, TcpState};
use ix_proto::survey::FlowRecord;
use ix_proto::{Codec, FromImage, GroupSet, ToImage};
use ix_sys::fd::fixed_memfd;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest that a survey may take. Flow groups that were not surveyed by then are missing in the
/// answer.
const TIME_MAX: Duration = Duration::from_millis(1200);
/// Records beyond the number of connections, because new connections arrive during a survey.
const ROOM_MIN: usize = 4096;
/// Most connections of a survey.
const ROOM_MAX: usize = 2 << 20;
/// Most requests that wait.
const QUEUE_MAX: usize = 64;

/// Requests for connections, and the running survey.
#[derive(Default)]
pub struct Surveys {
    waiting: Vec<(Query, Ticket)>,
    stage: Stage,
    serial: u64,
}

/// Requests that this survey or the next one answers.
type Asked = Vec<(Query, Ticket)>;

/// Payload so far, by the connection's handle.
type Before = HashMap<u64, u64>;

#[derive(Default)]
enum Stage {
    /// No survey runs.
    #[default]
    Rest,
    /// The dataplane surveys its connections.
    Runs { area: SurveyArea, until: Instant, began: Instant, asked: Asked, before: Option<Look> },
    /// The wait between two surveys.
    Pause { until: Instant, asked: Asked, before: Look },
}

/// The first of two surveys.
struct Look {
    at: Instant,
    bytes: Before,
}

impl Surveys {
    /// Accepts a request, which is answered later. `process` is the number of an attachment here.
    pub fn ask(&mut self, query: &Query, ticket: Ticket) -> Result<(), Refusal> {
        if self.waiting.len() >= QUEUE_MAX {
            return Err(Refusal::Dataplane(format!(
                "{QUEUE_MAX} requests for connections are waiting; try again later"
            )));
        }
        self.waiting.push((query.clone(), ticket));
        Ok(())
    }

    /// Handles a message of the dataplane; returns false if it is not about a survey.
    pub fn handle(&mut self, message: &FromImage) -> bool {
        let FromImage::Surveyed { serial } = message else { return false };
        if let Stage::Runs { until, .. } = &mut self.stage
            && *serial == self.serial
        {
            *until = Instant::now();
        }
        true
    }

    /// When to call [`Surveys::service`] even if no message arrives.
    pub fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Rest => (!self.waiting.is_empty()).then(Instant::now),
            Stage::Runs { until, .. } | Stage::Pause { until, .. } => Some(*until),
        }
    }

    /// Does what is due. `flows` is the approximate number of connections.
    pub fn service(&mut self, channel: Option<&Channel>, flows: usize, answers: &Answers) {
        let now = Instant::now();
        self.stage = match std::mem::take(&mut self.stage) {
            Stage::Runs { area, until, began, asked, before } if until <= now => {
                self.finish(&area, began, asked, before, answers)
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
        let sent = channel.ok_or_else(|| AWAY.to_owned()).and_then(|channel| {
            let file =
                memory(flows).map_err(|e| format!("cannot reserve memory for a survey: {e}"))?;
            let area = SurveyArea::map(file.as_fd()).map_err(|e| e.to_string())?;
            let message = ToImage::Survey { serial: self.serial, until_us };
            let sent = channel.try_send(&message.encode(), &[file.as_fd()]);
            sent.map_err(|e| format!("cannot send to the dataplane: {e}"))?;
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

    /// A survey has ended: answers the requests that need no second one.
    fn finish(
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
            let answer = result.answer(&query, before.map(|look| (look, began)));
            answers.push((ticket, Ok(answer.into())));
        }
        let Some(interval_ms) = later.iter().map(|(query, _)| query.interval_ms).max() else {
            return Stage::Rest;
        };
        let bytes = result.records.iter().map(|r| (r.handle, payload(r))).collect();
        let until = began + Duration::from_millis(interval_ms);
        Stage::Pause { until, asked: later, before: Look { at: began, bytes } }
    }
}

/// A connection that migrated during the survey may have two records; one of them is kept.
fn distinct(area: &SurveyArea) -> Vec<FlowRecord> {
    let mut records: Vec<FlowRecord> = area.records().collect();
    records.sort_by_key(|record| record.handle);
    records.dedup_by_key(|record| record.handle);
    records
}

/// Memory of a fixed size: otherwise one side could truncate it, and the other would fault. It is
/// reserved now, so that an elastic thread cannot fail to get it.
fn memory(flows: usize) -> io::Result<OwnedFd> {
    fixed_memfd(c"ix-survey", SurveyArea::bytes_for(room(flows)), true)
}

/// Number of records of a survey when there are `flows` connections.
fn room(flows: usize) -> usize {
    flows.saturating_add(flows / 4).saturating_add(ROOM_MIN).min(ROOM_MAX)
}

/// The result of a survey.
struct Survey {
    records: Vec<FlowRecord>,
    missing: GroupSet,
    overflow: u64,
    took: Duration,
}

impl Survey {
    /// The answer to a query. `before`: an earlier survey, and the time of this one.
    fn answer(&self, query: &Query, before: Option<(&Look, Instant)>) -> Connections {
        // Of a connection that is new since the earlier survey, all payload counts.
        let moved = |record: &FlowRecord| {
            let bytes = payload(record);
            let earlier = before.and_then(|(look, _)| look.bytes.get(&record.handle));
            bytes.saturating_sub(earlier.copied().unwrap_or(0))
        };
        let mut picked: Vec<(u64, &FlowRecord)> = self
            .records
            .iter()
            .filter(|record| wants(query, record))
            .map(|record| (key(query.sort, record, moved(record)), record))
            .collect();
        let matched = picked.len();
        let most_first = |(key, record): &(u64, &FlowRecord)| (u64::MAX - key, record.handle);
        if query.max < matched && query.max > 0 {
            picked.select_nth_unstable_by_key(query.max - 1, most_first);
        }
        picked.truncate(query.max);
        picked.sort_unstable_by_key(most_first);
        let seconds = before.map(|(look, at)| (at - look.at).as_secs_f64());
        let rate =
            |record| seconds.map(|seconds| (moved(record) as f64 / seconds.max(1e-6)).round());
        Connections {
            total: self.overflow.saturating_add(self.records.len() as u64),
            matched,
            sort: query.sort,
            took_us: self.took.as_micros() as u64,
            missing_flow_groups: self.missing,
            left_out: self.overflow,
            connections: picked
                .into_iter()
                .map(|(_, record)| connection(record, rate(record)))
                .collect(),
        }
    }
}

/// Whether a query selects a connection.
fn wants(query: &Query, record: &FlowRecord) -> bool {
    let state = TcpState::of(record.state);
    query.thread.is_none_or(|thread| usize::from(record.thread) == thread)
        && query.process.is_none_or(|number| record.process == number)
        && query.groups.is_none_or(|groups| groups.contains(record.flow_group.into()))
        && query.peer.is_none_or(|peer| peer.matches(address(&record.peer), record.peer_port))
        && query.state.is_none_or(|filter| filter.matches(state))
}

/// Payload in both directions. The dataplane writes these numbers, so they can be anything.
fn payload(record: &FlowRecord) -> u64 {
    record.figures.bytes_in.saturating_add(record.figures.bytes_out)
}

/// The sort key of a connection; `moved` is its payload since the earlier survey.
fn key(sort: Sort, record: &FlowRecord, moved: u64) -> u64 {
    match sort {
        Sort::Rate => moved,
        Sort::Rtt => record.figures.srtt_us.into(),
        Sort::Retransmits => record.figures.retransmits.into(),
        Sort::Queued => {
            u64::from(record.figures.snd_queued_bytes) + u64::from(record.figures.rcv_queued_bytes)
        }
        Sort::Bytes => payload(record),
        Sort::Age => record.figures.age_us,
        Sort::Idle => record.figures.idle_us,
    }
}

/// An address in its usual form.
fn address(bytes: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*bytes).to_canonical()
}

fn connection(record: &FlowRecord, bytes_per_s: Option<f64>) -> Connection {
    Connection {
        peer: SocketAddr::new(address(&record.peer), record.peer_port),
        local: SocketAddr::new(address(&record.local), record.local_port),
        state: TcpState::of(record.state),
        thread: record.thread,
        flow_group: record.flow_group,
        process: record.process,
        figures: record.figures,
        bytes_per_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_proto::survey::FlowFigures;

    fn survey(count: u64) -> Survey {
        let record = |handle: u64| FlowRecord {
            handle,
            thread: (handle % 2) as u16,
            figures: FlowFigures {
                bytes_in: handle * 10,
                srtt_us: 1000 - handle as u32,
                ..FlowFigures::default()
            },
            ..FlowRecord::default()
        };
        let records = (1..=count).map(record).collect();
        Survey { records, missing: GroupSet::EMPTY, overflow: 0, took: Duration::ZERO }
    }

    #[test]
    fn the_most_come_first_and_no_more_than_asked_for() {
        let survey = survey(100);
        let query = Query { max: 3, ..Query::default() };
        let answer = survey.answer(&query, None);
        let bytes: Vec<u64> = answer.connections.iter().map(|c| c.figures.bytes_in).collect();
        assert_eq!(bytes, [1000, 990, 980]);
        assert_eq!((answer.total, answer.matched), (100, 100));
        let query = Query { max: 2, thread: Some(1), sort: Sort::Rtt, ..Query::default() };
        let answer = survey.answer(&query, None);
        let rtts: Vec<u32> = answer.connections.iter().map(|c| c.figures.srtt_us).collect();
        assert_eq!(rtts, [999, 997]);
        assert_eq!(answer.matched, 50);
        assert_eq!(survey.answer(&Query { max: 0, ..query }, None).connections, []);
    }

    #[test]
    fn any_numbers_of_the_dataplane_can_be_answered() {
        let figures =
            FlowFigures { bytes_in: u64::MAX, bytes_out: u64::MAX, ..FlowFigures::default() };
        let most = FlowRecord { figures, ..FlowRecord::default() };
        let survey = Survey { records: vec![most], overflow: u64::MAX, ..survey(0) };
        for sort in [Sort::Bytes, Sort::Rate] {
            let answer = survey.answer(&Query { sort, ..Query::default() }, None);
            assert_eq!((answer.total, answer.left_out), (u64::MAX, u64::MAX));
        }
        assert_eq!(payload(&most), u64::MAX);
        assert_eq!(room(usize::MAX), ROOM_MAX);
    }

    #[test]
    fn rates_are_of_what_came_between_two_looks() {
        let at = Instant::now();
        let look = Look { at, bytes: HashMap::from([(1, 0), (2, 20)]) };
        let query = Query { sort: Sort::Rate, interval_ms: 500, ..Query::default() };
        let answer = survey(3).answer(&query, Some((&look, at + Duration::from_millis(500))));
        let rates: Vec<_> = answer.connections.iter().map(|c| c.bytes_per_s).collect();
        assert_eq!(rates, [Some(60.0), Some(20.0), Some(0.0)]);
    }

    #[test]
    fn queries_pick_what_they_name() {
        let peer = Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 0x0001]).octets();
        let (thread, process, flow_group, peer_port, state) = (1, 3, 7, 4000, 4);
        let rest = FlowRecord::default();
        let record = FlowRecord { peer, peer_port, thread, process, flow_group, state, ..rest };
        for (text, picked) in [
            ("{}", true),
            (r#"{"thread":1}"#, true),
            (r#"{"thread":0}"#, false),
            (r#"{"process":3}"#, true),
            (r#"{"process":0}"#, false),
            (r#"{"groups":"0-7"}"#, true),
            (r#"{"groups":"8"}"#, false),
            (r#"{"peer":"10.0.0.1"}"#, true),
            (r#"{"peer":"10.0.0.1:4001"}"#, false),
            (r#"{"state":"established"}"#, true),
            (r#"{"state":"TIME-WAIT"}"#, false),
        ] {
            let query = serde_json::from_str::<Query>(text).expect(text);
            assert_eq!(wants(&query, &record), picked, "{text}");
        }
    }
}
