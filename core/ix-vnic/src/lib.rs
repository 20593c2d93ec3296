//! vNICs as in Arrakis: filters, capabilities for them, and rate specifiers.
//!
//! * [`Filter`]: a convex part of the space of packet headers, as a value and as text.
//! * [`Header`]: the fields of one packet, a point in that space.
//! * [`FilterSet`]: the packets that one direction of a vNIC may carry, and why others are refused
//!   ([`Foreign`]).
//! * [`Registry`]: which holder has which filter, by capabilities that cannot be guessed and can be
//!   revoked.
//! * [`Rate`], [`Shaper`]: a limit in bits and packets per second, and when the next packet may
//!   pass.
//! * [`Pacer`]: a rate for each flow, and the packets that wait.
//! * [`VnicRules`]: the rules of one vNIC, as one line of text.
//!
//! Nothing here reads a clock, draws a random number or touches a device.
#![forbid(unsafe_code)]

mod capability;
mod filter;
mod header;
mod pacer;
mod ranges;
mod rate;
mod registry;
mod rules;
mod set;
mod shaper;
mod text;

pub use capability::{Capability, CapabilityError};
pub use filter::{Direction, Field, Filter, Level};
pub use header::{
    ArpHeader, EXTENSIONS, EXTENSIONS_MAX, FRAGMENT, GROUP_REPORTS, Header, ICMPV6, IpHeader,
    ND_ADVERTISEMENT, ND_SOLICITATION, ND_TYPES, NdHeader, Saying, UNTAGGED,
};
pub use pacer::{Offered, Pacer, flow_of};
pub use ranges::{RANGES_MAX, Ranges};
pub use rate::{Rate, RateError};
pub use registry::{Assigned, FilterId, FilterView, Policy, Refusal, Registry, VnicId, VnicView};
pub use rules::{Rates, VnicRules, check_count};
pub use set::{FILTERS_MAX, FilterSet, Foreign};
pub use shaper::{LATE_NS, Shaper};
pub use text::FilterError;
