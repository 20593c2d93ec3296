//! What ICMP errors do to a connection: RFC 1122 section 4.2.3.9, RFC 1191, RFC 5927.

/// What an ICMP error says about the path of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// A packet with DF was too long for a link with this MTU (0: the router did not say).
    FragNeeded {
        /// MTU of the next hop, bytes with the IP header.
        mtu: u16,
    },
    /// The network or the host cannot be reached, or the packet lived too long: may pass by.
    Soft,
    /// Nobody there speaks TCP, or listens on the port, or we are forbidden to ask.
    Hard,
}
