//! What the TCP core does, seen from outside: by subject, against other TCPs, and against anything.
mod attacks;
mod closing;
mod ecn;
mod flow_control;
mod handshake;
mod hostile_segments;
mod interop_model_peer;
mod loss;
mod peers;
mod props_soup;
mod props_streams;
mod streams;
mod support;
mod window_update;
