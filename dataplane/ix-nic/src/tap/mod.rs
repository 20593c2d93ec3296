//! `tap`: an Ethernet link to the Linux stack of this machine, by reads and writes.
//!
//! A system call a frame each way. Where the driver lets us, a frame may be as long as an IP packet
//! can be: each carries a `virtio_net_hdr` ([`vnet`]) then, Linux leaves checksums and the cutting
//! of TCP segments to us ([`receive`]), and what we have cut is joined again ([`merge`]). Otherwise
//! Linux finishes both before it hands a frame over. The interface dies with its descriptors.
mod merge;
mod nic;
mod receive;
mod vnet;

pub(crate) use nic::TapNic;
