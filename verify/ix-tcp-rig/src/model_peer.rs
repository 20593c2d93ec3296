//! A second TCP, as simple as the RFCs allow: go-back-N, a fixed timeout, a fixed window. It shares
//! no code and no idea with the core, so that a mistake made twice does not cancel out.
use super::link::Node;
use super::{Rng, Segment, byte_at, bytes_at};
use ix_wire::{FlowTuple, SackBlocks, Seq, TcpFlags, TcpHeader, TcpOptions};
use std::collections::{BTreeMap, VecDeque};

/// What kind of peer.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Opens the connection.
    pub active: bool,
    /// `None`: sends no MSS option (536 holds).
    pub mss: Option<u16>,
    /// Shift of its window option; `None`: sends none.
    pub window_scale: Option<u8>,
    /// Offers SACK.
    pub sack: bool,
    /// Offers timestamps.
    pub timestamps: bool,
    /// Receive buffer.
    pub buffer_bytes: u32,
    /// Keeps segments that arrive out of order.
    pub keeps_out_of_order: bool,
    /// Acknowledges each second segment, the other after this time; 0: each at once.
    pub delayed_ack_us: u64,
    /// Bytes its application reads each `read_every_us`.
    pub read_bytes: u32,
    /// How often its application reads, µs; 0: at once.
    pub read_every_us: u64,
    /// Takes back window it has offered (RFC 9293 section 3.8.6: a sender must cope).
    pub shrinks_window: bool,
    /// Announces each octet of window as it comes free (silly window).
    pub silly_window: bool,
    /// Bytes that it sends.
    pub sends: u64,
    /// Its retransmission timeout, µs.
    pub rto_us: u64,
    /// Bytes that it has in flight at most.
    pub in_flight_max: u32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            active: true,
            mss: Some(1460),
            window_scale: Some(2),
            sack: true,
            timestamps: true,
            buffer_bytes: 100_000,
            keeps_out_of_order: true,
            delayed_ack_us: 0,
            read_bytes: u32::MAX,
            read_every_us: 0,
            shrinks_window: false,
            silly_window: false,
            sends: 0,
            rto_us: 200_000,
            in_flight_max: 20_000,
        }
    }
}

/// An independent, primitive TCP.
pub struct ModelPeer {
    cfg: ModelConfig,
    tuple: FlowTuple,
    own_seed: u32,
    peer_seed: u32,
    rng: Rng,
    iss: Seq,
    snd_una: Seq,
    snd_nxt: Seq,
    snd_edge: Seq,
    syn_acked: bool,
    irs: Option<Seq>,
    rcv_nxt: Seq,
    /// In order and not read.
    unread: u32,
    /// Bytes that its application has read.
    pub received: u64,
    out_of_order: BTreeMap<u64, Vec<u8>>,
    latest_block: Option<u64>,
    peer_fin: Option<Seq>,
    /// The core's FIN has come.
    pub eof: bool,
    /// Its own FIN was acknowledged.
    pub fin_acked: bool,
    /// The connection was reset.
    pub reset: bool,
    peer_mss: u32,
    peer_shift: u8,
    scaling: bool,
    sack: bool,
    timestamps: bool,
    ts_recent: u32,
    last_ack: Seq,
    ack_owed: u32,
    ack_now: bool,
    ack_at_us: u64,
    rto_at_us: u64,
    read_at_us: u64,
    last_edge: Seq,
    dupacks: u32,
    sent: VecDeque<Segment>,
    now_us: u64,
}

impl ModelPeer {
    /// A peer whose stream and whose expectation follow from the seeds.
    pub fn new(cfg: ModelConfig, tuple: FlowTuple, iss: Seq, seeds: (u32, u32)) -> Self {
        let rto_at_us = if cfg.active { 0 } else { u64::MAX };
        ModelPeer {
            cfg,
            tuple,
            own_seed: seeds.0,
            peer_seed: seeds.1,
            rng: Rng::new(u64::from(seeds.0)),
            iss,
            snd_una: iss,
            snd_nxt: iss,
            snd_edge: iss + 1,
            syn_acked: false,
            irs: None,
            rcv_nxt: Seq(0),
            unread: 0,
            received: 0,
            out_of_order: BTreeMap::new(),
            latest_block: None,
            peer_fin: None,
            eof: false,
            fin_acked: false,
            reset: false,
            peer_mss: 536,
            peer_shift: 0,
            scaling: false,
            sack: false,
            timestamps: false,
            ts_recent: 0,
            last_ack: Seq(0),
            ack_owed: 0,
            ack_now: false,
            ack_at_us: u64::MAX,
            rto_at_us,
            read_at_us: u64::MAX,
            last_edge: Seq(0),
            dupacks: 0,
            sent: VecDeque::new(),
            now_us: 0,
        }
    }

    /// Everything went both ways and is acknowledged.
    pub fn finished(&self) -> bool {
        self.eof && self.fin_acked
    }

    fn fin_seq(&self) -> Seq {
        self.iss + 1 + self.cfg.sends as u32
    }

    fn window(&mut self) -> (u16, Seq) {
        let shift = if self.scaling { self.cfg.window_scale.unwrap_or(0) } else { 0 };
        let mut free = self.cfg.buffer_bytes.saturating_sub(self.unread);
        if self.cfg.shrinks_window && self.rng.per_mille(100) {
            free /= 2;
        } else if !self.cfg.silly_window && self.cfg.read_every_us == 0 {
            // A well-behaved receiver never moves its edge left.
            free = free.max((self.last_edge - self.rcv_nxt).max(0) as u32);
        }
        let field = (free >> shift).min(65_535);
        (field as u16, self.rcv_nxt + (field << shift))
    }

    fn transmit(&mut self, flags: TcpFlags, seq: Seq, len: usize) {
        let syn = flags.contains(TcpFlags::SYN);
        let mut options = TcpOptions::NONE;
        let answers = self.irs.is_some();
        if syn {
            options.mss = self.cfg.mss;
            options.window_scale = self.cfg.window_scale.filter(|_| !answers || self.scaling);
            options.sack_permitted = self.cfg.sack && (!answers || self.sack);
        }
        if self.cfg.timestamps && (self.timestamps || syn && !answers) {
            options.timestamp = Some(((self.now_us / 1000) as u32, self.ts_recent));
        }
        let ack = if answers { TcpFlags::ACK } else { TcpFlags(0) };
        let (mut window, edge) = self.window();
        if syn {
            window = self.cfg.buffer_bytes.min(65_535) as u16;
        } else if self.sack {
            options.sack = self.sack_blocks();
        }
        self.last_edge = self.last_edge.max(edge);
        let hdr = TcpHeader {
            src_port: self.tuple.local_port,
            dst_port: self.tuple.remote_port,
            seq,
            ack: if answers { self.rcv_nxt } else { Seq(0) },
            flags: flags | ack,
            window,
            urgent: 0,
            options,
        };
        self.last_ack = self.rcv_nxt;
        self.ack_owed = 0;
        self.ack_now = false;
        self.ack_at_us = u64::MAX;
        let payload = bytes_at(self.own_seed, seq, len);
        self.sent.push_back(Segment { hdr, payload });
    }

    fn sack_blocks(&self) -> SackBlocks {
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        for (&at, bytes) in &self.out_of_order {
            match blocks.last_mut() {
                Some(last) if last.1 >= at => last.1 = last.1.max(at + bytes.len() as u64),
                _ => blocks.push((at, at + bytes.len() as u64)),
            }
        }
        if let Some(latest) = self.latest_block {
            blocks.sort_by_key(|&(left, right)| !(left <= latest && latest < right));
        }
        let base = self.irs.expect("a peer") + 1;
        let mut sack = SackBlocks::EMPTY;
        for &(left, right) in blocks.iter().take(3) {
            sack.push(base + left as u32, base + right as u32);
        }
        sack
    }

    fn learn_syn(&mut self, hdr: &TcpHeader) {
        self.irs = Some(hdr.seq);
        self.rcv_nxt = hdr.seq + 1;
        self.last_edge = self.rcv_nxt + self.cfg.buffer_bytes.min(65_535);
        self.peer_mss = u32::from(hdr.options.mss.unwrap_or(536));
        self.scaling = self.cfg.window_scale.is_some() && hdr.options.window_scale.is_some();
        self.peer_shift = if self.scaling { hdr.options.window_scale.unwrap_or(0) } else { 0 };
        self.sack = self.cfg.sack && hdr.options.sack_permitted;
        self.timestamps = self.cfg.timestamps && hdr.options.timestamp.is_some();
        self.ts_recent = hdr.options.timestamp.map_or(0, |(val, _)| val);
        self.snd_edge = self.iss + 1 + u32::from(hdr.window);
        self.ack_now = true;
    }

    fn acknowledged(&mut self, hdr: &TcpHeader, pure: bool) {
        let shift = if hdr.flags.contains(TcpFlags::SYN) { 0 } else { self.peer_shift };
        let edge = hdr.ack + (u32::from(hdr.window) << shift);
        assert!(hdr.ack.le(self.snd_max()), "acknowledges what was never sent {hdr:?}");
        if hdr.ack.gt(self.snd_una) {
            self.snd_una = hdr.ack;
            self.snd_nxt = self.snd_nxt.max(hdr.ack);
            self.syn_acked = true;
            self.dupacks = 0;
            self.fin_acked = hdr.ack.gt(self.fin_seq());
            self.rto_at_us =
                if self.snd_nxt == self.snd_una { u64::MAX } else { self.now_us + self.cfg.rto_us };
        } else if hdr.ack == self.snd_una && pure && self.snd_nxt != self.snd_una {
            self.dupacks += 1;
            if self.dupacks == 3 {
                self.send_at(self.snd_una);
            }
        }
        if edge.gt(self.snd_edge) {
            self.snd_edge = edge;
        }
    }

    fn snd_max(&self) -> Seq {
        // Go-back-N moves snd_nxt back; the stream's end bounds what may be acknowledged.
        self.fin_seq() + 1
    }

    fn accept(&mut self, hdr: &TcpHeader, payload: &[u8]) {
        let base = self.irs.expect("a peer") + 1;
        for (offset, &byte) in payload.iter().enumerate() {
            let at = hdr.seq + offset as u32;
            assert_eq!(byte, byte_at(self.peer_seed, at), "wrong byte at {at:?}");
        }
        if hdr.flags.contains(TcpFlags::FIN) {
            let fin = hdr.seq + payload.len() as u32;
            assert_eq!(*self.peer_fin.get_or_insert(fin), fin, "FIN moved");
        }
        if let Some(fin) = self.peer_fin {
            assert!((hdr.seq + payload.len() as u32).le(fin), "data after FIN");
        }
        let end = hdr.seq + payload.len() as u32;
        let in_order = hdr.seq.le(self.rcv_nxt);
        if end.gt(self.rcv_nxt) && (in_order || self.cfg.keeps_out_of_order) {
            let skip = (self.rcv_nxt - hdr.seq).max(0) as usize;
            let at = self.received + (hdr.seq + skip as u32 - self.rcv_nxt) as u64;
            debug_assert_eq!(base + at as u32, hdr.seq + skip as u32);
            let room = i64::from(self.cfg.buffer_bytes) - i64::from(self.unread);
            let kept = (room - (at - self.received) as i64).clamp(0, (payload.len() - skip) as i64);
            if kept > 0 {
                let kept = payload[skip..skip + kept as usize].to_vec();
                let longest = self.out_of_order.get(&at).map_or(0, Vec::len);
                if kept.len() > longest {
                    self.out_of_order.insert(at, kept);
                }
                self.latest_block = Some(at);
            }
        }
        self.drain();
        if self.peer_fin == Some(self.rcv_nxt) && !self.eof {
            self.rcv_nxt += 1;
            self.eof = true;
            self.ack_now = true;
        }
        self.ack_owed += 1;
        let delays = self.cfg.delayed_ack_us > 0 && in_order && self.out_of_order.is_empty();
        if !delays || self.ack_owed >= 2 || end.le(self.last_ack) {
            self.ack_now = true;
        } else {
            self.ack_at_us = self.ack_at_us.min(self.now_us + self.cfg.delayed_ack_us);
        }
    }

    fn drain(&mut self) {
        while let Some((at, bytes)) = self.out_of_order.pop_first() {
            if at > self.received {
                self.out_of_order.insert(at, bytes);
                break;
            }
            let end = at + bytes.len() as u64;
            if end > self.received {
                let new = (end - self.received) as u32;
                self.received = end;
                self.rcv_nxt += new;
                self.unread += new;
                self.read_at_us = self.read_at_us.min(self.now_us + self.cfg.read_every_us);
            }
        }
    }

    /// One segment of the stream from `seq` on, as far as the window goes. Returns its end.
    fn send_at(&mut self, seq: Seq) -> Seq {
        let fin_seq = self.fin_seq();
        let overhead = if self.timestamps { 12 } else { 0 };
        let limit = (self.peer_mss - overhead).min(self.cfg.in_flight_max);
        let room = (self.snd_edge - seq).max(0) as u32;
        let left = (fin_seq - seq).max(0) as u32;
        // SACK blocks take option room too.
        let sack = if self.sack { self.sack_blocks().len() as u32 * 8 + 4 } else { 0 };
        let len = left.min(limit - sack.min(limit / 2)).min(room);
        let end = seq + len;
        let fin = end == fin_seq && room > len;
        if len > 0 || fin {
            let flags = if fin { TcpFlags::FIN } else { TcpFlags(0) };
            self.transmit(flags, seq, len as usize);
        }
        end + u32::from(fin)
    }

    fn timeout(&mut self) {
        self.rto_at_us = self.now_us + self.cfg.rto_us;
        self.dupacks = 0;
        if !self.syn_acked {
            self.snd_nxt = self.iss + 1;
            self.transmit(TcpFlags::SYN, self.iss, 0);
        } else if self.snd_una.gt(self.fin_seq()) {
            self.rto_at_us = u64::MAX;
        } else {
            self.snd_nxt = self.snd_una;
            if self.snd_edge.le(self.snd_una) {
                // Zero window: one octet beyond it, or FIN.
                let fin = self.snd_una == self.fin_seq();
                let (flags, len) = if fin { (TcpFlags::FIN, 0) } else { (TcpFlags(0), 1) };
                self.transmit(flags, self.snd_una, len);
            }
        }
    }

    fn send_new(&mut self) {
        if !self.syn_acked || self.irs.is_none() || self.fin_acked {
            return;
        }
        loop {
            let in_flight = (self.snd_nxt - self.snd_una) as u32;
            if in_flight >= self.cfg.in_flight_max || self.snd_nxt.gt(self.fin_seq()) {
                break;
            }
            let end = self.send_at(self.snd_nxt);
            if end == self.snd_nxt {
                break;
            }
            self.snd_nxt = end;
        }
        if self.rto_at_us == u64::MAX {
            self.rto_at_us = self.now_us + self.cfg.rto_us;
        }
    }

    fn read(&mut self) {
        if self.now_us < self.read_at_us {
            return;
        }
        let read = self.unread.min(self.cfg.read_bytes);
        let was_closed = self.cfg.buffer_bytes - self.unread.min(self.cfg.buffer_bytes)
            < 2 * self.cfg.mss.map_or(536, u32::from);
        self.unread -= read;
        if read > 0 && (was_closed || self.cfg.silly_window) {
            self.ack_now = true;
        }
        self.read_at_us =
            if self.unread > 0 { self.now_us + self.cfg.read_every_us.max(1) } else { u64::MAX };
    }
}

impl Node for ModelPeer {
    fn arrive(&mut self, segment: &Segment, now_us: u64) {
        self.now_us = now_us;
        let hdr = &segment.hdr;
        if hdr.flags.contains(TcpFlags::RST) {
            self.reset = true;
            return;
        }
        if hdr.flags.contains(TcpFlags::SYN) {
            if self.irs.is_none() {
                self.learn_syn(hdr);
                if !self.syn_acked && !hdr.flags.contains(TcpFlags::ACK) {
                    self.timeout();
                }
            }
            self.ack_now = true;
        }
        let Some(irs) = self.irs else { return };
        if let (true, Some((val, _))) = (self.timestamps, hdr.options.timestamp)
            && hdr.seq.le(self.last_ack.max(irs + 1))
        {
            self.ts_recent = val;
        }
        if hdr.flags.contains(TcpFlags::ACK) {
            let pure = segment.seq_len() == 0;
            self.acknowledged(hdr, pure);
        }
        if segment.seq_len() > 0 && !hdr.flags.contains(TcpFlags::SYN) {
            self.accept(hdr, &segment.payload);
        }
        if segment.seq_len() == 0 && hdr.seq.lt(self.rcv_nxt) {
            // A probe below the window (keepalive) wants an answer.
            self.ack_now = true;
        }
    }

    fn turn(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.read();
        if now_us >= self.rto_at_us {
            self.timeout();
        }
        self.send_new();
        if self.irs.is_some() && self.syn_acked && (self.ack_now || now_us >= self.ack_at_us) {
            let seq = if self.fin_acked { self.fin_seq() + 1 } else { self.snd_nxt };
            self.transmit(TcpFlags(0), seq, 0);
        }
    }

    fn next_turn_us(&self) -> u64 {
        self.rto_at_us.min(self.ack_at_us).min(self.read_at_us)
    }

    fn take_sent(&mut self) -> Vec<Segment> {
        self.sent.drain(..).collect()
    }
}
