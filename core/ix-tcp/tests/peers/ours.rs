//! IX's end: the TCP core with packets of `ix-wire` around it.
use super::stack::{ADDRS, Opening, PORTS, Stack};
use crate::support::{End, Recorder, Sent};
use ix_tcp::{Config, DeadReason, State, Tcb, TcpEvent};
use ix_wire::{
    Checksum, FlowTuple, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, ethernet, parse,
};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ISS: Seq = Seq(0xffff_0000);

pub struct Ours {
    cfg: Config,
    end: Option<End>,
    listens: bool,
    ident: u16,
}

fn tuple() -> FlowTuple {
    FlowTuple {
        local: IpAddr::v4(ADDRS[0]),
        remote: IpAddr::v4(ADDRS[1]),
        local_port: PORTS[0],
        remote_port: PORTS[1],
    }
}

impl Ours {
    pub fn new(cfg: Config) -> Ours {
        Ours { cfg, end: None, listens: false, ident: 0 }
    }

    fn dead(&self) -> Option<DeadReason> {
        self.end.as_ref().and_then(End::dead)
    }
}

impl Stack for Ours {
    fn open(&mut self, now_us: u64, how: Opening) {
        self.listens = how == Opening::Passive;
        if how == Opening::Active {
            let tcb = Tcb::connect(&self.cfg, tuple(), ISS, 77, now_us);
            self.end = Some(End::new(self.cfg.clone(), tcb, now_us));
        }
    }

    fn input(&mut self, now_us: u64, packet: &[u8]) {
        let mut frame = vec![0; ethernet::HEADER_BYTES];
        ethernet::emit(&mut frame, MACS[0], MACS[1], ethernet::TYPE_IPV4);
        frame.extend_from_slice(packet);
        let parsed = parse(&frame, RxChecks::default());
        let Ok(Parsed::Tcp(packet)) = parsed else { panic!("no TCP packet: {parsed:?}") };
        let header = packet.header;
        let syn = header.flags.0 & (TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST).0;
        if self.end.is_none() && self.listens && syn == TcpFlags::SYN.0 {
            let tcb = Tcb::accept(&self.cfg, tuple(), &header, ISS, 77, now_us);
            self.end = Some(End::new(self.cfg.clone(), tcb, now_us));
            return;
        }
        let Some(end) = &mut self.end else { return };
        end.now_us = now_us;
        if end.tcb.is_dead() {
            // Reply as a host does that has no connection.
            let reset = ix_tcp::reset_for(&header, u32::from(packet.payload.len));
            let sent = |seg| Sent { seg, payload: Vec::new() };
            end.out.sent.extend(reset.map(sent));
            return;
        }
        end.segment_with(&header, packet.payload.of(&frame), packet.ip.ecn());
    }

    fn output(&mut self, now_us: u64) -> Vec<Vec<u8>> {
        let Some(end) = &mut self.end else { return Vec::new() };
        end.now_us = now_us;
        end.tcb.timer(&end.cfg, now_us, &mut end.out);
        end.output();
        let mut packets = Vec::new();
        for sent in end.out.sent.drain(..) {
            self.ident = self.ident.wrapping_add(1);
            let link = FrameHeader {
                eth_src: MACS[0],
                eth_dst: MACS[1],
                src: IpAddr::v4(ADDRS[0]),
                dst: IpAddr::v4(ADDRS[1]),
                ttl: 64,
                tos: sent.seg.ecn,
                ident: self.ident.into(),
            };
            let mut frame = vec![0; 200 + sent.payload.len()];
            let (header, len) = (sent.seg.header(&tuple()), sent.payload.len());
            let at = link.emit_tcp(&mut frame, &header, len, Checksum::of(&sent.payload));
            frame[at..at + len].copy_from_slice(&sent.payload);
            packets.push(frame[ethernet::HEADER_BYTES..at + len].to_vec());
        }
        packets
    }

    fn deadline(&mut self, _: u64) -> u64 {
        self.end.as_ref().map_or(u64::MAX, |end| end.tcb.deadline())
    }

    fn is_open(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.state() > State::SynReceived)
    }

    fn send(&mut self, data: &[u8]) -> usize {
        self.end.as_mut().map_or(0, |end| end.send(data))
    }

    fn read(&mut self) -> Vec<u8> {
        self.end.as_mut().map_or(Vec::new(), End::read_all)
    }

    fn at_end(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.said(TcpEvent::Eof) && end.out.delivered.is_empty())
    }

    fn shutdown(&mut self, now_us: u64) {
        if let Some(end) = &mut self.end {
            end.now_us = now_us;
            end.shutdown();
        }
    }

    fn abort(&mut self, now_us: u64) {
        if let Some(end) = &mut self.end {
            end.now_us = now_us;
            end.abort();
        }
    }

    fn is_over(&self) -> bool {
        let over = |end: &End| matches!(end.state(), State::TimeWait | State::Closed);
        self.end.as_ref().is_some_and(over)
    }

    fn was_reset(&self) -> bool {
        matches!(self.dead(), Some(DeadReason::Reset | DeadReason::Refused))
    }

    fn describe(&self) -> String {
        let Some(Recorder { events, .. }) = self.end.as_ref().map(|end| &end.out) else {
            return "ours: not open".to_owned();
        };
        let info = self.end.as_ref().map(|end| end.tcb.info(&end.cfg));
        format!("ours: {info:?} {events:?}")
    }
}
