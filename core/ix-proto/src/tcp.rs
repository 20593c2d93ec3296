//! The codec of TCP's parameters.
use crate::codec::{codec_enum, codec_struct};
use ix_tcp::{Config, CongestionControl, EcnMode};

codec_enum!(CongestionControl { 0 = Cubic, 1 = NewReno, 2 = Dctcp, 3 = Bbr });
codec_enum!(EcnMode { 0 = Off, 1 = Accept, 2 = Ask, 3 = AcceptAccurate, 4 = AskAccurate });
codec_struct!(Config {
    mss,
    rcv_buf_bytes,
    rcv_buf_max_bytes,
    rcv_buffers_max,
    rcv_share,
    snd_buf_bytes,
    snd_buf_max_bytes,
    min_rto_us,
    max_rto_us,
    initial_rto_us,
    rto_jitter_percent,
    min_pto_us,
    delayed_ack_allowance_us,
    max_ack_delay_us,
    delack_us,
    delack_max_us,
    quick_acks,
    max_stretch_segments,
    time_wait_us,
    fin_wait2_us,
    keepalive_idle_s,
    keepalive_interval_us,
    keepalive_probes,
    syn_retries,
    syn_ack_retries,
    r2_us,
    sack,
    timestamps,
    window_scaling,
    window_shift_min,
    congestion,
    ecn,
    path_search,
    initial_window_segments,
    nagle,
});
