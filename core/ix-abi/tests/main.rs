//! All tests of the contract in one executable.
mod round_trip;
mod words;
