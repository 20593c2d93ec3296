//! Settings that only an address of IX's own has. At the address of Linux they would do nothing:
//! what they are about is Linux's there, so they are refused in the words in which they were typed.
use ix_report::problem::{Problem, Result};

/// What such a setting is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The default gateway.
    Gateway,
    /// Where addresses of IPv6 come from.
    Addr6,
    /// Whether another host has the address.
    Check,
    /// Ports of connections that the program opens.
    Ports,
    /// What may be received and sent.
    Filters,
}

/// A setting that was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfOwnAddress {
    /// What it is about.
    pub subject: Subject,
    /// Its words.
    pub typed: String,
}

/// Refuses the first of these settings where the address is that of Linux on an interface.
pub fn refuse_shared(all: &[OfOwnAddress], interface: &str) -> Result<()> {
    let Some(OfOwnAddress { subject, typed }) = all.first() else { return Ok(()) };
    let shares = format!("IX shares the address of Linux on {interface}");
    let (why, leave) = match subject {
        Subject::Gateway => (
            format!("{shares}, where the routes of Linux hold for both"),
            "leave it out (`ip route` changes Linux's routes)",
        ),
        Subject::Addr6 => (format!("{shares}, and its addresses of IPv6 too"), "leave it out"),
        Subject::Check => (format!("{shares}, which Linux has checked"), "leave it out"),
        Subject::Filters => (format!("{shares}, whose packets Linux has too"), "leave it out"),
        Subject::Ports => {
            (format!("{shares}, which gives IX ports as connections need them"), "leave it out")
        }
    };
    let mend = format!("{leave}, or give IX an address of its own with --addr");
    Err(Problem::new(format!("cannot use {typed}"), why).mend(mend))
}

#[cfg(test)]
mod tests {
    use super::super::file::File;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// What the file's keys are at the address of Linux: refused there, or of use.
    const REFUSED: [(&str, &str); 6] = [
        ("gateway_addr", "'10.0.0.1'"),
        ("address_check", "'off'"),
        ("addr6", "'off'"),
        ("addr6_identifier", "'eui64'"),
        ("use_tempaddr", "2"),
        ("local_ports", "'10000-20000'"),
    ];
    /// Refused with words of its own (`routes`).
    const REFUSED_ELSEWHERE: &str = "route";
    /// `host_addr` makes the address IX's own, and `loader_path` says that it does nothing.
    const OF_USE: [&str; 21] = [
        "host_addr",
        "vnic",
        "devices",
        "cpu",
        "batch",
        "arp",
        "ttl",
        "backlog",
        "flows_max",
        "orphans_max",
        "timers_max",
        "rx_frames",
        "tx_frames",
        "arena_mb",
        "idle_spin_us",
        "nonresponsive_us",
        "mark_queue",
        "drop_queue",
        "loader_path",
        "tcp",
        "control",
    ];

    #[test]
    fn each_key_is_of_use_at_linuxs_address_or_refused_there() {
        let why = File::read("nosuch = 1").expect_err("no such key").why;
        let (_, names) = why.split_once("there are ").expect("their names");
        let mut keys: Vec<&str> = names.split(", ").map(|name| name.trim_matches('`')).collect();
        keys.sort_unstable();
        let refused = REFUSED.map(|(key, _)| key);
        let mut known = [&refused[..], &[REFUSED_ELSEWHERE], &OF_USE].concat();
        known.sort_unstable();
        assert_eq!(keys, known, "a new key: what is it at the address of Linux?");
        for (key, value) in REFUSED {
            let text = format!("# ours\n{key} = {value} # so\n");
            let file = File::read(&text).expect("it can be used");
            let all = file.of_own_address(&text, "ix.toml");
            let [one] = &all[..] else { panic!("{all:?}") };
            assert_eq!(one.typed, format!("`{key} = {value} # so` (ix.toml, line 2)"));
            let said = super::refuse_shared(&all, "eth0").expect_err("refused").to_string();
            assert!(said.contains("of Linux on eth0") && said.contains("--addr"), "{said}");
        }
        for part in ["[vnic]", "[vnic.queue.0]"] {
            let text = format!("{part}\nrx_rate = '1Mbit'\nfilters = 'rx tcp service 10.0.0.2:80'");
            let file = File::read(&text).expect("it can be used");
            let all = file.of_own_address(&text, "ix.toml");
            let said = super::refuse_shared(&all, "eth0").expect_err("refused").to_string();
            assert!(said.contains("`filters = 'rx tcp") && said.contains("line 3)"), "{said}");
        }
        let text = "devices = 'eth0'\nttl = 9\n[vnic]\nrx_rate = '1Mbit'\n";
        let file = File::read(text).expect("it can be used");
        super::refuse_shared(&file.of_own_address(text, "ix.toml"), "eth0").expect("of use");
    }

    #[test]
    fn each_flag_is_of_use_at_linuxs_address_or_refused_there() {
        const REFUSED: [&str; 3] = ["gateway", "addr6", "take-address"];
        const OF_USE: [&str; 27] = [
            "addr",
            "batch",
            "config",
            "congestion",
            "control",
            "cpus",
            "domain",
            "ecn",
            "entry",
            "help",
            "ignore-firewall",
            "json",
            "log-format",
            "memory-max",
            "metrics",
            "nic",
            "pids-max",
            "policy",
            "posix",
            "program-cpus",
            "require-ix",
            "slo-us",
            "stats",
            "syscalls",
            "user",
            "wake-us",
            "without",
        ];
        let mut ix = Cli::command();
        ix.build();
        let run = ix.find_subcommand("run").expect("ix run");
        let mut flags: Vec<&str> = run.get_arguments().filter_map(|arg| arg.get_long()).collect();
        flags.sort_unstable();
        let mut known = [&REFUSED[..], &OF_USE].concat();
        known.sort_unstable();
        assert_eq!(flags, known, "a new flag: what is it at the address of Linux?");
    }
}
