//! The native API and event loop of programs written for IX.
