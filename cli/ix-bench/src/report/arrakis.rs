//! The Arrakis paper's results beside ours.
use super::figures::parts_ns;
use super::papers::{Line, Rows, best_of_both, both, line, over_linux};
use super::read::Row;
use super::series::{number, word};
use super::text::short;

/// One figure divided by another, where both exist.
fn times(value: Option<f64>, base: Option<f64>) -> String {
    match (value, base) {
        (Some(value), Some(base)) if base > 0.0 => format!("{}×", short(value / base)),
        _ => String::new(),
    }
}

/// Throughput of one process.
fn alone<'a>(rows: &Rows<'a>) -> Rows<'a> {
    rows.of(|row| number(row, "processes").is_none_or(|n| n == 1.0))
}

/// Figure 4.
pub fn memcached_udp(rows: &Rows<'_>) -> Vec<Line> {
    // The paper has memcached on both systems, and then memcached changed for the native interface.
    let of = |server: &str| rows.of(|row| word(row, "server") == server);
    let native = rows.of(|row| {
        let server = if word(row, "system") == "ix" { "ix-kv" } else { "memcached" };
        word(row, "server") == server
    });
    let mut lines = vec![
        line(
            "one core, memcached by sockets, over Linux",
            "1.7× (Arrakis, fig. 4)",
            over_linux(&alone(&of("memcached")), "msgs_per_s"),
        ),
        line(
            "one core, native, over memcached on Linux",
            "1.7 × 1.19 (Arrakis, fig. 4 and section 4.3)",
            over_linux(&alone(&native), "msgs_per_s"),
        ),
    ];
    lines.extend(scaling(
        &of("memcached"),
        "memcached",
        "Arrakis 2×, Linux 1.7× (Arrakis, fig. 4)",
    ));
    lines
}

/// Figure 5.
pub fn http(rows: &Rows<'_>) -> Vec<Line> {
    // In the paper each request has a connection of its own.
    let rows = rows.of(|row| word(row, "connection") == "one a request");
    let alone = alone(&rows);
    let mut lines = vec![
        line(
            "one haproxy, a connection for each request, IX over Linux",
            "2.2×, and 2× with Linux' speculative epoll (Arrakis, fig. 5)",
            over_linux(&alone, "msgs_per_s"),
        ),
        line(
            "the same by second that its hardware thread is busy",
            "2.2× (Arrakis, fig. 5)",
            over_linux(&alone, "msgs_per_busy_s"),
        ),
    ];
    lines.extend(scaling(&rows, "haproxy", "both about 2× (Arrakis, fig. 5)"));
    lines
}

/// How much a second process adds, and which system is faster with the most processes.
fn scaling(rows: &Rows<'_>, what: &str, paper: &'static str) -> Vec<Line> {
    let of = |n: f64| rows.having("processes", n);
    let gain = |system: &str| {
        let rate = |n: f64| of(n).system(system).highest("msgs_per_s");
        Some(rate(2.0)? / rate(1.0)?)
    };
    let mut lines = Vec::new();
    if let Some(most) = rows.highest("processes").filter(|most| *most > 1.0) {
        lines.push(line(
            format!("{what}, two processes over one, each with a vNIC on IX"),
            paper,
            both(gain("ix"), gain("linux"), "×"),
        ));
        lines.push(line(
            format!(
                "{what}, {most:.0} processes, IX over Linux (here: cores shared with the load)"
            ),
            if what == "memcached" { "2× with two, more with four" } else { "2.2×" },
            over_linux(&of(most), "msgs_per_s"),
        ));
    }
    lines
}

/// Section 4.3.
pub fn kv_steps(rows: &Rows<'_>) -> Vec<Line> {
    let busy = rows.having("connections", rows.highest("connections").unwrap_or(0.0));
    let single = rows.having("connections", rows.lowest("connections").unwrap_or(0.0));
    let at = |rows: &Rows<'_>, step: &str, key: &str| {
        rows.of(|row| word(row, "server") == step).highest(key)
    };
    // Here the client limits the rate as often as the server. So the server's time for a request is
    // compared.
    let step = |step: &str| {
        let over = |base: &str| times(at(&busy, base, "total_ns"), at(&busy, step, "total_ns"));
        format!("{} of sockets, {} of native with copies", over("sockets"), over("native, copied"))
    };
    let app = |step: &str| at(&busy, step, "app_ns").map_or(String::new(), short);
    let latency = |step: &str| at(&single, step, "p50_us");
    vec![
        line(
            "native receive, requests by second of the server",
            "1.09× of sockets (Arrakis)",
            step("native receive"),
        ),
        line("the same, native transmit", "1.10× of receive (Arrakis)", step("native transmit")),
        line("the same, both", "1.19× of sockets (Arrakis)", step("native both")),
        line(
            "ns of the program itself for a request: copied, receive, transmit, both",
            "not reported",
            ["native, copied", "native receive", "native transmit", "native both"]
                .map(app)
                .join(", "),
        ),
        line(
            "median round trip of one request, sockets and native",
            "not reported",
            [("sockets", latency("sockets")), ("native", latency("native both"))]
                .iter()
                .filter_map(|(name, us)| Some(format!("{name} {} µs", short((*us)?))))
                .collect::<Vec<_>>()
                .join(", "),
        ),
    ]
}

/// What an idle tenant costs, and how soon it gets a packet.
pub fn wakeup(rows: &Rows<'_>) -> Vec<Line> {
    let at = |neighbour: &str, key: &'static str| {
        let rows = rows.of(|row| word(row, "neighbour") == neighbour);
        both(rows.system("ix").lowest(key), rows.system("linux").lowest(key), " µs")
    };
    vec![
        line(
            "from a packet to the program of an idle tenant, median",
            "not reported: Arrakis polled, without interrupts",
            at("none", "wake_p50_us"),
        ),
        line("the same, 99th percentile", "not reported", at("none", "wake_p99_us")),
        line(
            "the same, median beyond a bare wake-up of this machine",
            "not reported",
            at("none", "over_bare_us"),
        ),
        line(
            "the same with an idle loop that polls (ix run --wake-us 0), median",
            "not reported",
            at("none, polls", "wake_p50_us"),
        ),
        line(
            "the same where another program computes, median",
            "not reported",
            at("computes", "wake_p50_us"),
        ),
        line(
            "processor time of an idle tenant, a second",
            "a core: it polls (Arrakis)",
            at("none", "idle_cpu_us_per_s"),
        ),
    ]
}

/// Table 1 and figure 3.
pub fn udp_echo(rows: &Rows<'_>) -> Vec<Line> {
    // Native means a program written for IX, with any of its interfaces.
    let servers = |wanted: &[&str]| {
        rows.of(|row| word(row, "system") != "ix" || wanted.contains(&word(row, "server")))
    };
    let (native, posix) = (servers(&["udp", "packets", ""]), servers(&["sockets"]));
    let driver = rows.of(|row| word(row, "server") == "driver");
    let large = native.having("size", 1024.0);
    let rate = |rows: &Rows<'_>| rows.having("size", 1024.0).highest("msgs_per_s");
    let mut lines = vec![
        line(
            "1,024 B, datagrams a second",
            "Arrakis 930,579, Linux 273,478 (Arrakis, fig. 3)",
            best_of_both(&large, "msgs_per_s", ""),
        ),
        line("1,024 B, over Linux", "3.4× (Arrakis)", over_linux(&large, "msgs_per_s")),
        line(
            "server time a packet",
            "Arrakis 0.41 µs, Linux 3.36 µs (Arrakis, table 1)",
            both(fastest_us(&native, "ix"), fastest_us(&native, "linux"), " µs"),
        ),
    ];
    if !posix.system("ix").0.is_empty() {
        lines.extend([
            line(
                "1,024 B, by sockets, over Linux",
                "2.28× (Arrakis)",
                over_linux(&posix.having("size", 1024.0), "msgs_per_s"),
            ),
            line(
                "server time a packet, by sockets",
                "Arrakis 1.44 µs, Linux 3.36 µs (Arrakis, table 1)",
                both(fastest_us(&posix, "ix"), fastest_us(&posix, "linux"), " µs"),
            ),
        ]);
    }
    if let Some(limit) = rate(&driver) {
        lines.push(line(
            "1,024 B, inside the driver, a second; native of it",
            "992,817, 94 % (Arrakis, section 4.1)",
            format!(
                "{}, {:.0} %",
                short(limit),
                100.0 * rate(&native.system("ix")).unwrap_or(0.0) / limit.max(1.0)
            ),
        ));
    }
    lines.extend(linux_parts(rows));
    lines
}

/// The shortest time of a packet, µs.
fn fastest_us(rows: &Rows<'_>, system: &str) -> Option<f64> {
    let sums = rows.system(system).0.into_iter().map(|row| parts_ns(row).iter().sum());
    sums.filter(|ns: &f64| *ns > 0.0).reduce(f64::min).map(|ns| ns / 1000.0)
}

/// Table 1's columns of Linux.
fn linux_parts(rows: &Rows<'_>) -> Vec<Line> {
    const PARTS: [(&str, &str, &str); 6] = [
        ("stack_in_ns", "network stack in", "1.26 / 1.24 µs"),
        ("stack_out_ns", "network stack out", "1.05 / 1.42 µs"),
        ("scheduler_ns", "scheduler", "0.17 / 2.40 µs"),
        ("copy_in_ns", "copy in", "0.24 / 0.25 µs"),
        ("copy_out_ns", "copy out", "0.44 / 0.55 µs"),
        ("gate_ns", "kernel crossing, there and back", "0.20 / 0.33 µs"),
    ];
    let of = |kind: &str| {
        let server = format!("one a call, {kind}");
        let is = |row: &Row| word(row, "server") == server;
        rows.of(is).having("size", 1024.0)
    };
    let (running, idle) = (of("running"), of("idle"));
    let told = |key: &str| {
        let us = |rows: &Rows<'_>| rows.highest(key).map(|ns| short(ns / 1000.0));
        Some(format!("{} / {} µs", us(&running)?, us(&idle)?))
    };
    let part = |&(key, what, paper): &(&str, &str, &'static str)| {
        Some(line(format!("Linux, running / idle: {what}"), paper, told(key)?))
    };
    let mut lines: Vec<Line> = PARTS.iter().filter_map(part).collect();
    if let Some(total) = told("total_ns") {
        lines.push(line("Linux, running / idle: total of one at a time", "3.36 / 6.19 µs", total));
    }
    lines
}
