//! Whole hosts on a simulated network in virtual time.
