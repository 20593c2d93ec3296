//! Dataplanes in the test's process on real devices: echo to Linux, two of them on one memif, and
//! elastic threads that come and go under traffic.
mod life;
mod link;
mod linux_peer;
mod memif_peer;
mod routers;
mod tagger;
mod vlan;
