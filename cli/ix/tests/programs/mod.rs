//! Programs as their users have them: unmodified ones, libevent's, C.

mod endings;
mod haproxy;
mod ipv6;
mod libevent;
mod libix_c;
mod libix_c_control;
mod long_path;
mod memory;
mod own_calls;
pub mod posix;
mod process_cases;
mod processes;
mod served;
mod slow_readers;
mod uring;
mod whose;
