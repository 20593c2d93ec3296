//! Requests, and who may make them.
use super::text;
use super::vnic::RateChange;
use super::{PROTOCOL, Query, Refusal, Report, Role};
use crate::GroupSet;
use crate::capture::{self, RING_BYTES, SNAPLEN_MAX};
use crate::device::DeviceKind;
use ix_vnic::Filter;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Threads, flow groups, metrics and migrations now.
    Status,
    /// All counters.
    Stats,
    /// Sends a `status` or `stats` snapshot now, and then one every `interval_ms`.
    Subscribe {
        /// `status` or `stats`.
        #[serde(default)]
        to: Topic,
        /// Milliseconds between two snapshots, 10 to 3,600,000.
        interval_ms: u64,
    },
    /// Ends the subscription.
    Unsubscribe,
    /// Lists TCP connections, with what is known of each.
    Connections(Query),
    /// Moves flow groups to a thread.
    Migrate {
        /// The flow groups, such as `0-15,32`.
        #[serde(with = "text::some_groups")]
        groups: GroupSet,
        /// The elastic thread.
        to: usize,
    },
    /// Moves all flow groups of a thread to the others.
    Drain {
        /// The elastic thread.
        thread: usize,
    },
    /// Drains a thread and gives its hardware thread back to Linux.
    Park {
        /// The elastic thread.
        thread: usize,
    },
    /// Lets a parked thread work again.
    Resume {
        /// The elastic thread.
        thread: usize,
    },
    /// Gives the controller another policy, another bound on the queueing delay, or both.
    Policy {
        /// The policy as TOML; none: unchanged.
        #[serde(default)]
        text: Option<String>,
        /// The bound in µs; none: the policy's.
        #[serde(default)]
        slo_us: Option<f64>,
    },
    /// Captures packets. To be repeated every second; otherwise the capture ends.
    Capture {
        /// What to capture, and how.
        wish: CaptureWish,
    },
    /// Ends a capture.
    CaptureStop {
        /// The process that reads the capture.
        pid: u32,
    },
    /// How the run was started, and its last messages. Secrets are left out.
    About {
        /// Also the program's arguments, and secrets.
        #[serde(default)]
        all: bool,
    },
    /// Filters and rates of the dataplane's vNIC.
    Vnic,
    /// Grants filters and returns a capability for each.
    FilterCreate {
        /// The filters, each as text.
        #[serde(with = "text::list")]
        filters: Vec<Filter>,
        /// Name of the holder.
        #[serde(default)]
        holder: Option<String>,
        /// The vNIC that they are assigned to, on a shared interface.
        #[serde(default)]
        vnic: Option<String>,
        /// The queue of the dataplane's vNIC that holds them alone.
        #[serde(default)]
        queue: Option<usize>,
    },
    /// Assigns a filter to a vNIC of a shared interface, or to a queue of a dataplane's vNIC. Needs
    /// only the capabilities.
    FilterAssign {
        /// The filter's capability.
        capability: String,
        /// The vNIC's capability, on a shared interface.
        #[serde(default)]
        vnic: Option<String>,
        /// The queue that holds the filter alone; none: all queues.
        #[serde(default)]
        queue: Option<usize>,
    },
    /// Creates a vNIC on a shared interface.
    VnicCreate {
        /// Its name.
        name: String,
        /// Number of its queue pairs.
        #[serde(default = "one")]
        queues: usize,
        /// The process whose end deletes it; none: it stays.
        #[serde(default)]
        owner: Option<u32>,
        /// What its dataplane opens: `afxdp` or `tap`.
        #[serde(default)]
        device: VnicDevice,
    },
    /// Deletes a vNIC of a shared interface.
    VnicDelete {
        /// Its name.
        name: String,
    },
    /// Returns a capability for a part of a filter, or another one for all of it.
    FilterDerive {
        /// The filter's capability. No other right is needed.
        capability: String,
        /// The part; none: the whole filter.
        #[serde(default, with = "text::option")]
        filter: Option<Filter>,
    },
    /// Ends a capability and everything that was derived from it.
    FilterRevoke {
        /// The capability. No other right is needed.
        capability: String,
    },
    /// Removes one filter by its number, or all filters: then everything passes.
    FilterRemove {
        /// Its number; none: all filters.
        #[serde(default)]
        filter: Option<u32>,
    },
    /// Changes limits; `none` removes one.
    Rate {
        /// Limit of what is received, such as `100Mbit`.
        #[serde(default, skip_serializing_if = "RateChange::is_keep")]
        rx: RateChange,
        /// Limit of what is sent.
        #[serde(default, skip_serializing_if = "RateChange::is_keep")]
        tx: RateChange,
        /// Limit of what each flow sends.
        #[serde(default, skip_serializing_if = "RateChange::is_keep")]
        flow: RateChange,
        /// The vNIC, on a shared interface.
        #[serde(default)]
        vnic: Option<String>,
        /// The queue of the dataplane's vNIC; none: all queues together.
        #[serde(default)]
        queue: Option<usize>,
        /// Its part of a full interface, relative to the weights of the others.
        #[serde(default)]
        weight: Option<u32>,
    },
    /// A controller reports that it controls the dataplane. Returns what operators have asked of
    /// it.
    Control {
        /// Its report.
        report: Report,
    },
}

/// What can be subscribed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// What [`Request::Status`] returns.
    #[default]
    Status,
    /// What [`Request::Stats`] returns.
    Stats,
}

/// Bounds of a subscription's interval, ms.
const INTERVALS_MS: std::ops::RangeInclusive<u64> = 10..=3_600_000;

impl Request {
    /// Reads a line, and checks what can be checked without knowing the dataplane.
    pub fn read(line: &[u8]) -> Result<Request, Refusal> {
        let nonsense = |why: String| Refusal::BadRequest(why);
        let text = std::str::from_utf8(line).map_err(|e| nonsense(e.to_string()))?.trim();
        let mut keys: Map<String, Value> = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|e| nonsense(e.to_string()))?
        } else {
            Map::from_iter([("do".to_owned(), text.into())])
        };
        let theirs = keys.remove("protocol");
        if let Some(theirs) = theirs.filter(|version| *version != PROTOCOL) {
            return Err(Refusal::Version(theirs.to_string()));
        }
        let other = keys.keys().find(|key| *key != "do").cloned();
        let request: Request =
            serde_json::from_value(keys.into()).map_err(|e| nonsense(e.to_string()))?;
        // serde refuses unknown keys only where there are known ones.
        if let Some(key) = other.filter(|_| request.has_no_keys()) {
            return Err(nonsense(format!("unknown field `{key}`")));
        }
        request.check().map_err(nonsense)?;
        Ok(request)
    }

    fn has_no_keys(&self) -> bool {
        matches!(self, Request::Status | Request::Stats | Request::Unsubscribe | Request::Vnic)
    }

    /// Returns an error if no dataplane could do it.
    fn check(&self) -> Result<(), String> {
        match self {
            Request::Subscribe { interval_ms, .. } if !INTERVALS_MS.contains(interval_ms) => {
                Err(format!("interval_ms {interval_ms} is not 10 to 3600000"))
            }
            Request::Connections(query) => query.check(),
            Request::Capture { wish } => wish.check(),
            _ => Ok(()),
        }
    }

    /// Whether a client with this role may make it.
    pub fn allowed(&self, role: Role) -> bool {
        let looks = matches!(
            self,
            Request::Status
                | Request::Stats
                | Request::Subscribe { .. }
                | Request::Unsubscribe
                | Request::Connections(_)
                | Request::Vnic
        );
        // A capability is a right by itself.
        let has_capability = matches!(
            self,
            Request::FilterDerive { .. }
                | Request::FilterAssign { .. }
                | Request::FilterRevoke { .. }
        );
        looks || has_capability || role == Role::Operator
    }

    /// The line's text, without its end.
    pub fn line(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Versioned { request: self, protocol: PROTOCOL })
    }
}

/// A request with the version that it is written for.
#[derive(Serialize)]
struct Versioned<'a> {
    #[serde(flatten)]
    request: &'a Request,
    protocol: u64,
}

fn one() -> usize {
    1
}

/// The device that a vNIC's dataplane opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VnicDevice {
    /// An interface for AF_XDP.
    #[default]
    Afxdp,
    /// A tap, which asks nothing of the kernel.
    Tap,
}

impl VnicDevice {
    /// Both.
    pub const ALL: [VnicDevice; 2] = [VnicDevice::Afxdp, VnicDevice::Tap];

    /// The kind of device that its dataplane opens.
    pub const fn kind(self) -> DeviceKind {
        match self {
            VnicDevice::Afxdp => DeviceKind::Afxdp,
            VnicDevice::Tap => DeviceKind::Tap,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.kind().name()
    }

    /// What it is.
    pub const fn describe(self) -> &'static str {
        match self {
            VnicDevice::Afxdp => "An interface for AF_XDP",
            VnicDevice::Tap => "A tap, which asks nothing of the kernel",
        }
    }
}

/// What to capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureWish {
    /// The process that reads it.
    pub pid: u32,
    /// Which packets.
    #[serde(default, with = "text::one")]
    pub filter: capture::Filter,
    /// Bytes of a packet, at most.
    pub snaplen: u32,
    /// Memory for each elastic thread, bytes.
    pub ring_bytes: u64,
}

impl CaptureWish {
    /// Checks what can be checked without the dataplane.
    pub fn check(&self) -> Result<(), String> {
        if self.snaplen == 0 || self.snaplen > SNAPLEN_MAX {
            return Err(format!("snaplen {} is not 1 to {SNAPLEN_MAX}", self.snaplen));
        }
        if !RING_BYTES.contains(&self.ring_bytes) || self.ring_bytes < 4 * u64::from(self.snaplen) {
            return Err(format!(
                "a ring of {} bytes is not {} to {}, and at least four packets",
                self.ring_bytes,
                RING_BYTES.start(),
                RING_BYTES.end()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Code;
    use super::*;
    use ix_vnic::Rate;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<Request, Refusal> {
        Request::read(line.as_bytes())
    }

    #[test]
    fn words_and_objects_are_requests() {
        assert_eq!(read("stats\n"), Ok(Request::Stats));
        assert_eq!(read(r#"{"do":"status","protocol":1}"#), Ok(Request::Status));
        let migrate = Request::Migrate { groups: [0, 1, 2, 7].into_iter().collect(), to: 1 };
        assert_eq!(read(r#"{"do":"migrate","groups":"7,0-2","to":1}"#), Ok(migrate.clone()));
        assert_eq!(read(&migrate.line().expect("JSON")), Ok(migrate));
    }

    #[test]
    fn what_is_none_is_refused_with_a_reason() {
        for (line, code, says) in [
            ("explode", "bad-request", "explode"),
            ("", "bad-request", "variant"),
            ("{", "bad-request", "EOF"),
            ("[1]", "bad-request", "variant"),
            (r#"{"do":"park"}"#, "bad-request", "thread"),
            (r#"{"do":"park","thread":-1}"#, "bad-request", "-1"),
            (r#"{"do":"park","thread":1,"force":true}"#, "bad-request", "force"),
            (r#"{"do":"status","force":true}"#, "bad-request", "force"),
            (r#"{"do":"migrate","groups":"5-2","to":0}"#, "bad-request", "5-2"),
            (r#"{"do":"migrate","groups":"128","to":0}"#, "bad-request", "128"),
            (r#"{"do":"migrate","groups":"-","to":0}"#, "bad-request", "no flow groups"),
            (r#"{"do":"subscribe","interval_ms":1}"#, "bad-request", "interval_ms 1"),
            (
                r#"{"do":"filter-create","filters":["rx any"]}"#,
                "bad-request",
                "invalid filter `rx any`",
            ),
            (
                r#"{"do":"rate","tx":"fast"}"#,
                "bad-request",
                "invalid request: invalid rate `fast`: unknown part `fast`",
            ),
            (r#"{"do":"rate","rx":"0bit"}"#, "bad-request", "0 lets nothing pass"),
            (r#"{"do":"rate","rx":7}"#, "bad-request", "string"),
            (
                r#"{"do":"capture","wish":{"pid":1,"filter":"tcp in","snaplen":9,"ring_bytes":65536}}"#,
                "bad-request",
                "invalid filter `tcp in`: `in` where `and` or `or` was expected",
            ),
            (r#"{"do":"status","protocol":7}"#, "version", "protocol 7, this dataplane speaks 1"),
        ] {
            let refusal = read(line).expect_err(line);
            assert_eq!(refusal.code().name(), code, "{line}: {refusal}");
            assert!(refusal.to_string().contains(says), "{line}: {refusal}");
        }
        assert_eq!(Request::read(b"\xff\xfe").expect_err("not text").code(), Code::BadRequest);
    }

    #[test]
    fn who_may_only_look_changes_nothing() {
        let changes = [
            Request::Migrate { groups: GroupSet::all(), to: 0 },
            Request::Park { thread: 0 },
            Request::Resume { thread: 0 },
            Request::Drain { thread: 0 },
            Request::FilterCreate { filters: Vec::new(), holder: None, vnic: None, queue: None },
            Request::VnicDelete { name: String::new() },
            Request::FilterRemove { filter: None },
            read(r#"{"do":"rate"}"#).expect("no rate changes"),
        ];
        assert!(changes.iter().all(|r| r.allowed(Role::Operator) && !r.allowed(Role::ReadOnly)));
        assert!(Request::Stats.allowed(Role::ReadOnly) && Request::Status.allowed(Role::ReadOnly));
    }

    #[test]
    fn devices_of_vnics_are_named_as_everywhere() {
        for device in VnicDevice::ALL {
            let word = serde_json::to_value(device).expect("JSON");
            assert_eq!(word, device.kind().name());
        }
    }

    #[test]
    fn a_rate_stays_is_removed_or_is_set() {
        let request = read(r#"{"do":"rate","rx":null,"tx":"none","flow":"2Mbit"}"#);
        let Ok(Request::Rate { rx, tx, flow, .. }) = request else { panic!("{request:?}") };
        let old = Some(Rate::bits(7));
        let new = [rx, tx, flow].map(|change| change.apply(old));
        assert_eq!(new, [old, None, Some(Rate::bits(2_000_000))]);
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::read(&line);
        }
    }
}
