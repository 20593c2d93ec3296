//! The transmission control block: one connection.
use crate::config::Config;
use crate::listen::PeerOptions;
use crate::output::{Output, RxBuf};
use crate::pmtu::PathError;
use crate::state::State;
use core::marker::PhantomData;
use ix_wire::{FlowTuple, Seq, TcpHeader};

/// One TCP connection. `B` is the owning token of a received buffer.
pub struct Tcb<B> {
    tuple: FlowTuple,
    state: State,
    buffers: PhantomData<B>,
}

/// What a connection knows about itself (for `GET_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcbInfo {
    /// State.
    pub state: State,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub srtt_us: u32,
    /// Round-trip time variation.
    pub rttvar_us: u32,
    /// Retransmission timeout, without backoff.
    pub rto_us: u32,
    /// Congestion window.
    pub cwnd_bytes: u32,
    /// Slow-start threshold.
    pub ssthresh_bytes: u32,
    /// The peer's window.
    pub snd_wnd_bytes: u32,
    /// Sent, and neither acknowledged nor taken for lost.
    pub in_flight_bytes: u32,
    /// Largest payload of a segment we send.
    pub mss_bytes: u32,
    /// Segments sent again.
    pub retransmits: u32,
}

#[allow(unused_variables)]
impl<B: RxBuf> Tcb<B> {
    /// Active open: SYN goes out at the next [`Self::output`]. `ts_offset` is the random start of
    /// this connection's timestamps.
    pub fn connect(cfg: &Config, tuple: FlowTuple, iss: Seq, ts_offset: u32, now_us: u64) -> Self {
        Tcb { tuple, state: State::SynSent, buffers: PhantomData }
    }

    /// Passive open from an acceptable SYN: SYN-ACK goes out at the next [`Self::output`].
    pub fn accept(
        cfg: &Config,
        tuple: FlowTuple,
        syn: &TcpHeader,
        iss: Seq,
        ts_offset: u32,
        now_us: u64,
    ) -> Self {
        Tcb { tuple, state: State::SynReceived, buffers: PhantomData }
    }

    /// Established by the ACK of a valid SYN cookie; `peer` is what the cookie kept of the SYN.
    /// Hand the same segment to [`Self::segment`] next: it may carry data.
    pub fn accept_cookie(
        cfg: &Config,
        tuple: FlowTuple,
        ack: &TcpHeader,
        peer: &PeerOptions,
        ts_offset: u32,
        now_us: u64,
    ) -> Self {
        Tcb { tuple, state: State::Established, buffers: PhantomData }
    }

    /// A segment arrives (RFC 9293 section 3.10.7). The payload leaves through `out`, or is queued.
    pub fn segment(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        payload: Option<B>,
        out: &mut impl Output<B>,
    ) {
    }

    /// Sends what is to be sent now: data, FIN, acknowledgements, window updates. Call once a cycle
    /// for every connection that was touched, after the application's calls.
    pub fn output(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {}

    /// Whether [`Self::output`] may have something to do.
    pub fn needs_output(&self) -> bool {
        false
    }

    /// Does what is due at `now_us`. Harmless when nothing is.
    pub fn timer(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {}

    /// When [`Self::timer`] is to be called next; `u64::MAX`: never. Changes often; it may be looked
    /// at lazily, because an acknowledgement only moves it later.
    pub fn deadline(&self) -> u64 {
        u64::MAX
    }

    /// The application appended `bytes` to the send stream (at most [`Self::send_space`]).
    pub fn append(&mut self, bytes: u32) {}

    /// How many bytes the sliding window takes now.
    pub fn send_space(&self, cfg: &Config) -> u32 {
        0
    }

    /// The application gave back `bytes` received bytes, and with them `buffers_freed` buffers.
    pub fn recv_done(&mut self, cfg: &Config, bytes: u32, buffers_freed: u32) {}

    /// Ends the send stream: FIN follows what was appended.
    pub fn shutdown(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {}

    /// The application leaves: FIN follows what was appended, data that still comes in is answered
    /// by a reset (RFC 2525 section 2.17, RFC 9293 section 3.6.1).
    pub fn close(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {}

    /// Resets the connection.
    pub fn abort(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {}

    /// An ICMP error quoted a segment of this connection.
    pub fn icmp_error(
        &mut self,
        cfg: &Config,
        now_us: u64,
        error: PathError,
        quoted_seq: Option<Seq>,
        out: &mut impl Output<B>,
    ) {
    }

    /// Nagle's algorithm on or off (RFC 9293 section 3.7.4).
    pub fn set_nagle(&mut self, on: bool) {}

    /// Keepalive after `idle_s` seconds of silence, 0: off (RFC 9293 section 3.8.4).
    pub fn set_keepalive(&mut self, idle_s: u16, now_us: u64) {}

    /// Whether this connection, in TIME-WAIT, may be forgotten in favour of a new SYN of the peer
    /// (RFC 6191; RFC 9293 section 3.6.1). The caller then frees it and asks the listener.
    pub fn gives_way_to(&self, syn: &TcpHeader) -> bool {
        false
    }

    /// Gives back every queued buffer. Needed before a connection that is not dead is dropped.
    pub fn release(&mut self, out: &mut impl Output<B>) {}

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// Names the connection.
    pub fn tuple(&self) -> &FlowTuple {
        &self.tuple
    }

    /// The connection is gone and holds nothing: drop it.
    pub fn is_dead(&self) -> bool {
        self.state == State::Closed
    }
}
