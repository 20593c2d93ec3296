//! Packets of a script: those that come in, those that must go out.
use super::*;

const FIN: u16 = 1;
const PSH: u16 = 8;

impl Runner<'_> {
    pub(super) fn inject(&mut self, line: usize, packet: &Packet) -> Result<(), Failure> {
        let most = self.inject_mss;
        match &packet.body {
            Body::Tcp(segment) if segment.len > most => {
                for part in parts(segment, most) {
                    let part = Packet { body: Body::Tcp(part), ..packet.clone() };
                    self.arrive(line, &part)?;
                }
            }
            _ => self.arrive(line, packet)?,
        }
        self.sockets.take_in();
        self.collect();
        self.try_pending()
    }

    /// A packet reaches the device.
    fn arrive(&mut self, line: usize, packet: &Packet) -> Result<(), Failure> {
        self.packets += 1;
        let at = self.sockets.at;
        let number = packet.conversation;
        let default =
            Way { from: at.remote, to: at.local, from_port: remote_port(number), to_port: 8080 };
        let script = self.script;
        let conversation = self.conversation(number);
        let way = *conversation.way.get_or_insert(default);
        let (protocol, bytes) = match &packet.body {
            Body::Tcp(segment) => {
                let (live, payload) = conversation.live(segment);
                (wire::TCP, wire::tcp(way, &live, &payload))
            }
            Body::Udp(len) => (wire::UDP, wire::udp(way, &octets(0, *len as usize))),
            Body::Icmp { kind, word, quoted } => {
                let v6 = way.from.is_ipv6();
                let numbers = numbers_of(kind, v6)
                    .ok_or_else(|| unsupported(script, line, not_of_family(kind, v6)))?;
                let quoted_fields = wire::Fields { ttl: 63, ..wire::Fields::default() };
                let quoted = match quoted {
                    Quoted::Segment(seq, len) => {
                        let seq = seq.wrapping_add(conversation.local_base.unwrap_or(0));
                        let segment = Segment { seq, flags: ACK, ..Segment::default() };
                        let payload = vec![0; (*len).min(65_000) as usize];
                        let tcp = wire::tcp(way.back(), &segment, &payload);
                        wire::packet(way.back(), wire::TCP, quoted_fields, &tcp)
                    }
                    Quoted::Datagram(len) => {
                        let udp = wire::udp(way.back(), &octets(0, *len as usize));
                        wire::packet(way.back(), wire::UDP, quoted_fields, &udp)
                    }
                };
                // What RFC 792 asks for, and what fits 1,280 octets (RFC 4443 section 2.4).
                let quoted = &quoted[..quoted.len().min(if v6 { 1232 } else { 28 })];
                (way.icmp(), wire::icmp_error(way, numbers, word.unwrap_or(0), quoted))
            }
        };
        if bytes.len() > 65_515 {
            return Err(self.fail(line, format!("a packet of {} bytes", bytes.len())));
        }
        let (tos, ttl) = (packet.dscp.unwrap_or(0) << 2, packet.ttl.unwrap_or(64));
        let tos = tos | packet.ecn.unwrap_or(0);
        let (label, headers) = (packet.label.unwrap_or(0), packet.headers.as_slice());
        if way.from.is_ipv4() && (packet.label.is_some() || !headers.is_empty()) {
            return Err(unsupported(self.script, line, "flow label and headers are IPv6's"));
        }
        let bytes = wire::packet(way, protocol, wire::Fields { tos, ttl, label, headers }, &bytes);
        match packet.cut {
            Some(cut) => {
                let fragments = wire::fragments(&bytes, cut);
                for fragment in fragments {
                    self.sockets.arrive(&fragment);
                    self.sockets.take_in();
                }
            }
            None => self.sockets.arrive(&bytes),
        }
        Ok(())
    }

    /// The next packet that was sent, if one is by `until_us`.
    pub(super) fn next_sent(&mut self, until_us: i64) -> Result<Option<(u64, Vec<u8>)>, Failure> {
        self.try_pending()?;
        self.collect();
        loop {
            if let Some(sent) = self.sent.pop_front() {
                return Ok(Some(sent));
            }
            if !self.sockets.started() {
                return Ok(None);
            }
            let give_up = self.pending.as_ref().and_then(|pending| pending.gives_up_us);
            let due = self.sockets.next_deadline_us().unwrap_or(u64::MAX);
            let next = due.min(give_up.unwrap_or(u64::MAX));
            let limit = START_US + until_us.max(0) as u64;
            if next > limit {
                return Ok(None);
            }
            self.advance(next.max(self.sockets.now_us() + 1) as i64 - START_US as i64)?;
        }
    }

    pub(super) fn expect(
        &mut self,
        line: usize,
        packet: &Packet,
        span: (i64, i64),
    ) -> Result<(), Failure> {
        let tolerance = self.tolerance_us as i64;
        let expected = match &packet.body {
            Body::Tcp(segment) => text(segment),
            Body::Udp(len) => format!("udp ({len})"),
            Body::Icmp { kind, word: None, .. } => kind.name.clone(),
            Body::Icmp { kind, word: Some(word), .. } => format!("{} {word}", kind.name),
        };
        let wrong = |this: &Self, why: String, actual: Option<String>| Failure {
            expected: Some(expected.clone()),
            actual,
            ..this.fail(line, why)
        };
        let Some((at, bytes)) = self.next_sent(span.1 + tolerance)? else {
            let by = seconds(span.1 + tolerance);
            return Err(wrong(self, format!("nothing was sent until {by} s"), None));
        };
        self.packets += 1;
        let at_us = (at - START_US) as i64;
        let read = match wire::read(&bytes) {
            Ok(read) => read,
            Err(why) => return Err(wrong(self, format!("a broken packet was sent: {why}"), None)),
        };
        let mut actual = format!("{:?}", read.body);
        let differs = match (&packet.body, &read.body) {
            (Body::Tcp(wanted), ReadBody::Tcp(live, payload)) => {
                let (segment, why) = self.compare(packet, wanted, live, payload, read.way, at)?;
                actual = text(&segment);
                why
            }
            (Body::Udp(len), ReadBody::Udp(payload)) => {
                let back = read.way.back();
                let way = *self.conversation(packet.conversation).way.get_or_insert(back);
                (way != back)
                    .then(|| "a datagram of another conversation".into())
                    .or_else(|| wrong_payload(*len as usize, payload))
            }
            (Body::Icmp { kind, word, .. }, ReadBody::Icmp(number, code, actual_word)) => {
                let v6 = read.way.from.is_ipv6();
                let Some(numbers) = numbers_of(kind, v6) else {
                    return Err(unsupported(self.script, line, not_of_family(kind, v6)));
                };
                let other = word.is_some_and(|word| word != *actual_word);
                match numbers != (*number, *code) {
                    true => Some("another kind of ICMP".into()),
                    false => other.then(|| "another MTU, or another octet at fault".into()),
                }
            }
            _ => Some("a packet of another protocol".to_string()),
        };
        let actual = format!("{actual}  at {} s", seconds(at_us));
        if let Some(why) = differs {
            return Err(wrong(self, why, Some(actual)));
        }
        if packet.ecn.is_some_and(|ecn| ecn != read.ecn) {
            let why = format!("ECN field {} not {}", read.ecn, packet.ecn.unwrap_or(0));
            return Err(wrong(self, why, Some(actual)));
        }
        if let Some(why) = self.wrong_label(packet, &read) {
            return Err(wrong(self, why, Some(actual)));
        }
        let fields = [("DSCP", packet.dscp, read.dscp), ("TTL", packet.ttl, read.ttl)];
        for (name, wanted, actual_value) in fields {
            if let Some(wanted) = wanted
                && wanted != actual_value
            {
                let why = format!("{name} {actual_value} not {wanted}");
                return Err(wrong(self, why, Some(actual)));
            }
        }
        if at_us < span.0 - tolerance || at_us > span.1 + tolerance {
            let (first, last) = (seconds(span.0), seconds(span.1));
            let due = if first == last { first } else { format!("{first} to {last}") };
            let why = format!("sent at {} s, expected at {due} s", seconds(at_us));
            return Err(wrong(self, why, Some(actual)));
        }
        Ok(())
    }

    /// What is wrong with a flow label: all segments of a conversation have the same, which is not
    /// 0 (RFC 6437 section 3).
    fn wrong_label(&mut self, packet: &Packet, read: &wire::Read) -> Option<String> {
        let label = read.label?;
        if let Some(wanted) = packet.label.filter(|wanted| *wanted != label) {
            return Some(format!("flow label {label:#x} not {wanted:#x}"));
        }
        if !matches!(read.body, ReadBody::Tcp(..)) {
            return None;
        }
        let first = *self.conversation(packet.conversation).label.get_or_insert(label);
        (label == 0 || label != first)
            .then(|| format!("flow label {label:#x}, the conversation's is {first:#x}"))
    }

    /// Compares a segment; what the script has as one may be sent as several.
    pub(super) fn compare(
        &mut self,
        packet: &Packet,
        wanted: &Segment,
        live: &Segment,
        payload: &[u8],
        way: Way,
        at: u64,
    ) -> Result<(Segment, Option<String>), Failure> {
        let lenient = self.options.lenient;
        let how = Strictness {
            push: !lenient,
            windows: !lenient,
            ts_tick_us: self.ts_tick_us,
            tolerance_us: self.tolerance_us,
        };
        let taken = self.conversations.values().any(|other| other.way == Some(way.back()));
        let conversation = self.conversation(packet.conversation);
        let opens = live.flags & (SYN | ACK) == SYN;
        if conversation.way.is_none() || opens && conversation.fresh && !taken {
            conversation.way = Some(way.back());
        }
        if conversation.way != Some(way.back()) {
            let segment = conversation.in_script(live);
            return Ok((segment, Some("a segment of another conversation".into())));
        }
        let mut segment = conversation.script(live, wanted, at);
        if !conversation.payload_is_right(&segment, payload) {
            return Ok((segment, Some("payload that is not the stream's".into())));
        }
        while segment.len < wanted.len
            && let Some((_, bytes)) = self.sent.front()
            && let Ok(read) = wire::read(bytes)
            && let ReadBody::Tcp(next, more) = &read.body
            && Some(read.way.back()) == self.conversation(packet.conversation).way
        {
            let conversation = self.conversation(packet.conversation);
            let next = conversation.script(next, wanted, at);
            if next.seq != segment.seq.wrapping_add(segment.len) || next.len == 0 {
                break;
            }
            if !conversation.payload_is_right(&next, more) {
                return Ok((next, Some("payload that is not the stream's".into())));
            }
            segment.flags |= next.flags;
            segment.len += next.len;
            self.sent.pop_front();
        }
        let why = differs(wanted, &segment, how);
        Ok((segment, why))
    }

    pub(super) fn describe(&self, bytes: &[u8]) -> String {
        match wire::read(bytes) {
            Err(why) => why,
            Ok(read) => match &read.body {
                ReadBody::Tcp(live, _) => {
                    let back = Some(read.way.back());
                    match self.conversations.values().find(|other| other.way == back) {
                        Some(conversation) => text(&conversation.in_script(live)),
                        None => text(live),
                    }
                }
                other => format!("{other:?}"),
            },
        }
    }
}

/// Segments of at most `most` octets, which come at once, as a device joins them.
fn parts(segment: &Segment, most: u32) -> impl Iterator<Item = Segment> {
    (0..segment.len).step_by(most as usize).map(move |at| {
        let len = most.min(segment.len - at);
        let is_last = at + len == segment.len;
        let flags = if is_last { segment.flags } else { segment.flags & !(FIN | PSH) };
        Segment { seq: segment.seq.wrapping_add(at), len, flags, ..segment.clone() }
    })
}

/// Type and code of an error in its family.
fn numbers_of(kind: &IcmpKind, v6: bool) -> Option<(u8, u8)> {
    if v6 { kind.v6 } else { kind.v4 }
}

fn not_of_family(kind: &IcmpKind, v6: bool) -> String {
    format!("IPv{} has no `{}`", if v6 { 6 } else { 4 }, kind.name)
}

/// What is wrong with a datagram's bytes.
fn wrong_payload(len: usize, payload: &[u8]) -> Option<String> {
    if payload.len() != len {
        return Some(format!("{} bytes not {len}", payload.len()));
    }
    (payload != octets(0, len)).then(|| "bytes that are not those that were sent".into())
}
