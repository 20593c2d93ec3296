//! Filters, the registry of vNICs and the rate gate, seen from outside.
mod filters;
mod gate;
mod registry;
