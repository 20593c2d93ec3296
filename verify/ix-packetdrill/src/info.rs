//! Linux's `struct tcp_info`, which scripts read by `getsockopt`.
use ix_scripts::assertion::value_of;
use ix_scripts::tcp::{LossInfo, TcbInfo};

/// Octets of the structure that are filled; a caller with less room gets fewer, one with more room
/// gets zeros.
pub const BYTES: usize = 232;

/// Offsets and lengths of fields. The window scales share the octet at 6.
const FIELDS: &[(usize, usize, &str)] = &[
    (0, 1, "tcpi_state"),
    (1, 1, "tcpi_ca_state"),
    (3, 1, "tcpi_probes"),
    (4, 1, "tcpi_backoff"),
    (5, 1, "tcpi_options"),
    (8, 4, "tcpi_rto"),
    (16, 4, "tcpi_snd_mss"),
    (20, 4, "tcpi_rcv_mss"),
    (24, 4, "tcpi_unacked"),
    (28, 4, "tcpi_sacked"),
    (32, 4, "tcpi_lost"),
    (36, 4, "tcpi_retrans"),
    (44, 4, "tcpi_last_data_sent"),
    (56, 4, "tcpi_last_ack_recv"),
    (68, 4, "tcpi_rtt"),
    (72, 4, "tcpi_rttvar"),
    (76, 4, "tcpi_snd_ssthresh"),
    (80, 4, "tcpi_snd_cwnd"),
    (84, 4, "tcpi_advmss"),
    (88, 4, "tcpi_reordering"),
    (100, 4, "tcpi_total_retrans"),
    (144, 4, "tcpi_notsent_bytes"),
    (148, 4, "tcpi_min_rtt"),
    (176, 8, "tcpi_rwnd_limited"),
    (228, 4, "tcpi_snd_wnd"),
];

/// State of a connection, in Linux's layout.
pub fn tcp_info(info: &TcbInfo, loss: &LossInfo) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let value = |name| value_of(name, info, loss).unwrap_or(0);
    for (at, len, name) in FIELDS {
        bytes[*at..at + len].copy_from_slice(&value(name).to_ne_bytes()[..*len]);
    }
    bytes[6] = (value("tcpi_snd_wscale") as u8 & 15) | (value("tcpi_rcv_wscale") as u8) << 4;
    bytes
}
