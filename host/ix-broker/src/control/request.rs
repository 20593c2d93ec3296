//! Requests, who may make them, and why they are refused.
use super::{CaptureWish, PROTOCOL, Query, Report};
use ix_proto::GroupSet;
use ix_vnic::Filter;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// What a client may do, by the socket that it has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Operator,
    /// Look.
    ReadOnly,
}

impl Role {
    /// Its name in the greeting.
    pub fn name(self) -> &'static str {
        match self {
            Role::Operator => "operator",
            Role::ReadOnly => "read-only",
        }
    }
}

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
        #[serde(with = "group_text")]
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
    /// Filters and rates of the dataplane's vNIC.
    Vnic,
    /// Grants filters and returns a capability for each.
    FilterCreate {
        /// The filters, each as text.
        #[serde(with = "filter_texts")]
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
        #[serde(default, with = "filter_text")]
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
        #[serde(default)]
        rx: Option<String>,
        /// Limit of what is sent.
        #[serde(default)]
        tx: Option<String>,
        /// Limit of what each flow sends.
        #[serde(default)]
        flow: Option<String>,
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
    /// A controller reports that it is in charge. The reply says what operators want of it.
    Control {
        /// Its report.
        report: Report,
    },
}

/// What can be subscribed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// As [`Request::Status`] answers.
    #[default]
    Status,
    /// As [`Request::Stats`] answers.
    Stats,
}

/// Bounds of a subscription's interval, ms.
const INTERVALS_MS: std::ops::RangeInclusive<u64> = 10..=3_600_000;

impl Request {
    /// Reads a line, and checks what can be checked without knowing the dataplane.
    pub fn read(line: &[u8]) -> Result<Request, Refusal> {
        let nonsense = |why: String| Refusal::BadRequest(why);
        let text = std::str::from_utf8(line).map_err(|e| nonsense(e.to_string()))?.trim();
        let mut value: Value = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|e| nonsense(e.to_string()))?
        } else {
            json!({ "do": text })
        };
        let theirs = value.as_object_mut().and_then(|map| map.remove("protocol"));
        if let Some(theirs) = theirs.filter(|version| *version != PROTOCOL) {
            return Err(Refusal::Version(theirs.to_string()));
        }
        let request: Request =
            serde_json::from_value(value).map_err(|e| nonsense(e.to_string()))?;
        match request {
            Request::Subscribe { interval_ms, .. } if !INTERVALS_MS.contains(&interval_ms) => {
                Err(nonsense(format!("interval_ms {interval_ms} is not 10 to 3600000")))
            }
            Request::Connections(query) => {
                query.check().map_err(nonsense)?;
                Ok(Request::Connections(query))
            }
            Request::Capture { wish } => {
                wish.check().map_err(nonsense)?;
                Ok(Request::Capture { wish })
            }
            fine => Ok(fine),
        }
    }

    /// Whether somebody of this role may ask it.
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

    /// As a line, without its end.
    pub fn line(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["protocol"] = PROTOCOL.into();
        value.to_string()
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The line is not a request.
    BadRequest(String),
    /// The line is longer than any request may be.
    TooLong,
    /// The request is written for another version of the protocol.
    Version(String),
    /// The read-only socket does not allow it.
    NotAllowed,
    /// There are too many clients.
    Busy,
    /// No elastic thread has this number: the number asked for, and how many threads there are.
    NoSuchThread(usize, usize),
    /// No controller is in charge of this dataplane.
    NoController,
    /// Another controller is in charge: this process.
    Controlled(u32),
    /// Another process captures: this one.
    Captured(u32),
    /// The dataplane did not answer in time.
    NoAnswer,
    /// The dataplane refuses; the reason is in `why`.
    Dataplane(String),
    /// This dataplane has no such function.
    Unsupported(&'static str),
    /// The capability is forged, revoked, or for something else.
    NoCapability,
    /// This part of the header space is not available; the reason is in `why`.
    Vnic(String),
}

impl Refusal {
    /// Its name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::BadRequest(_) => "bad-request",
            Refusal::TooLong => "too-long",
            Refusal::Version(_) => "version",
            Refusal::NotAllowed => "not-allowed",
            Refusal::Busy => "busy",
            Refusal::NoSuchThread(..) => "no-such-thread",
            Refusal::NoController => "no-controller",
            Refusal::Controlled(_) => "controlled",
            Refusal::Captured(_) => "captured",
            Refusal::NoAnswer => "no-answer",
            Refusal::Dataplane(_) => "refused",
            Refusal::Unsupported(_) => "unsupported",
            Refusal::NoCapability => "no-capability",
            Refusal::Vnic(_) => "vnic",
        }
    }

    /// What the user can do about it; empty where nothing is known.
    pub fn mend(&self) -> String {
        match self {
            Refusal::BadRequest(_) | Refusal::TooLong => {
                "requests are listed by `ix ctl --help`".into()
            }
            Refusal::Version(_) => "use the `ix` that started the dataplane".into(),
            Refusal::NotAllowed => "ask through the operator socket".into(),
            Refusal::Busy => "try again later".into(),
            Refusal::NoSuchThread(_, threads) => match threads {
                0 | 1 => "its only thread is 0".into(),
                n => format!("its threads are 0 to {}", n - 1),
            },
            Refusal::NoController => "start one with `ix run --policy …` or `ix cp`".into(),
            Refusal::Captured(pid) => format!("end process {pid}, or share its file"),
            Refusal::Controlled(pid) => format!("end process {pid} first"),
            Refusal::NoAnswer => {
                "the program may have stayed away from the dataplane; look with `ix ctl status`"
                    .into()
            }
            Refusal::NoCapability => "ask its holder, or an operator, for another".into(),
            Refusal::Vnic(_) => "`ix ctl vnic` lists what is held".into(),
            Refusal::Dataplane(_) | Refusal::Unsupported(_) => String::new(),
        }
    }

    /// As it is sent.
    pub fn to_json(&self) -> Value {
        json!({ "code": self.code(), "why": self.to_string(), "mend": self.mend() })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::BadRequest(why) => write!(f, "not a request: {why}"),
            Refusal::TooLong => write!(f, "a request that long there is none"),
            Refusal::Version(theirs) => {
                write!(f, "the request is of protocol {theirs}, this dataplane speaks {PROTOCOL}")
            }
            Refusal::NotAllowed => write!(f, "this socket is for looking only"),
            Refusal::Busy => write!(f, "too many clients"),
            Refusal::NoSuchThread(thread, _) => write!(f, "no elastic thread {thread}"),
            Refusal::NoController => write!(f, "no controller runs for this dataplane"),
            Refusal::Controlled(pid) => {
                write!(f, "another controller is in charge of it: process {pid}")
            }
            Refusal::Captured(pid) => write!(f, "process {pid} captures already"),
            Refusal::NoAnswer => write!(f, "the dataplane did not answer in time"),
            Refusal::Dataplane(why) => write!(f, "{why}"),
            Refusal::Unsupported(what) => write!(f, "this dataplane cannot {what}"),
            Refusal::NoCapability => f.write_str("no such capability: forged or revoked"),
            Refusal::Vnic(why) => f.write_str(why),
        }
    }
}

fn one() -> usize {
    1
}

/// What the link of a vNIC is to its dataplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum VnicDevice {
    /// An interface for AF_XDP.
    #[default]
    Afxdp,
    /// A tap, which asks nothing of the kernel.
    Tap,
}

/// Filters as their texts.
mod filter_texts {
    use ix_vnic::Filter;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(filters: &[Filter], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(filters.iter().map(Filter::to_string))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Filter>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(Error::custom)).collect()
    }
}

/// A filter as its text, or none.
mod filter_text {
    use ix_vnic::Filter;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(filter: &Option<Filter>, to: S) -> Result<S::Ok, S::Error> {
        match filter {
            Some(filter) => to.collect_str(filter),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Filter>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(Error::custom)).transpose()
    }
}

/// Flow groups as their text, `0-15,32`.
mod group_text {
    use ix_proto::GroupSet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(groups: &GroupSet, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(groups)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GroupSet, D::Error> {
        let groups: GroupSet = String::deserialize(from)?.parse().map_err(Error::custom)?;
        let none = || Error::custom("no flow groups; for example 0-15,32");
        if groups.is_empty() { Err(none()) } else { Ok(groups) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(read(&migrate.line()), Ok(migrate));
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
            (r#"{"do":"migrate","groups":"5-2","to":0}"#, "bad-request", "5-2"),
            (r#"{"do":"migrate","groups":"128","to":0}"#, "bad-request", "128"),
            (r#"{"do":"migrate","groups":"-","to":0}"#, "bad-request", "no flow groups"),
            (r#"{"do":"subscribe","interval_ms":1}"#, "bad-request", "interval_ms 1"),
            (r#"{"do":"filter-create","filters":["rx any"]}"#, "bad-request", "`rx any` is no"),
            (r#"{"do":"status","protocol":7}"#, "version", "protocol 7, this dataplane speaks 1"),
        ] {
            let refusal = read(line).expect_err(line);
            assert_eq!(refusal.code(), code, "{line}: {refusal}");
            assert!(refusal.to_string().contains(says), "{line}: {refusal}");
        }
        assert_eq!(Request::read(b"\xff\xfe").expect_err("not text").code(), "bad-request");
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
            Request::Rate { rx: None, tx: None, flow: None, vnic: None, queue: None, weight: None },
        ];
        assert!(changes.iter().all(|r| r.allowed(Role::Operator) && !r.allowed(Role::ReadOnly)));
        assert!(Request::Stats.allowed(Role::ReadOnly) && Request::Status.allowed(Role::ReadOnly));
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::read(&line);
        }
    }
}
