//! Private links and network namespaces for the demo, the benchmarks and the tests.
//!
//! System calls of this process make everything, without external tools, and everything ends with
//! it: a [`Namespace`] has no name, only a descriptor, and its devices are removed with its last
//! descriptor and its last process. So there is nothing to clean up, not even after SIGKILL.
//!
//! ```no_run
//! # fn main() -> Result<(), ix_testbed::Error> {
//! use ix_testbed::{Namespace, VethEnd};
//! let (a, b) = (Namespace::new()?, Namespace::new()?);
//! a.add_veth(&VethEnd::new("left"), &b, &VethEnd::new("right"))?;
//! a.add_address("left", std::net::Ipv4Addr::new(10, 0, 0, 1), 24)?;
//! a.set_up("left", true)?;
//! b.set_up("right", true)?;
//! let reached = a.run(|| std::net::UdpSocket::bind("10.0.0.1:0").is_ok());
//! # assert!(reached); Ok(())
//! # }
//! ```
//!
//! Also shared parts of the tests of several packages: servers on loopback ([`server`]), programs
//! that are built for a test ([`programs`]), a strict parser of metrics ([`prometheus`]).
#![forbid(unsafe_code)]

mod bridge;
mod packet;
mod path;
pub mod programs;
pub mod prometheus;
pub mod server;

pub use bridge::Bridge;
pub use ix_netdev::{Link, LinkChange, LinkWatch, Namespace, VethEnd};
pub use ix_sys::interface::Channels;
pub use ix_sys::user_namespace::{enter as enter_user_namespace, try_enter as try_user_namespace};
pub use ix_sys::{Error, cpu};
pub use packet::PacketSocket;
pub use path::{Loss, Path, PathCounts, PathSpec};
