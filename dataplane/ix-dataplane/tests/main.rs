//! Elastic threads from outside: hostile calls, backlogs, bounds, ports, processes.
mod attachments;
mod backlog;
mod hostile_calls;
mod outgoing;
mod peer;
mod sendv_bounds;
