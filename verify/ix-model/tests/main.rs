//! The model against what is known of such queues and machines.
mod calibration;
mod dynamic;
