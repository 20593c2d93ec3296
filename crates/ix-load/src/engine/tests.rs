//! Whole runs in virtual time.
