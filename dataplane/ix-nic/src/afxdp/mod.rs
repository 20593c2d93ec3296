//! `afxdp`: any Linux network interface, shared with Linux.
//!
//! An XDP program redirects packets for the dataplane's addresses into AF_XDP sockets, one for each
//! queue, and passes all others on to the kernel. The broker loads the program and makes the
//! sockets; [`AfxdpNic`] is those of one elastic thread, which share one registration of packet
//! memory.
mod describe;
mod nic;
mod queue;
mod ring;
mod socket;
mod table;

pub(crate) use nic::AfxdpNic;
pub(crate) use table::AskedTable;
pub use table::{TableAnswer, TableRequest};
