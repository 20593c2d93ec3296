//! TCP, UDP, ICMP and ARP as pure state machines.
