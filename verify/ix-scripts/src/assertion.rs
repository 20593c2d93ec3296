//! Assertions of a script: `assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd`, one or more, with integers.
use crate::values::STATES;
use ix_tcp::{LossInfo, State, TcbInfo};

/// Largest threshold that Linux calls infinite.
const INFINITE_SSTHRESH: i64 = 0x7fff_ffff;

/// The value of a name of Linux's `struct tcp_info`, and a few of our own (`cwnd_bytes`, …).
pub fn value_of(name: &str, info: &TcbInfo, loss: &LossInfo) -> Option<i64> {
    let mss = i64::from(info.mss_bytes.max(1));
    let segments = |bytes: u32| i64::from(bytes) / mss;
    // Of units of 1,024 µs.
    let ms = |units: u32| (i64::from(units) << 10) / 1000;
    let (snd_shift, rcv_shift) = loss.window_shifts.unwrap_or((0, 0));
    Some(match name {
        "tcpi_state" => linux_state(info.state),
        "tcpi_ca_state" => info.recovery as i64,
        "tcpi_backoff" => loss.backoff.into(),
        "tcpi_options" => {
            i64::from(loss.timestamps)
                | i64::from(loss.sack) << 1
                | i64::from(loss.window_shifts.is_some()) << 2
                | i64::from(info.ecn) << 3
                | i64::from(info.ecn_seen) << 4
        }
        "tcpi_snd_wscale" => snd_shift.into(),
        "tcpi_rcv_wscale" => rcv_shift.into(),
        "tcpi_rto" => info.rto_us.into(),
        "tcpi_snd_mss" => mss,
        "tcpi_rcv_mss" => loss.rcv_mss_bytes.into(),
        "tcpi_unacked" => loss.unacked_segments.into(),
        "tcpi_sacked" => loss.sacked_segments.into(),
        // Linux counts as lost also what was lost and is on its way again.
        "tcpi_lost" if loss.recovering || loss.timed_out => {
            i64::from(loss.lost_segments) + i64::from(loss.retransmitted_segments)
        }
        "tcpi_lost" => loss.lost_segments.into(),
        "tcpi_reordering" => loss.reordering_segments.into(),
        "tcpi_probes" => loss.probes.into(),
        "tcpi_retrans" => loss.retransmitted_segments.into(),
        "tcpi_total_retrans" => info.retransmits.into(),
        "tcpi_rtt" => info.srtt_us.into(),
        "tcpi_rttvar" => info.rttvar_us.into(),
        "tcpi_min_rtt" => loss.min_rtt_us.into(),
        "tcpi_snd_ssthresh" if info.ssthresh_bytes >= 1 << 30 => INFINITE_SSTHRESH,
        "tcpi_snd_ssthresh" => segments(info.ssthresh_bytes),
        "tcpi_snd_cwnd" => segments(info.cwnd_bytes),
        "tcpi_snd_wnd" => info.snd_wnd_bytes.into(),
        "tcpi_rcv_wnd" => info.rcv_wnd_bytes.into(),
        // Linux has taken off the timestamps there.
        "tcpi_advmss" => i64::from(info.advmss_bytes) - if info.timestamps { 12 } else { 0 },
        "tcpi_notsent_bytes" => info.snd_unsent_bytes.into(),
        "tcpi_last_data_sent" => ms(info.last_sent_ms),
        "tcpi_last_ack_recv" => ms(info.last_heard_ms),
        "tcpi_rwnd_limited" => info.rwnd_limited_us as i64,
        "cwnd_bytes" => info.cwnd_bytes.into(),
        "ssthresh_bytes" => info.ssthresh_bytes.into(),
        "in_flight_bytes" => info.in_flight_bytes.into(),
        constant => return value_of_constant(constant),
    })
}

/// Names that stand for the same number everywhere; a script may define them itself.
fn value_of_constant(name: &str) -> Option<i64> {
    Some(match name {
        "TCP_INFINITE_SSTHRESH" => INFINITE_SSTHRESH,
        "TCP_CA_Open" => 0,
        "TCP_CA_Disorder" => 1,
        "TCP_CA_CWR" => 2,
        "TCP_CA_Recovery" => 3,
        "TCP_CA_Loss" => 4,
        "TCPI_OPT_TIMESTAMPS" => 1,
        "TCPI_OPT_SACK" => 2,
        "TCPI_OPT_WSCALE" => 4,
        "TCPI_OPT_ECN" => 8,
        "TCPI_OPT_ECN_SEEN" => 16,
        _ if name.starts_with("TCPI_") => return value_of_constant(of_freebsd(name)?),
        _ => return STATES.iter().find(|(known, _)| *known == name).map(|(_, n)| *n),
    })
}

/// FreeBSD's name of a state, as Linux has it: the numbers are Linux's on both sides.
fn of_freebsd(name: &str) -> Option<&'static str> {
    Some(match name.strip_prefix("TCPI_")? {
        "CLOSED" => "TCP_CLOSE",
        "LISTEN" => "TCP_LISTEN",
        "SYN_SENT" => "TCP_SYN_SENT",
        "SYN_RECEIVED" => "TCP_SYN_RECV",
        "ESTABLISHED" => "TCP_ESTABLISHED",
        "CLOSE_WAIT" => "TCP_CLOSE_WAIT",
        "FIN_WAIT_1" => "TCP_FIN_WAIT1",
        "CLOSING" => "TCP_CLOSING",
        "LAST_ACK" => "TCP_LAST_ACK",
        "FIN_WAIT_2" => "TCP_FIN_WAIT2",
        "TIME_WAIT" => "TCP_TIME_WAIT",
        _ => return None,
    })
}

/// The value of a name where no connection is, not even an attempt: the state.
pub fn value_without(name: &str, listens: bool) -> Option<i64> {
    match name {
        "tcpi_state" => value_of_constant(if listens { "TCP_LISTEN" } else { "TCP_CLOSE" }),
        "tcpi_options" => Some(0),
        constant => value_of_constant(constant),
    }
}

fn linux_state(state: State) -> i64 {
    let name = match state {
        State::Listen => "TCP_LISTEN",
        State::SynSent => "TCP_SYN_SENT",
        State::SynReceived => "TCP_SYN_RECV",
        State::Established => "TCP_ESTABLISHED",
        State::FinWait1 => "TCP_FIN_WAIT1",
        State::FinWait2 => "TCP_FIN_WAIT2",
        State::CloseWait => "TCP_CLOSE_WAIT",
        State::Closing => "TCP_CLOSING",
        State::LastAck => "TCP_LAST_ACK",
        State::TimeWait => "TCP_TIME_WAIT",
        State::Closed => "TCP_CLOSE",
    };
    STATES.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number)
}

/// Checks every assertion of `code`; `name` answers what names stand for.
pub fn check(code: &str, mut name: impl FnMut(&str) -> Result<i64, String>) -> Result<(), String> {
    for statement in statements(code) {
        let text = statement.trim();
        if text.is_empty() || text.starts_with('#') || text.starts_with("print") {
            continue;
        }
        if let Some((left, _)) = text.split_once('=')
            && value_of_constant(left.trim()).is_some()
        {
            continue;
        }
        let Some(text) = text.strip_prefix("assert") else {
            return Err(format!("`{text}`: only assertions are understood"));
        };
        let mut expression = Expression { text, at: 0, name: &mut name };
        if expression.any()? == 0 {
            let values = expression.values(text);
            return Err(format!("assertion `{}` does not hold{values}", text.trim()));
        }
    }
    Ok(())
}

/// Lines and what `;` separates; a line within brackets goes on.
fn statements(code: &str) -> Vec<String> {
    let (mut all, mut one, mut depth) = (Vec::new(), String::new(), 0i32);
    for c in code.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        if (c == '\n' || c == ';') && depth <= 0 {
            all.push(std::mem::take(&mut one));
        } else if c != '\\' {
            one.push(c);
        }
    }
    all.push(one);
    all
}

struct Expression<'a, F> {
    text: &'a str,
    at: usize,
    name: &'a mut F,
}

impl<F: FnMut(&str) -> Result<i64, String>> Expression<'_, F> {
    fn values(&mut self, text: &str) -> String {
        let names: Vec<String> = text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            .filter_map(|word| Some(format!("{word} = {}", (self.name)(word).ok()?)))
            .collect();
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }

    fn rest(&mut self) -> &str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn eat(&mut self, token: &str) -> bool {
        let word = token.ends_with(|c: char| c.is_alphanumeric());
        let here = self.rest().strip_prefix(token).is_some_and(|after| {
            !word || !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
        });
        self.at += if here { token.len() } else { 0 };
        here
    }

    fn any(&mut self) -> Result<i64, String> {
        let mut value = self.all()?;
        while self.eat("or") {
            let right = self.all()?;
            value = i64::from(value != 0 || right != 0);
        }
        Ok(value)
    }

    fn all(&mut self) -> Result<i64, String> {
        let mut value = self.not()?;
        while self.eat("and") {
            let right = self.not()?;
            value = i64::from(value != 0 && right != 0);
        }
        Ok(value)
    }

    fn not(&mut self) -> Result<i64, String> {
        if self.eat("not") { Ok(i64::from(self.not()? == 0)) } else { self.comparison() }
    }

    fn comparison(&mut self) -> Result<i64, String> {
        let mut left = self.sum()?;
        let (mut compared, mut holds) = (false, true);
        loop {
            let compare: fn(i64, i64) -> bool = match () {
                () if self.eat("==") => |a, b| a == b,
                () if self.eat("!=") => |a, b| a != b,
                () if self.eat("<=") => |a, b| a <= b,
                () if self.eat(">=") => |a, b| a >= b,
                () if self.eat("<") => |a, b| a < b,
                () if self.eat(">") => |a, b| a > b,
                () => return Ok(if compared { holds.into() } else { left }),
            };
            let right = self.sum()?;
            holds &= compare(left, right);
            (left, compared) = (right, true);
        }
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        loop {
            if self.eat("+") {
                value += self.product()?;
            } else if self.eat("-") {
                value -= self.product()?;
            } else if self.eat("&") {
                value &= self.product()?;
            } else if self.eat("|") {
                value |= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.atom()?;
        loop {
            if self.eat("*") {
                value *= self.atom()?;
            } else if self.eat("//") || self.eat("/") {
                value = value.checked_div(self.atom()?).ok_or("a division by zero")?;
            } else if self.eat("%") {
                value = value.checked_rem(self.atom()?).ok_or("a division by zero")?;
            } else {
                return Ok(value);
            }
        }
    }

    fn atom(&mut self) -> Result<i64, String> {
        if self.eat("-") {
            return Ok(-self.atom()?);
        }
        if self.eat("(") {
            let value = self.any()?;
            // A message behind the assertion.
            while self.eat(",") {
                self.any()?;
            }
            return if self.eat(")") { Ok(value) } else { Err(self.bad()) };
        }
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let word = rest[..end].to_string();
        if word.is_empty() {
            return Err(self.bad());
        }
        self.at += end;
        if word == "abs" {
            return Ok(self.atom()?.abs());
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let parsed = match word.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(hex, 16),
                None => word.parse(),
            };
            return parsed.map_err(|_| format!("`{word}` is no number"));
        }
        (self.name)(&word)
    }

    fn bad(&mut self) -> String {
        format!("`{}` is not understood in an assertion", self.rest().trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(code: &str) -> Result<(), String> {
        check(code, |name| if name == "x" { Ok(7) } else { Err(format!("`{name}`?")) })
    }

    #[test]
    fn evaluates_what_suites_write() {
        for good in [
            "assert x == 7",
            " assert x == 7, x ",
            "assert (x == 7, x)\nassert 6 < x <= 7; assert x",
            "assert x * 2 - 4 // 2 == 12 and not x == 8 or 0",
            "print x\nassert abs(3 - x) == 4",
        ] {
            assert_eq!(holds(good), Ok(()), "{good}");
        }
        for bad in ["assert x == 8", "assert y == 1", "x = 3", "assert x ==", "assert 1 / 0"] {
            assert!(holds(bad).is_err(), "{bad}");
        }
        assert_eq!(holds("assert x > 7"), Err("assertion `x > 7` does not hold (x = 7)".into()));
    }
}
