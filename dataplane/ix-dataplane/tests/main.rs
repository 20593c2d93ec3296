//! Elastic threads from outside: hostile calls, backlogs, bounds, ports, processes, devices.
mod attachments;
mod backlog;
mod devices;
mod ends;
mod hostile_calls;
mod jumbo;
mod long_frames;
mod outgoing;
mod own_addresses;
mod peer;
mod sendv_bounds;
mod windows;
