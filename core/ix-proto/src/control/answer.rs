//! What requests return.
use super::vnic::{
    FilterAssigned, FilterDerived, FiltersCreated, FiltersRevoked, RatesSet, VnicCreated,
    VnicDeleted,
};
use super::{Connections, Look, PolicyRequest, Request, vnic};
use serde::{Deserialize, Serialize};
use serde_json::{Value, from_value};

/// What [`Policy`](Request::Policy) returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicySet {
    /// The controller's process.
    pub controller: u32,
    /// Name of the policy.
    pub policy: String,
    /// The bound that was asked for, µs.
    pub slo_us: Option<f64>,
}

/// What [`Capture`](Request::Capture) returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStarted {
    /// Path of the memory of a capture that has just started; none: it was running already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What [`About`](Request::About) returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The words of the command line.
    pub command: Vec<String>,
    /// The text of the configuration file; none: it has none that can be read.
    #[serde(default)]
    pub config: Option<String>,
    /// The last messages, oldest first, each after its time.
    pub log: Vec<String>,
}

/// Declares [`Answer`] with a variant for each type, and conversions from and to the types.
macro_rules! answers {
    ($($(#[$doc:meta])* $variant:ident($type:ty)),* $(,)?) => {
        /// What a request returns. [`Answer::read`] says which request returns what.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum Answer {
            /// The request was carried out; there is nothing to return.
            Done {},
            $($(#[$doc])* $variant($type),)*
        }

        $(impl From<$type> for Answer {
            fn from(value: $type) -> Answer {
                Answer::$variant(value)
            }
        }

        impl TryFrom<Answer> for $type {
            type Error = Answer;

            /// Returns the answer if it is of another type.
            fn try_from(answer: Answer) -> Result<$type, Answer> {
                match answer {
                    Answer::$variant(value) => Ok(value),
                    other => Err(other),
                }
            }
        })*
    };
}

answers! {
    /// A dataplane's state.
    Look(Look),
    /// Its connections.
    Connections(Connections),
    /// The controller has the request.
    PolicySet(PolicySet),
    /// What operators have asked of the controller.
    PolicyRequest(PolicyRequest),
    /// A capture.
    Capture(CaptureStarted),
    /// How a run was started.
    About(About),
    /// Filters and rates.
    Vnic(vnic::View),
    /// Rates that were set.
    RatesSet(RatesSet),
    /// Filters that were granted.
    FiltersCreated(FiltersCreated),
    /// A filter that was derived.
    FilterDerived(FilterDerived),
    /// A filter that was assigned.
    FilterAssigned(FilterAssigned),
    /// Filters that ended.
    FiltersRevoked(FiltersRevoked),
    /// A vNIC that was created.
    VnicCreated(VnicCreated),
    /// A vNIC that was deleted.
    VnicDeleted(VnicDeleted),
}

/// [`Answer::Done`] in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Answer {
    /// Reads the answer to a request from JSON.
    pub(super) fn read(request: &Request, value: Value) -> serde_json::Result<Answer> {
        let has = |key: &str| value.get(key).is_some();
        Ok(match request {
            Request::Status | Request::Stats => Answer::Look(Look::read(value)?),
            Request::Connections(_) => Answer::Connections(from_value(value)?),
            Request::Policy { .. } => Answer::PolicySet(from_value(value)?),
            Request::Control { .. } => Answer::PolicyRequest(from_value(value)?),
            Request::Capture { .. } => Answer::Capture(from_value(value)?),
            Request::About { .. } => Answer::About(from_value(value)?),
            Request::Vnic => Answer::Vnic(match has("vnics") {
                true => vnic::View::Shared(from_value(value)?),
                false => vnic::View::Own(from_value(value)?),
            }),
            Request::Rate { .. } => Answer::RatesSet(match (has("vnic"), has("queue")) {
                (true, _) => RatesSet::Shared(from_value(value)?),
                (false, true) => RatesSet::Queue(from_value(value)?),
                (false, false) => RatesSet::Own(from_value(value)?),
            }),
            Request::FilterCreate { .. } => Answer::FiltersCreated(from_value(value)?),
            Request::FilterDerive { .. } => Answer::FilterDerived(from_value(value)?),
            Request::FilterAssign { .. } => Answer::FilterAssigned(from_value(value)?),
            Request::FilterRevoke { .. } | Request::FilterRemove { .. } => {
                Answer::FiltersRevoked(from_value(value)?)
            }
            Request::VnicCreate { .. } => Answer::VnicCreated(from_value(value)?),
            Request::VnicDelete { .. } => Answer::VnicDeleted(from_value(value)?),
            Request::Subscribe { .. }
            | Request::Unsubscribe
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::Park { .. }
            | Request::Resume { .. }
            | Request::CaptureStop { .. } => {
                from_value::<Nothing>(value)?;
                Answer::Done {}
            }
        })
    }
}
