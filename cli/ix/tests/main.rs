//! The command and the dataplane under it, from outside.
mod commands;
mod programs;
mod serve;
mod support;
