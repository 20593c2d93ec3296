//! Reads a script.
mod icmp;

pub use crate::scan::ParseError;
use crate::scan::{Parsed, Scan};
use crate::script::{
    Body, Call, Cut, Event, Packet, Script, Segment, TcpOption, Value, What, When,
};

/// Reads the text of a script; `file` names it in messages.
pub fn parse(file: &str, text: &str) -> Result<Script, ParseError> {
    let mut scan = Scan::new(file, text);
    let mut script = Script { file: file.to_string(), ..Script::default() };
    while scan.peek()?.is_some() {
        if script.events.is_empty() && scan.rest().starts_with("--") {
            let (line, option) = option(&mut scan)?;
            script.options.push((line, option.0, option.1));
        } else {
            script.events.push(event(&mut scan)?);
        }
    }
    Ok(script)
}

fn option(scan: &mut Scan) -> Parsed<(usize, (String, String))> {
    let line = scan.line;
    let text = scan.rest().lines().next().unwrap_or("");
    scan.skip(text.len());
    let text = text.split("//").next().unwrap_or("").trim();
    let text = text.strip_prefix("--").unwrap_or(text);
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    Ok((line, (name.trim().to_string(), value.trim().to_string())))
}

fn event(scan: &mut Scan) -> Parsed<Event> {
    let begins = scan.peek()?;
    let line = scan.line;
    if begins == Some('`') || scan.rest().starts_with("%{") {
        // Without a time: at once after the event before.
        let what = what(scan)?;
        return Ok(Event { line, when: When::After(0), what });
    }
    let (when, ends) = time(scan)?;
    let line = scan.line;
    let mut what = what(scan)?;
    match (&mut what, ends) {
        (What::Call(_, until), Some(end)) => *until = Some(end),
        (_, Some(_)) => return scan.error("only a call has an end (`...`)"),
        _ => {}
    }
    Ok(Event { line, when, what })
}

/// `1`, `+.1`, `1~2`, `+0~+.5`, `+0...0.1`, `*`.
fn time(scan: &mut Scan) -> Parsed<(When, Option<When>)> {
    if scan.eat("*")? {
        return Ok((When::Any, None));
    }
    let relative = scan.eat("+")?;
    let first = seconds(scan)?;
    if scan.eat("~")? {
        let also = scan.eat("+")?;
        let last = seconds(scan)?;
        if relative != also || last < first {
            return scan.error("a span of time goes from the earlier to the later, of one kind");
        }
        let span = if relative { When::AfterBetween } else { When::Between };
        return Ok((span(first, last), None));
    }
    let at = |relative: bool, us| if relative { When::After(us) } else { When::At(us) };
    if scan.eat("...")? {
        // The end is relative if the begin is.
        let also = scan.eat("+")?;
        let last = seconds(scan)?;
        return Ok((at(relative, first), Some(at(relative || also, last))));
    }
    Ok((at(relative, first), None))
}

/// Seconds with up to six decimals, as µs.
fn seconds(scan: &mut Scan) -> Parsed<i64> {
    scan.blank()?;
    let rest = scan.rest();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (whole, mut len) = (&rest[..end], end);
    let mut decimals = "";
    if rest[end..].starts_with('.') && !rest[end..].starts_with("..") {
        let after = &rest[end + 1..];
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        decimals = &after[..end];
        len += 1 + end;
    }
    if whole.is_empty() && decimals.is_empty() {
        return scan.unexpected("a time (seconds, `+` seconds, or `*`)");
    }
    let digits: String = decimals.chars().chain("000000".chars()).take(6).collect();
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(i64::MAX) };
    match whole.checked_mul(1_000_000).filter(|us| *us < 1 << 50) {
        Some(us) => {
            scan.skip(len);
            Ok(us + digits.parse::<i64>().unwrap_or(0))
        }
        None => scan.error("a time of more than 30 years"),
    }
}

fn what(scan: &mut Scan) -> Parsed<What> {
    match scan.peek()? {
        Some('<') => {
            scan.skip(1);
            packet(scan).map(What::Inject)
        }
        Some('>') => {
            scan.skip(1);
            packet(scan).map(What::Expect)
        }
        Some('`') => {
            scan.skip(1);
            let text = scan.until("`", "a command")?;
            Ok(What::Command(text.trim().to_string()))
        }
        Some('%') if scan.rest().starts_with("%{") => {
            scan.skip(2);
            let text = scan.until("}%", "code")?;
            Ok(What::Code(text.to_string()))
        }
        Some(c) if c.is_ascii_alphabetic() => call(scan).map(|call| What::Call(call, None)),
        _ => scan.unexpected("a packet (`<`, `>`), a call, a command or code"),
    }
}

fn packet(scan: &mut Scan) -> Parsed<Packet> {
    let body = Body::Udp(0);
    let (ecn, dscp, ttl, label, headers) = (None, None, None, None, Vec::new());
    let mut packet = Packet { conversation: 1, ecn, dscp, ttl, label, headers, cut: None, body };
    if scan.eat(":")? {
        packet.conversation = scan.fit("the number of a conversation")?;
    }
    while matches!(scan.peek()?, Some('[' | '(')) {
        let close = if scan.rest().starts_with('[') { "]" } else { ")" };
        scan.skip(1);
        let word =
            scan.word("noecn, ect0, ect1, ce, tos, class, ttl, hlim, flowlabel, header or cut")?;
        match word {
            "noecn" => packet.ecn = Some(0),
            "ect1" => packet.ecn = Some(1),
            "ect0" => packet.ecn = Some(2),
            "ce" => packet.ecn = Some(3),
            "tos" | "class" => {
                let tos: u8 = scan.fit("a type of service")?;
                (packet.dscp, packet.ecn) = (Some(tos >> 2), Some(tos & 3));
            }
            "cut" => packet.cut = Some(cut(scan)?),
            "ttl" | "hlim" => packet.ttl = Some(scan.fit("a TTL")?),
            "flowlabel" => packet.label = Some(scan.fit("a flow label")?),
            // Ours: `header 60 01020000`, an extension header by its number and its bytes.
            "header" => {
                let number = scan.fit("the number of an extension header")?;
                let rest = scan.rest();
                let text = rest.split([']', ')', ',']).next().unwrap_or("");
                let Some(bytes) = hex(text.trim()) else {
                    return scan.unexpected("hexadecimal bytes");
                };
                scan.skip(text.len());
                packet.headers.push((number, bytes));
            }
            other => return scan.error(format!("`{other}` is not understood in an IP header")),
        }
        scan.eat(",")?;
        scan.expect(close)?;
    }
    scan.blank()?;
    packet.body = match scan.word_here() {
        "icmp" | "icmpv6" => icmp::icmp(scan)?,
        "udp" => {
            scan.word("udp")?;
            scan.expect("(")?;
            let len = scan.fit("the length of a datagram")?;
            scan.expect(")")?;
            Body::Udp(len)
        }
        word @ ("ipv4" | "ipv6" | "gre" | "mpls" | "psp") => {
            return scan.error(format!("packets within {word} are not understood"));
        }
        _ => Body::Tcp(segment(scan)?),
    };
    Ok(packet)
}

/// `cut OCTETS[ reversed][ without N][ overlapping N]`
fn cut(scan: &mut Scan) -> Parsed<Cut> {
    let mut cut = Cut { octets: scan.fit("octets of each fragment")?, ..Cut::default() };
    if cut.octets == 0 || !cut.octets.is_multiple_of(8) {
        return scan.error("fragments but the last have a multiple of eight octets");
    }
    while !matches!(scan.peek()?, Some(']' | ')' | ',')) {
        match scan.word("reversed, without or overlapping")? {
            "reversed" => cut.reversed = true,
            "without" => cut.without = scan.fit("the number of a fragment")?,
            "overlapping" => cut.overlapping = scan.fit("the number of a fragment")?,
            other => return scan.error(format!("`{other}` is no way to cut a packet")),
        }
    }
    Ok(cut)
}

fn segment(scan: &mut Scan) -> Parsed<Segment> {
    let mut segment = Segment { options: Some(Vec::new()), ..Segment::default() };
    let rest = scan.rest();
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    for flag in rest[..end].chars() {
        segment.flags |= match flag {
            'F' => 1,
            'S' => 2,
            'R' => 4,
            'P' => 8,
            '.' => 16,
            'U' => 32,
            'E' => 64,
            'W' => 128,
            'A' => 256,
            '-' => 0,
            _ => return scan.unexpected("control bits (of FSRPUEWA and `.` for ACK)"),
        };
    }
    scan.skip(end);
    (segment.seq, segment.len) = range(scan)?;
    // The number is the wire's own: that of a reset which knows none is zero.
    scan.eat("!")?;
    if scan.eat_word("ack")? {
        segment.ack = Some(scan.sequence("an acknowledgement number")?);
    }
    if scan.eat_word("win")? {
        segment.window = Some(scan.fit("a window")?);
    }
    if scan.eat_word("urg")? {
        segment.urgent = Some(scan.fit("an urgent pointer")?);
    }
    scan.blank()?;
    if scan.rest().starts_with("<...>") {
        scan.skip(5);
        segment.options = None;
    } else if scan.rest().starts_with('<') && options_begin(scan.rest()) {
        scan.skip(1);
        segment.options = Some(options(scan)?);
    }
    if scan.rest().starts_with("/udp(") {
        return scan.error("TCP within UDP is not understood");
    }
    Ok(segment)
}

/// Options rather than the packet of the next event, which begins with its time.
fn options_begin(rest: &str) -> bool {
    rest[1..].trim_start().starts_with(|c: char| c.is_ascii_alphabetic() || c == '>')
}

/// `1:1001(1000)`
fn range(scan: &mut Scan) -> Parsed<(u32, u32)> {
    let first = scan.sequence("sequence numbers (`first:end(length)`)")?;
    scan.expect(":")?;
    let end = scan.sequence("the end of the sequence numbers")?;
    scan.expect("(")?;
    let len: u32 = scan.fit("a length")?;
    scan.expect(")")?;
    if end.wrapping_sub(first) != len {
        return scan
            .error(format!("{first}:{end} are {} octets, not {len}", end.wrapping_sub(first)));
    }
    Ok((first, len))
}

fn options(scan: &mut Scan) -> Parsed<Vec<TcpOption>> {
    let mut options = Vec::new();
    while !scan.eat(">")? {
        options.push(one_option(scan)?);
        scan.eat(",")?;
    }
    Ok(options)
}

fn one_option(scan: &mut Scan) -> Parsed<TcpOption> {
    Ok(match scan.word("a TCP option")? {
        "nop" => TcpOption::Nop,
        "eol" => TcpOption::End,
        "mss" => TcpOption::Mss(scan.fit("an MSS")?),
        "wscale" => TcpOption::WindowScale(scan.fit("a window scale")?),
        "sackOK" => TcpOption::SackPermitted,
        "sack" => {
            let mut blocks = Vec::new();
            while scan.peek()?.is_some_and(|c| c.is_ascii_digit()) {
                let left = scan.sequence("the left edge of a block")?;
                scan.expect(":")?;
                blocks.push((left, scan.sequence("the right edge of a block")?));
            }
            TcpOption::Sack(blocks)
        }
        "TS" => {
            scan.expect("val")?;
            let value = scan.sequence("a timestamp")?;
            scan.expect("ecr")?;
            TcpOption::Timestamp(value, scan.sequence("the echo of a timestamp")?)
        }
        "FO" | "FOEXP" | "md5" => {
            return scan.error("fast open and MD5 options are not built");
        }
        "ECN" | "accecn" => {
            return scan.error("write AccECN options as `kind 172` and their bytes");
        }
        "kind" => {
            // Ours: `kind 30 0a0b`, any option as its bytes.
            let kind = scan.fit("the kind of an option")?;
            let rest = scan.rest();
            let text = rest.split([',', '>']).next().unwrap_or("").trim();
            let Some(bytes) = hex(text) else { return scan.unexpected("hexadecimal bytes") };
            let len = rest.find([',', '>']).unwrap_or(0);
            scan.skip(len);
            TcpOption::Other(kind, bytes)
        }
        other => return scan.error(format!("`{other}` is no TCP option that is understood")),
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn call(scan: &mut Scan) -> Parsed<Call> {
    let name = scan.word("a call")?.to_string();
    scan.expect("(")?;
    let args = values(scan, ")")?;
    let (mut answer, mut errno) = (None, None);
    if scan.eat("=")? && !scan.eat("...")? {
        answer = Some(scan.number("the answer of the call")?);
        scan.blank()?;
        if answer == Some(-1) {
            let word = scan.word_here();
            if word.starts_with('E') {
                errno = Some(word.to_string());
                scan.skip(word.len());
            }
        }
        // What `strace` prints behind it.
        if scan.peek()? == Some('(') {
            scan.skip(1);
            scan.until(")", "a remark")?;
        }
    }
    Ok(Call { name, args, answer, errno })
}

fn values(scan: &mut Scan, close: &str) -> Parsed<Vec<Value>> {
    let mut values = Vec::new();
    while !scan.eat(close)? {
        values.push(value(scan)?);
        if !scan.eat(",")? {
            scan.expect(close)?;
            break;
        }
    }
    Ok(values)
}

fn value(scan: &mut Scan) -> Parsed<Value> {
    let first = simple(scan)?;
    if scan.peek()? != Some('|') {
        return Ok(first);
    }
    let mut all = vec![first];
    while scan.eat("|")? {
        all.push(simple(scan)?);
    }
    Ok(Value::Any(all))
}

fn simple(scan: &mut Scan) -> Parsed<Value> {
    match scan.peek()? {
        Some('[') => {
            scan.skip(1);
            values(scan, "]").map(Value::List)
        }
        Some('{') => {
            scan.skip(1);
            record(scan)
        }
        Some('"') => {
            scan.skip(1);
            Ok(Value::Text(scan.until("\"", "text")?.to_string()))
        }
        Some('.') => {
            scan.expect("...")?;
            Ok(Value::Dots)
        }
        Some(c) if c.is_ascii_digit() || c == '-' => scan.number("a number").map(Value::Number),
        Some(c) if c.is_ascii_alphabetic() || c == '_' => {
            let name = scan.word("a name")?.to_string();
            if scan.eat("(")? {
                let args = values(scan, ")")?;
                return Ok(Value::Apply(name, args));
            }
            Ok(Value::Name(name))
        }
        _ => scan.unexpected("an argument"),
    }
}

/// `{name=value, name(4)=value, value}`
fn record(scan: &mut Scan) -> Parsed<Value> {
    let mut fields = Vec::new();
    while !scan.eat("}")? {
        match value(scan)? {
            Value::Name(name) | Value::Apply(name, _) if scan.peek()? == Some('=') => {
                scan.skip(1);
                fields.push((name, value(scan)?));
            }
            other => fields.push((String::new(), other)),
        }
        scan.eat(",")?;
    }
    Ok(Value::Record(fields))
}
