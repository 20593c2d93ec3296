//! What Arrakis' control plane deals in: filters, capabilities for them, rate specifiers.
//!
//! * [`Filter`]: a convex part of the space of packet headers, as a value and as text.
//! * [`Header`]: the point of that space at which a packet lies.
//! * [`FilterSet`]: what one direction of a vNIC may carry, and why not ([`Foreign`]).
//! * [`Registry`]: who holds which part, by capabilities that cannot be guessed and can be revoked.
//! * [`Rate`], [`Shaper`]: bits and packets a second, and when the next packet may pass.
//! * [`Pacer`]: the same for each flow by itself, with the packets that wait.
//! * [`Gate`]: all of it for one dataplane, as one line of text.
//!
//! Nothing here reads a clock, draws a random number or touches a device.
#![forbid(unsafe_code)]

mod capability;
mod filter;
mod gate;
mod header;
mod pacer;
mod ranges;
mod rate;
mod registry;
mod set;
mod shaper;
mod text;

pub use capability::{Capability, CapabilityError};
pub use filter::{Direction, Field, Filter, Level};
pub use gate::{Gate, Rates, check_count};
pub use header::{ArpHeader, Header, IpHeader, UNTAGGED};
pub use pacer::{Offered, Pacer, flow_of};
pub use ranges::{RANGES_MAX, Ranges};
pub use rate::{Rate, RateError};
pub use registry::{Assigned, FilterId, FilterView, Policy, Refusal, Registry, VnicId, VnicView};
pub use set::{FILTERS_MAX, FilterSet, Foreign};
pub use shaper::{LATE_NS, Shaper};
pub use text::FilterError;
