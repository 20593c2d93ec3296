//! `tap`: an Ethernet link to the Linux stack of this machine, by reads and writes.
//!
//! Each frame takes a system call. If the driver allows it, a frame may be as long as an IP packet:
//! it then has a `virtio_net_hdr` ([`vnet`]), Linux leaves checksums and the segmentation of TCP to
//! the dataplane ([`receive`]), and the dataplane merges its own segments ([`merge`]). Otherwise
//! Linux finishes both before it delivers a frame. The interface is deleted with its descriptors.
mod merge;
mod nic;
mod receive;
mod vnet;

pub(crate) use nic::TapNic;
