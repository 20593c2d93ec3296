//! Tests of the TCP core from outside: by subject, against other TCPs, and with random input.
mod attacks;
mod closing;
mod ecn;
mod flow_control;
mod handshake;
mod hostile_segments;
mod interop_model_peer;
mod long_path;
mod loss;
mod peers;
mod props_soup;
mod props_streams;
mod right_size;
mod streams;
mod support;
mod wide_area;
mod window_update;
