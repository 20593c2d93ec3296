//! Observation: counters and histograms, captures, surveys. Nothing here changes what the dataplane
//! does.
pub mod capture;
pub mod histogram;
pub mod metrics;
pub mod survey;
