//! Devices against Linux, DPDK and each other, in namespaces of their own.
mod common;
mod dataplane;
#[path = "common/memif.rs"]
mod ends;
mod exchange;
mod keeper;
mod link;
mod linux_address;
mod memif;
mod memif_dpdk;
mod memif_mesh;
mod tap;
mod tap_offloads;
