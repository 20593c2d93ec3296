//! Packet formats: examples from the RFCs, and properties.
mod igmp;
mod parse;
mod parse_v6;
mod properties;
mod vlan;
