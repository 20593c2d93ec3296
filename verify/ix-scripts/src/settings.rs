//! `sysctl` lines and socket options as the stack's configuration.
use ix_tcp::{Config, CongestionControl, EcnMode};

/// What a script may set before its first packet or listening socket.
#[derive(Clone, Debug)]
pub struct Settings {
    /// TCP's parameters.
    pub tcp: Config,
    /// Bytes that a socket buffers for sending when it begins.
    pub send_buffer_bytes: usize,
    /// Those that it may grow to, as its window does.
    pub send_buffer_max_bytes: usize,
    /// MTU of the device.
    pub mtu: u16,
    /// Hop limit of what is sent.
    pub ttl: u8,
    /// While fewer octets than this are unsent a program may write; 0: however many.
    pub unsent_low: u32,
    /// Idle time before the first probe of a connection whose program asks for keepalive, seconds.
    pub keepalive_idle_s: u16,
}

impl Default for Settings {
    /// The timeouts of the RFCs and of common hosts, which scripts count on: 200 ms at least until
    /// a retransmission, acknowledgements delayed by 40 ms, Nagle's algorithm for new sockets.
    /// Those of a data centre (`ix_tcp::Config::default`) come with `sysctl ix.defaults=1`. Doubled
    /// timeouts are exact, for scripts give them to a few milliseconds, the path's MTU is not
    /// searched, and buffers stay as large as they begin.
    fn default() -> Settings {
        let tcp = Config {
            rcv_buf_max_bytes: 0,
            snd_buf_bytes: 1 << 20,
            snd_buf_max_bytes: 0,
            min_rto_us: 200_000,
            rto_jitter_percent: 0,
            path_search: false,
            delack_us: 40_000,
            delack_max_us: 0,
            delayed_ack_allowance_us: 0,
            max_ack_delay_us: 200_000,
            min_pto_us: 10_000,
            nagle: true,
            ..Config::default()
        };
        let send_buffer_bytes = 1 << 20;
        Settings {
            tcp,
            send_buffer_bytes,
            send_buffer_max_bytes: send_buffer_bytes,
            mtu: 1500,
            ttl: 64,
            unsent_low: 0,
            keepalive_idle_s: 7200,
        }
    }
}

impl Settings {
    /// What an unmodified program gets from a stack as it ships: its own timeouts, jitter, path
    /// search and buffers that grow, and Nagle's algorithm, which the POSIX library adds.
    pub fn shipped() -> Settings {
        let tcp = Config { nagle: true, ..Config::default() };
        let send_buffer_bytes = tcp.snd_buf_max_bytes.max(tcp.snd_buf_bytes) as usize;
        let send_buffer_max_bytes = send_buffer_bytes;
        Settings { tcp, send_buffer_bytes, send_buffer_max_bytes, ..Settings::default() }
    }
}

/// Settings of Linux and FreeBSD that stand for what this stack always does, or that say nothing of
/// what a script can see here.
const WITHOUT_EFFECT: &[&str] = &[
    "net.ipv4.tcp_frto",
    "net.ipv4.tcp_dsack",
    "net.ipv4.tcp_fack",
    "net.ipv4.tcp_reordering",
    "net.ipv4.tcp_early_retrans",
    "net.ipv4.tcp_recovery",
    "net.ipv4.tcp_tso_win_divisor",
    "net.ipv4.tcp_min_tso_segs",
    "net.ipv4.tcp_pacing_ss_ratio",
    "net.ipv4.tcp_pacing_ca_ratio",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_fastopen_key",
    "net.ipv4.tcp_ecn_option",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_base_mss",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_comp_sack_nr",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.somaxconn",
    "net.inet.tcp.hostcache.purgenow",
    "net.inet.tcp.blackhole",
    "net.inet.tcp.fastopen.client_enable",
    "net.inet.tcp.fastopen.server_enable",
    "net.inet.tcp.drop_synfin",
    "net.inet.tcp.rexmit_drop_options",
    "net.inet.tcp.rexmit_slop",
    "net.inet.tcp.keepinit",
    "net.inet.tcp.icmp_may_rst",
    "net.inet.tcp.syncookies",
    "net.inet.tcp.rfc6675_pipe",
    "net.inet.tcp.initcwnd_segments",
    "net.inet.tcp.udp_tunneling_port",
    "net.inet.tcp.udp_tunneling_overhead",
];

impl Settings {
    /// Carries out a command line: `sysctl` with settings, or a script of a public suite that sets
    /// a Linux host's defaults.
    pub fn command(&mut self, line: &str) -> Result<(), String> {
        // A line that ends in a backslash goes on; a comment ends with its line.
        let whole = line.replace("\\\n", " ");
        let lines = whole.lines().map(|line| line.split(" #").next().unwrap_or(line).trim());
        let lines = lines.filter(|line| !line.starts_with('#'));
        for part in lines.flat_map(|line| line.split(';')).map(str::trim) {
            if part.is_empty() {
                continue;
            }
            let words = words(part);
            let program = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
            match program {
                "sysctl" => self.sysctl(&words[1..])?,
                "defaults.sh" => self.linux_defaults(),
                "set_sysctls.py" => self.sysctl(&words[1..])?,
                "sleep" | "true" | "echo" | "tc" | "ethtool" => {}
                // Files that scripts send from hold what is to be sent.
                "rm" | "dd" => {}
                // What a suite's own tool wrote for the end: the settings as they were.
                restore if restore.starts_with("sysctl_restore_") => {}
                _ => return Err(format!("`{part}` is no command that is understood (sysctl is)")),
            }
        }
        Ok(())
    }

    fn sysctl(&mut self, words: &[String]) -> Result<(), String> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "\\"
                || word.starts_with('-')
                || word.starts_with('>')
                || word.starts_with("2>")
            {
                continue;
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_string(), value.to_string()),
                None => (word.clone(), words.next().cloned().unwrap_or_default()),
            };
            let name = name.trim_start_matches("/proc/sys/").replace('/', ".");
            self.set(&name, value.trim_matches(['"', '\'']))?;
        }
        Ok(())
    }

    /// One setting.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if WITHOUT_EFFECT.contains(&name) {
            return Ok(());
        }
        if name.starts_with("net.inet.") {
            // FreeBSD delays acknowledgements from the first segment on.
            self.tcp.quick_acks = 0;
        }
        let last = value.split_whitespace().last().unwrap_or("");
        let number = last.parse::<i64>();
        let n = || number.clone().map_err(|_| format!("{name}: `{value}` is not a number"));
        let positive = || n().and_then(|n| u32::try_from(n).map_err(|_| format!("{name}: {n}?")));
        let tcp = &mut self.tcp;
        let millis = |ms: u32| ms.saturating_mul(1000);
        match name {
            "net.ipv4.tcp_sack" | "net.inet.tcp.sack.enable" => tcp.sack = n()? != 0,
            "net.ipv4.tcp_timestamps" => tcp.timestamps = n()? != 0,
            "net.ipv4.tcp_window_scaling" => tcp.window_scaling = n()? != 0,
            "net.inet.tcp.rfc1323" => {
                tcp.timestamps = n()? != 0;
                tcp.window_scaling = n()? != 0;
            }
            "net.ipv4.tcp_rmem" | "net.inet.tcp.recvspace" => tcp.rcv_buf_bytes = positive()?,
            "kern.ipc.maxsockbuf" => tcp.window_shift_min = shift_for(positive()?),
            "net.ipv4.tcp_wmem" | "net.inet.tcp.sendspace" => {
                tcp.snd_buf_bytes = positive()?;
                self.send_buffer_max_bytes = positive()? as usize;
                // Least, first and most.
                let first = value.split_whitespace().nth(1).and_then(|n| n.parse().ok());
                self.send_buffer_bytes = first.unwrap_or(self.send_buffer_max_bytes);
            }
            "net.ipv4.tcp_notsent_lowat" => self.unsent_low = positive()?,
            "net.ipv4.tcp_syn_retries" => tcp.syn_retries = positive()? as u8,
            "net.ipv4.tcp_synack_retries" => tcp.syn_ack_retries = positive()? as u8,
            "net.ipv4.tcp_keepalive_probes" => tcp.keepalive_probes = positive()? as u8,
            "net.ipv4.tcp_keepalive_intvl" => {
                tcp.keepalive_interval_us = millis(millis(positive()?));
            }
            "net.ipv4.tcp_fin_timeout" => tcp.fin_wait2_us = millis(millis(positive()?)),
            "net.inet.tcp.keepcnt" => tcp.keepalive_probes = positive()? as u8,
            "net.inet.tcp.keepintvl" => tcp.keepalive_interval_us = millis(positive()?),
            "net.inet.tcp.keepidle" => self.keepalive_idle_s = (positive()? / 1000) as u16,
            "net.inet.tcp.delacktime" => tcp.delack_us = millis(positive()?),
            "net.inet.tcp.rexmit_initial" => tcp.initial_rto_us = millis(positive()?),
            "net.ipv4.tcp_congestion_control" => {
                let unknown = || format!("{name}: `{value}` is not built (cubic, reno, dctcp)");
                tcp.congestion = CongestionControl::named(value).ok_or_else(unknown)?;
            }
            "net.ipv4.tcp_ecn" | "net.inet.tcp.ecn.enable" => {
                let linux = name.starts_with("net.ipv4.");
                tcp.ecn = match last {
                    "0" => EcnMode::Off,
                    "1" => EcnMode::Ask,
                    "2" => EcnMode::Accept,
                    "3" if linux => EcnMode::AskAccurate,
                    "5" if linux => EcnMode::AcceptAccurate,
                    _ => return Err(format!("{name}: `{value}` is not built (0 to 3, 5)")),
                }
            }
            // Probing from the start (2) is not built: it is done once segments became smaller.
            "net.ipv4.tcp_mtu_probing" if matches!(last, "0" | "1") => {
                tcp.path_search = last == "1"
            }
            "net.ipv4.ip_default_ttl" => {
                self.ttl = positive()?.try_into().map_err(|_| format!("{name}: {value}?"))?;
            }
            "net.ipv4.tcp_slow_start_after_idle" if last == "1" => {}
            "net.ipv4.tcp_syncookies" if matches!(last, "0" | "1") => {}
            "net.inet.tcp.syncookies_only" if last == "0" => {}
            // A SYN that is sent again asks for no ECN (RFC 3168 section 6.1.1.1), and a segment
            // without an agreed timestamp is dropped (RFC 7323 section 3.2).
            "net.inet.tcp.ecn.maxretries" | "net.inet.tcp.tolerate_missing_ts" if last == "0" => {}
            "net.inet.tcp.insecure_rst" | "net.inet.tcp.insecure_syn" if last == "0" => {}
            _ => return self.own(name, value),
        }
        Ok(())
    }

    /// `ix.` and the name of a field of [`Config`].
    fn own(&mut self, name: &str, value: &str) -> Result<(), String> {
        let unknown = || format!("`{name}={value}` is no setting that this stack has");
        let field = name.strip_prefix("ix.").ok_or_else(unknown)?;
        let n: u32 = value.parse().map_err(|_| format!("{name}: `{value}` is not a number"))?;
        let tcp = &mut self.tcp;
        match field {
            "defaults" => self.tcp = Config { mss: tcp.mss, ..Config::default() },
            "mss" => tcp.mss = n as u16,
            "rcv_buf_bytes" => tcp.rcv_buf_bytes = n,
            "rcv_buf_max_bytes" => tcp.rcv_buf_max_bytes = n,
            "rcv_buffers_max" => tcp.rcv_buffers_max = n,
            "snd_buf_bytes" => tcp.snd_buf_bytes = n,
            "snd_buf_max_bytes" => tcp.snd_buf_max_bytes = n,
            "min_rto_us" => tcp.min_rto_us = n,
            "max_rto_us" => tcp.max_rto_us = n,
            "initial_rto_us" => tcp.initial_rto_us = n,
            "rto_jitter_percent" => tcp.rto_jitter_percent = n as u8,
            "min_pto_us" => tcp.min_pto_us = n,
            "delayed_ack_allowance_us" => tcp.delayed_ack_allowance_us = n,
            "max_ack_delay_us" => tcp.max_ack_delay_us = n,
            "delack_us" => tcp.delack_us = n,
            "delack_max_us" => tcp.delack_max_us = n,
            "time_wait_us" => tcp.time_wait_us = n,
            "fin_wait2_us" => tcp.fin_wait2_us = n,
            "keepalive_interval_us" => tcp.keepalive_interval_us = n,
            "keepalive_probes" => tcp.keepalive_probes = n as u8,
            "keepalive_idle_s" => tcp.keepalive_idle_s = n as u16,
            "syn_retries" => tcp.syn_retries = n as u8,
            "syn_ack_retries" => tcp.syn_ack_retries = n as u8,
            "r2_us" => tcp.r2_us = n,
            "initial_window_segments" => tcp.initial_window_segments = n,
            "max_stretch_segments" => tcp.max_stretch_segments = n as u8,
            "quick_acks" => tcp.quick_acks = n as u8,
            "path_search" => tcp.path_search = n != 0,
            "nagle" => tcp.nagle = n != 0,
            _ => return Err(unknown()),
        }
        Ok(())
    }

    /// The MTU of the device, and with it the MSS.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
        self.tcp.mss = mtu.saturating_sub(ix_tcp::HEADER_BYTES);
    }

    /// What `defaults.sh` of the public suites sets, as far as it is seen on the wire.
    fn linux_defaults(&mut self) {
        let tcp = &mut self.tcp;
        tcp.rcv_buf_bytes = 540_000;
        tcp.window_shift_min = shift_for(15 << 20);
        tcp.snd_buf_bytes = 4 << 20;
        tcp.syn_retries = 5;
        tcp.syn_ack_retries = 5;
        tcp.congestion = CongestionControl::Cubic;
        tcp.ecn = EcnMode::Off;
        self.send_buffer_bytes = 256 << 10;
        self.send_buffer_max_bytes = 4 << 20;
    }
}

/// The smallest shift with which windows of so many bytes can be offered.
fn shift_for(bytes: u32) -> u8 {
    (0..14).find(|shift| bytes <= 65_535 << shift).unwrap_or(14)
}

/// Words of a command line, quoted ones whole.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_ways_to_write_a_setting() {
        let mut settings = Settings::default();
        settings.command("sysctl -q net.ipv4.tcp_sack=0 net.ipv4.tcp_timestamps=0").unwrap();
        settings.command("sysctl -w net.ipv4.tcp_rmem=\"4096 10000 20000\"").unwrap();
        settings.command("../common/set_sysctls.py /proc/sys/net/ipv4/tcp_syn_retries=3").unwrap();
        let tcp = &settings.tcp;
        assert!(!tcp.sack && !tcp.timestamps);
        assert_eq!((tcp.rcv_buf_bytes, tcp.syn_retries), (20_000, 3));
    }

    #[test]
    fn says_what_it_does_not_understand() {
        let mut settings = Settings::default();
        for bad in ["ip link show", "sysctl net.ipv4.nothing=1", "sysctl ix.mss=big"] {
            assert!(settings.command(bad).is_err(), "{bad}");
        }
    }
}
