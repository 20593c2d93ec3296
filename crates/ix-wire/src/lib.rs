//! Packet formats, checksums and flow hashes; parsing is total.
