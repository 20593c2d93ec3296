//! Dataplanes in virtual time, for tests, simulation, fuzzing and counting instructions.
//!
//! [`Rig::new`] builds the elastic threads of one dataplane from a [`RigOptions`] and one queue
//! pair for each; [`SimDevice`] gives such queue pairs, and a test may bring its own. The threads
//! are the real ones (`ix_dataplane::ElasticThread`) with everything that they need: packet memory,
//! pools, control page, call and event arrays. What a test turns:
//!
//! - [`RigOptions::config`]: the dataplane's configuration, as a configuration file gives it;
//! - [`SimOptions`]: the device, how it spreads packets over its queues and what it says of that;
//! - [`VirtualClock`]: time goes on only where the test says so;
//! - the seed: `ix_random::Rng`, of which `Spread::Random` takes one.
//!
//! A test drives a thread in one of two ways. [`RigThread::run`] is the bare contract: calls in,
//! return codes and events out, and the test is the application; with [`BareRig`] it writes into
//! transmit memory, too. [`enter`] gives the library's end
//! (`libix::raw::Thread`), whose gate runs one cycle at the clock's time; a [`Watch`] sees what
//! crosses it.
mod arrays;
mod bare;
mod clock;
mod device;
mod gate;
mod thread;

pub use arrays::Arrays;
pub use bare::BareRig;
pub use clock::VirtualClock;
pub use device::{Promise, SimDevice, SimNic, SimOptions, Spread, Waited};
pub use gate::{Core, Watch, enter};
pub use thread::{Rig, RigOptions, RigThread};
