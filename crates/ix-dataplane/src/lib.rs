//! The elastic thread: cycle, flow groups, timers, batched system calls, metrics.
