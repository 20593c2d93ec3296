//! A dataplane that serves, seen from outside: a real Linux peer, `ix ctl` and the clock.

mod attacks;
mod away;
mod basics;
mod bulk;
mod connections;
mod ctl;
mod devices;
mod elastic;
mod failures;
mod flood;
mod hostile;
mod http;
mod kv;
mod many;
mod memif;
mod packets;
mod pcap;
mod policy;
mod process_wall;
mod queues;
mod restart;
mod share;
mod shared_cores;
mod top;
mod vnic;
mod vnic_faults;
