//! Packet formats: examples from the RFCs, and properties.
mod parse;
mod properties;
