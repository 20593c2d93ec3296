//! Filters, the registry of vNICs and the shaping of rates, from outside.
mod filters;
mod registry;
mod rules;
