//! Filters and rates: requests' values and answers.
use super::{Code, text};
use ix_vnic::{Filter, Rate, RateError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

/// What [`Vnic`](super::Request::Vnic) returns: everything but the capabilities.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum View {
    /// Of a dataplane.
    Own(Box<OwnVnic>),
    /// Of a shared interface.
    Shared(Box<SharedInterface>),
}

/// The vNIC of a dataplane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnVnic {
    /// Its rates.
    #[serde(flatten)]
    pub rates: OwnRates,
    /// Number of its queue pairs.
    pub queues: usize,
    /// Its filters.
    pub filters: Vec<OwnFilter>,
    /// Most filters.
    pub filters_max: usize,
    /// Most filters that one holder may derive.
    pub derived_of_a_holder_max: usize,
    /// Most filters of one direction.
    pub filters_of_a_direction_max: usize,
    /// Whether only packets that a filter takes are received.
    pub rx_filtered: bool,
    /// Whether only packets that a filter takes are sent.
    pub tx_filtered: bool,
    /// Receive filters that a network card applies as well.
    #[serde(with = "text::list")]
    pub in_hardware: Vec<Filter>,
    /// What software enforces.
    pub in_software: Vec<Limit>,
    /// Requests that the control socket has refused, by reason.
    pub refused: BTreeMap<Code, u64>,
}

/// What limits a vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Which packets.
    Filters,
    /// How many of them.
    Rates,
    /// Parts of a full interface.
    Weights,
}

/// What becomes of one rate: in JSON a text, `none` or a rate; absent where it stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateChange {
    /// It stays.
    #[default]
    Keep,
    /// It is removed: no limit any more.
    Remove,
    /// It is replaced by this one.
    Set(Rate),
}

impl RateChange {
    /// True for [`RateChange::Keep`].
    pub fn is_keep(&self) -> bool {
        *self == RateChange::Keep
    }

    /// The rate after the change.
    pub fn apply(self, old: Option<Rate>) -> Option<Rate> {
        match self {
            RateChange::Keep => old,
            RateChange::Remove => None,
            RateChange::Set(rate) => Some(rate),
        }
    }
}

/// `none` or a rate, as people write it.
impl FromStr for RateChange {
    type Err = RateError;

    fn from_str(text: &str) -> Result<RateChange, RateError> {
        match text {
            "none" => Ok(RateChange::Remove),
            text => text.parse().map(RateChange::Set),
        }
    }
}

impl Serialize for RateChange {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            RateChange::Keep => to.serialize_none(),
            RateChange::Remove => to.serialize_str("none"),
            RateChange::Set(rate) => to.collect_str(rate),
        }
    }
}

impl<'de> Deserialize<'de> for RateChange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RateChange, D::Error> {
        text::option::deserialize(from).map(Option::unwrap_or_default)
    }
}

/// Rates; none: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Of what is received.
    #[serde(with = "text::option")]
    pub rx_rate: Option<Rate>,
    /// Of what is sent.
    #[serde(with = "text::option")]
    pub tx_rate: Option<Rate>,
    /// Of what each flow sends.
    #[serde(with = "text::option")]
    pub flow_rate: Option<Rate>,
}

/// Rates of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRates {
    /// The queue.
    pub queue: usize,
    /// Its rates.
    #[serde(flatten)]
    pub rates: Rates,
}

/// Rates of a dataplane's vNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnRates {
    /// Of all queues together.
    #[serde(flatten)]
    pub rates: Rates,
    /// The limit that `ix share` has set for the link.
    #[serde(with = "text::option")]
    pub link_rate: Option<Rate>,
    /// Its part of the shared interface while that is full.
    #[serde(with = "text::option")]
    pub link_part: Option<Rate>,
    /// Of single queues.
    pub queue_rates: Vec<QueueRates>,
}

/// A filter of a dataplane's vNIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnFilter {
    /// Its number.
    pub filter: u32,
    /// The part of the header space.
    #[serde(with = "text::one")]
    pub text: Filter,
    /// Its holder.
    pub holder: String,
    /// The filter that it was derived from.
    pub derived_from: Option<u32>,
    /// The queue that holds it alone; none: all do.
    pub queue: Option<usize>,
    /// Whether a network card applies it as well.
    pub in_hardware: bool,
}

/// An interface that several vNICs share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedInterface {
    /// Its vNICs.
    pub vnics: Vec<SharedVnic>,
    /// All filters.
    pub filters: Vec<SharedFilter>,
    /// Most vNICs, queues and filters.
    pub limits: Limits,
    /// Addresses that Linux has.
    pub linux: Vec<IpAddr>,
    /// What a network card enforces: nothing.
    pub in_hardware: Vec<Limit>,
    /// What the kernel's programs enforce.
    pub in_software: Vec<Limit>,
    /// Speed of the interface, if it is known.
    pub link_bits_per_s: Option<u64>,
    /// Requests that the control socket has refused, by reason.
    pub refused: BTreeMap<Code, u64>,
}

/// Limits of a shared interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Its vNICs.
    pub vnics: usize,
    /// Queues of a vNIC.
    pub queues: usize,
    /// All filters.
    pub filters: usize,
    /// Filters that one holder may derive.
    pub derived_of_a_holder: usize,
    /// Whether filters of different holders may overlap, and overlap Linux.
    pub overlap: bool,
}

/// A vNIC of a shared interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedVnic {
    /// Its name.
    pub vnic: String,
    /// Number of its queue pairs.
    pub queues: usize,
    /// The link that its dataplane opens.
    pub link: Option<String>,
    /// For `ix run --nic`.
    pub device: Option<String>,
    /// The process whose end deletes it.
    pub owner: Option<u32>,
    /// Packets that it sent.
    pub sent: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Packets that it received.
    pub received: u64,
    /// Packets dropped: not of its Ethernet address.
    pub foreign_mac: u64,
    /// Packets dropped: no filter takes them.
    pub foreign: u64,
    /// Packets dropped: beyond its rate.
    pub over_rate: u64,
    /// Packets dropped: beyond its part of a full interface.
    pub over_share: u64,
    /// Packets not received: beyond its rate.
    pub received_over_rate: u64,
    /// Its rates, while it has a link.
    #[serde(flatten)]
    pub rates: Option<SharedRates>,
}

/// Rates of a vNIC of a shared interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRates {
    /// Of what is received.
    #[serde(with = "text::option")]
    pub rx_rate: Option<Rate>,
    /// Of what is sent.
    #[serde(with = "text::option")]
    pub tx_rate: Option<Rate>,
    /// Its part of a full interface, beside the others' weights.
    pub weight: u32,
    /// That part now, bits per second; none: the interface is not full.
    pub part_bits_per_s: Option<u64>,
}

/// A filter of a shared interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedFilter {
    /// Its number.
    pub filter: u32,
    /// The part of the header space.
    #[serde(with = "text::one")]
    pub text: Filter,
    /// Its holder.
    pub holder: String,
    /// The filter that it was derived from.
    pub derived_from: Option<u32>,
    /// The vNIC that it is assigned to.
    pub vnic: Option<String>,
}

/// What [`Rate`](super::Request::Rate) returns: the rates after the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RatesSet {
    /// Of a dataplane's vNIC.
    Own(OwnRates),
    /// Of one queue of it.
    Queue(QueueRates),
    /// Of a vNIC of a shared interface.
    Shared(SharedRatesSet),
}

/// Rates of a vNIC of a shared interface that were set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRatesSet {
    /// Its name.
    pub vnic: String,
    /// The rates.
    #[serde(flatten)]
    pub rates: SharedRates,
    /// A note for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What [`FilterCreate`](super::Request::FilterCreate) returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FiltersCreated {
    /// The filters, in the order of the request.
    pub filters: Vec<FilterCreated>,
}

/// A filter that was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilterCreated {
    /// Its number.
    pub filter: u32,
    /// The part of the header space.
    #[serde(with = "text::one")]
    pub text: Filter,
    /// The queue that holds it alone, or none; not of a shared interface, which knows no queues.
    #[serde(default, deserialize_with = "text::present", skip_serializing_if = "Option::is_none")]
    pub queue: Option<Option<usize>>,
    /// Its capability.
    pub capability: String,
}

/// What [`FilterDerive`](super::Request::FilterDerive) returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterDerived {
    /// Its number.
    pub filter: u32,
    /// Its capability.
    pub capability: String,
}

/// What [`FilterAssign`](super::Request::FilterAssign) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterAssigned {
    /// Its number.
    pub filter: u32,
    /// The queue that holds it alone, or none; not of a shared interface, which knows no queues.
    #[serde(default, deserialize_with = "text::present", skip_serializing_if = "Option::is_none")]
    pub queue: Option<Option<usize>>,
}

/// What [`FilterRevoke`](super::Request::FilterRevoke) and
/// [`FilterRemove`](super::Request::FilterRemove) return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiltersRevoked {
    /// How many filters ended.
    pub revoked: usize,
}

/// What [`VnicCreate`](super::Request::VnicCreate) returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicCreated {
    /// Its name.
    pub vnic: String,
    /// The link that its dataplane opens.
    pub link: String,
    /// For `ix run --nic`.
    pub device: String,
    /// Its capability.
    pub capability: String,
}

/// What [`VnicDelete`](super::Request::VnicDelete) returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicDeleted {
    /// Its name.
    pub deleted: String,
}

impl View {
    /// Sets how many requests were refused, by reason.
    pub fn set_refused(&mut self, counts: BTreeMap<Code, u64>) {
        match self {
            View::Own(own) => own.refused = counts,
            View::Shared(shared) => shared.refused = counts,
        }
    }
}
