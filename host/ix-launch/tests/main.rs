//! Programs with the dataplane in them.
mod broker;
mod common;
mod gate;
mod plant;
