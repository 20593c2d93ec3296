//! A frame as a line of text.
use ix_wire::{ChecksumMode, Parsed, RxChecks, TcpFlags, TcpPacket};

/// Describes a frame for a person who looks for a fault.
pub fn describe(frame: &[u8]) -> String {
    match ix_wire::parse(frame, RxChecks { transport: ChecksumMode::Verify }) {
        Ok(Parsed::Tcp(packet)) => tcp(&packet),
        Ok(Parsed::Arp(packet)) => format!("{packet:?}"),
        Ok(Parsed::Nd(packet)) => format!("{packet:?}"),
        Ok(Parsed::Udp(_)) => format!("UDP, {} bytes", frame.len()),
        Ok(Parsed::Icmp(_)) => format!("ICMP, {} bytes", frame.len()),
        Err(reason) => format!("refused: {}", reason.name()),
    }
}

fn tcp(packet: &TcpPacket) -> String {
    let (tuple, header) = (packet.tuple(), &packet.header);
    let names = [
        (TcpFlags::SYN, 'S'),
        (TcpFlags::FIN, 'F'),
        (TcpFlags::RST, 'R'),
        (TcpFlags::PSH, 'P'),
        (TcpFlags::ACK, '.'),
    ];
    let flags: String =
        names.iter().filter(|(f, _)| header.flags.contains(*f)).map(|x| x.1).collect();
    let mut text = format!(
        "{}:{} > {}:{} [{flags}] seq {} len {} ack {} win {}",
        tuple.remote,
        header.src_port,
        tuple.local,
        header.dst_port,
        header.seq.0,
        packet.payload.len,
        header.ack.0,
        header.window,
    );
    if let Some((val, ecr)) = header.options.timestamp {
        text += &format!(" ts {val} {ecr}");
    }
    for (left, right) in header.options.sack.as_slice() {
        text += &format!(" sack {}-{}", left.0, right.0);
    }
    text
}
