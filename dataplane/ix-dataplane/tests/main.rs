//! Elastic threads from outside: hostile calls, backlogs, bounds.
mod backlog;
mod hostile_calls;
mod peer;
mod sendv_bounds;
