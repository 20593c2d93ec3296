//! The parts of the view.
use super::state::{Point, State};
use ix_broker::control::{Change, Shares};
use ix_proto::ThreadState;
use ix_proto::control::{Commands, Status, Thread};
use ix_report::figure::{count, micros, percent, plural};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Labels.
pub const DIM: Style = Style::new().fg(Color::DarkGray);
/// Values.
pub const ACCENT: Style = Style::new().fg(Color::Cyan);
/// Problems.
pub const WARN: Style = Style::new().fg(Color::Yellow);

/// Colours of elastic threads, repeated when there are more threads.
const OWNERS: [Color; 6] =
    [Color::Cyan, Color::Green, Color::Magenta, Color::Blue, Color::Yellow, Color::LightRed];
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A line with one part on the left and one on the right.
pub fn spread(
    mut left: Vec<Span<'static>>,
    right: Vec<Span<'static>>,
    width: usize,
) -> Line<'static> {
    let used: usize = left.iter().chain(&right).map(Span::width).sum();
    left.push(Span::raw(" ".repeat(width.saturating_sub(used).max(1))));
    left.extend(right);
    Line::from(left)
}

/// The heading of a section.
fn heading(text: &str) -> Line<'static> {
    Line::styled(format!(" {text}"), DIM.add_modifier(Modifier::BOLD))
}

/// Rate, queueing delay and its tail, each with its curve.
pub fn load(state: &State, status: &Status, width: usize) -> Vec<Line<'static>> {
    let rate = state.history.back().map_or(0.0, |point| point.rate);
    let idle: Vec<f64> = status.serving().map(|thread| thread.window.idle[0]).collect();
    let idle = idle.iter().sum::<f64>() / idle.len().max(1) as f64;
    type Row = (&'static str, String, fn(&Point) -> f64);
    let rows: [Row; 3] = [
        ("rate", format!("{} packets/s", count(rate)), |point| point.rate),
        ("delay", format!("{} µs", micros(status.queueing_delay_us())), |point| point.delay_us),
        ("p99 estimate", format!("{} µs", micros(status.tail_us())), |point| point.tail_us),
    ];
    let flows = status.total("flows");
    let s = if flows == 1 { "" } else { "s" };
    let also = [
        format!("{} flow{s}", count(flows as f64)),
        format!("idle {}", percent(idle, 0)),
        format!("batch bound {}", status.batch_bound),
    ];
    let lines = rows.into_iter().zip(also).map(|((name, value, of), also)| {
        let room = width.saturating_sub(36 + 18);
        let points: Vec<f64> = state.history.iter().map(of).collect();
        Line::from(vec![
            Span::styled(format!(" {name:<13}"), DIM),
            Span::raw(format!("{value:>18}  ")),
            Span::styled(format!("{:<room$}", curve(&points, room)), ACCENT),
            Span::styled(format!("  {also}"), DIM),
        ])
    });
    lines.collect()
}

/// The last values as a curve of `room` characters.
fn curve(points: &[f64], room: usize) -> String {
    let shown = &points[points.len().saturating_sub(room)..];
    let most = shown.iter().copied().fold(0.0, f64::max);
    let level = |value: &f64| match most {
        most if most > 0.0 && *value > 0.0 => {
            LEVELS[((value / most * 7.0).round() as usize).min(LEVELS.len() - 1)]
        }
        _ => LEVELS[0],
    };
    shown.iter().map(level).collect()
}

/// A line for each elastic thread, as far as there is room.
pub fn threads(state: &State, status: &Status, width: usize, room: usize) -> Vec<Line<'static>> {
    let change = state.change();
    let title = format!(
        "{:>3}{:>4}  {:<10}{:>6}{:>6}{:>7}{:>6}{:>6}{:>6}{:>6}{:>6}  time",
        "th", "cpu", "state", "groups", "flows", "pkt/s", "Q", "batch", "τ µs", "delay", "tail"
    );
    let mut lines = vec![Line::styled(title, DIM.add_modifier(Modifier::BOLD))];
    let hidden = status.threads.len().saturating_sub(room.saturating_sub(1));
    let shown = if hidden > 0 { room.saturating_sub(2) } else { status.threads.len() };
    for (i, thread) in status.threads.iter().enumerate().take(shown) {
        lines.push(thread_line(i, thread, status, change, width));
    }
    if hidden > 0 {
        let more = status.threads.len() - shown;
        lines.push(Line::styled(format!("  … and {}", plural(more, "thread")), DIM));
    }
    lines
}

fn thread_line(
    i: usize,
    thread: &Thread,
    status: &Status,
    change: Option<Change<'_>>,
    width: usize,
) -> Line<'static> {
    let window = &thread.window;
    let state = match thread.state {
        ThreadState::NonResponsive => "no answer",
        other => other.name(),
    };
    let rate = change.map_or(window.rate_per_s[0], |change| change.rate(i, "rx_packets"));
    let load = [
        format!("{:>7}", count(rate)),
        format!("{:>6.1}", window.queue_depth[0]),
        format!("{:>6.1}", window.batch[0]),
        format!("{:>6}", micros(window.iteration_us[0])),
        format!("{:>6}", micros(window.queueing_delay_us[0])),
        format!("{:>6}", micros(thread.tail_us(status.batch_bound))),
    ];
    let dash = |text: String| format!("{:>1$}", "·", text.chars().count());
    let load = if thread.state.serves() { load } else { load.map(dash) };
    let style = match thread.state {
        ThreadState::Active => Style::new(),
        ThreadState::NonResponsive => WARN,
        _ => DIM,
    };
    let flows = count(thread.counter("flows") as f64);
    let mut spans = vec![
        Span::styled(format!("{i:>3}"), owner(i)),
        Span::styled(format!("{:>4}", thread.cpu), DIM),
        Span::styled(format!("  {state:<10}{:>6}{flows:>6}", thread.flow_groups.len()), style),
        Span::styled(format!("{}  ", load.concat()), style),
    ];
    let used: usize = spans.iter().map(Span::width).sum();
    let shares = change.map(|change| change.shares(i)).unwrap_or_default();
    spans.extend(bar(shares, width.saturating_sub(used + 1).min(40)));
    Line::from(spans)
}

fn owner(thread: usize) -> Style {
    Style::new().fg(OWNERS[thread % OWNERS.len()])
}

/// A thread's time: dataplane, application, idle.
fn bar(shares: Shares, room: usize) -> Vec<Span<'static>> {
    let cells = |share: f64| (share * room as f64).round() as usize;
    let dataplane = cells(shares.dataplane).min(room);
    let app = cells(shares.app).min(room - dataplane);
    vec![
        Span::styled("█".repeat(dataplane), ACCENT),
        Span::styled("▒".repeat(app), ACCENT),
        Span::styled("·".repeat(room - dataplane - app), DIM),
    ]
}

/// The load of each flow group, in its owner's colour.
pub fn flow_groups(state: &State, status: &Status, width: usize) -> Vec<Line<'static>> {
    let rates = state.change().map(|change| change.group_rates()).unwrap_or_default();
    let most = rates.iter().copied().fold(0.0, f64::max);
    let mut title = vec![Span::styled(
        format!(" {}  ", plural(status.groups.len(), "flow group")),
        DIM.add_modifier(Modifier::BOLD),
    )];
    for (i, thread) in
        status.threads.iter().enumerate().filter(|(_, t)| !t.flow_groups.is_empty()).take(8)
    {
        title.push(Span::styled(format!(" {i}"), owner(i)));
        title.push(Span::styled(format!(" owns {} ", thread.flow_groups.len()), DIM));
    }
    let mut lines = vec![Line::from(title)];
    // The length of a row is a round number, so that groups can be counted.
    let fits = |columns: &usize| columns + 6 <= width;
    let columns = [128, 64, 32, 16, 8].into_iter().find(fits).unwrap_or(8);
    for (row, groups) in status.groups.chunks(columns).enumerate() {
        let first = row * columns;
        let mut spans = vec![Span::styled(format!(" {first:>3} "), DIM)];
        for (i, group) in groups.iter().enumerate() {
            let rate = rates.get(first + i).copied().unwrap_or(0.0);
            let Some(thread) = group.thread else {
                spans.push(Span::styled("↔", WARN));
                continue;
            };
            let level = if most > 0.0 { (rate / most * 7.0).ceil() as usize } else { 0 };
            let mark = if rate > 0.0 { LEVELS[level.min(LEVELS.len() - 1)] } else { '·' };
            spans.push(Span::styled(mark.to_string(), owner(thread)));
        }
        lines.push(Line::from(spans));
    }
    lines
}

/// Drops and incidents per second; if there are none now, those since the start.
pub fn incidents(state: &State, status: &Status, width: usize) -> Vec<Line<'static>> {
    let rates = state.change().map(|change| change.drop_rates()).unwrap_or_default();
    let now: Vec<String> =
        rates.iter().map(|(reason, rate)| format!("{reason} {}/s", count(*rate))).collect();
    let total = status.drops();
    let before: Vec<String> =
        total.iter().map(|(reason, n)| format!("{reason} {}", count(*n as f64))).collect();
    let (text, style) = match (now.is_empty(), before.is_empty()) {
        (false, _) => (now.join("   "), WARN),
        (_, false) => (format!("none now; since the start {}", before.join("   ")), DIM),
        _ => ("none".to_owned(), DIM),
    };
    let mut tcp: Vec<(&str, u64)> = Vec::new();
    for (name, n) in status.threads.iter().flat_map(|thread| &thread.tcp).filter(|(_, n)| **n > 0) {
        match tcp.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += n,
            None => tcp.push((name, *n)),
        }
    }
    tcp.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let tcp: Vec<String> =
        tcp.iter().map(|(name, n)| format!("{name} {}", count(*n as f64))).collect();
    let tcp = if tcp.is_empty() { "nothing unusual".to_owned() } else { tcp.join("   ") };
    let line = |name: &str, text: String, style| {
        let text: String = text.chars().take(width.saturating_sub(9)).collect();
        let name = Span::styled(format!(" {name:<7}"), DIM.add_modifier(Modifier::BOLD));
        Line::from(vec![name, Span::styled(text, style)])
    };
    vec![line("drops", text, style), line("tcp", tcp, DIM)]
}

/// Commands of the control plane, and the last migrations with their phases, newest first.
pub fn migrations(status: &Status, room: usize) -> Vec<Line<'static>> {
    let Commands { done, refused, timed_out, .. } = status.commands;
    let commands = [(done, "done"), (refused, "refused"), (timed_out, "timed out")]
        .map(|(n, name)| (n > 0).then(|| format!("{n} {name}")));
    let commands: Vec<String> = commands.into_iter().flatten().collect();
    let commands = if commands.is_empty() { "none".to_owned() } else { commands.join(", ") };
    let mut lines = Vec::new();
    if let Some(controller) = &status.controller {
        lines.push(Line::from(vec![
            Span::styled(" control   ", DIM.add_modifier(Modifier::BOLD)),
            Span::raw(crate::ctl::controller_line(controller)),
        ]));
    }
    lines.push(Line::from(vec![
        Span::styled(" commands  ", DIM.add_modifier(Modifier::BOLD)),
        Span::styled(commands, DIM),
    ]));
    if status.migrations.is_empty() {
        return lines;
    }
    lines.push(heading(&format!(
        "{:<10}{:>7}{:>7}{:>8}{:>9}{:>7}{:>7}{:>7}{:>9}  end",
        "migrations", "groups", "flows", "packets", "prepare", "wait", "rpc", "defer", "total µs"
    )));
    for record in status.migrations.iter().rev().take(room.saturating_sub(lines.len())) {
        let text = format!(
            "{:>8}{:>7}{:>8}{:>9}{:>7}{:>7}{:>7}{:>9}  ",
            record.flow_groups.len(),
            record.flows,
            record.packets,
            record.prepare_us,
            record.wait_us,
            record.rpc_us,
            record.deferred_us,
            record.total_us,
        );
        let (from, to) = (usize::from(record.from), usize::from(record.to));
        lines.push(Line::from(vec![
            Span::styled(format!("   {from:>2}"), owner(from)),
            Span::styled(" → ", DIM),
            Span::styled(format!("{to:<2}"), owner(to)),
            Span::raw(text),
            Span::styled(record.end.name(), DIM),
        ]));
    }
    lines
}

/// TCP connections, a line each.
pub fn connections(state: &State, width: usize, room: usize) -> Vec<Line<'static>> {
    let answer = match &state.connections {
        None => return vec![Line::styled(" waiting for the list", DIM)],
        Some(Err(why)) => return vec![Line::styled(format!(" {why}"), WARN)],
        Some(Ok(answer)) => answer,
    };
    let text = crate::ctl::connections::table(answer);
    let mut lines = text.lines().map(|line| line.chars().take(width.saturating_sub(1)).collect());
    let mut out: Vec<Line<'static>> = Vec::new();
    let title: Option<String> = lines.next();
    out.extend(title.map(|t| Line::styled(format!(" {t}"), DIM.add_modifier(Modifier::BOLD))));
    let rest: Vec<String> = lines.collect();
    let scroll = state.scroll.min(rest.len().saturating_sub(1));
    let remarks = crate::ctl::connections::remarks(answer);
    let shown = rest.into_iter().skip(scroll).take(room.saturating_sub(1 + remarks.len()));
    out.extend(shown.map(|line| Line::raw(format!(" {line}"))));
    out.extend(remarks.into_iter().map(|line| Line::styled(format!(" {line}"), DIM)));
    out
}

/// The help page.
pub fn help() -> Vec<Line<'static>> {
    const TEXT: [(&str, &str); 18] = [
        ("rate", "packets received per second"),
        ("delay", "from a packet's arrival to the end of its batch; the worst thread's"),
        ("p99 estimate", "the papers' ⌈Q/B⌉·τ: waiting batches, times the length of one"),
        ("", ""),
        ("state", "active: runs the cycle; parking: its flow groups are leaving;"),
        ("", "parked: sleeps, and Linux has its hardware thread;"),
        ("", "background: an ordinary Linux thread now;"),
        ("", "no answer: its application has not returned for 10 ms"),
        ("Q", "packets waiting when a cycle began"),
        ("batch", "packets of a cycle"),
        ("τ", "length of a cycle with work, with the application's part"),
        ("time", "█ dataplane  ▒ application  · idle"),
        ("flow groups", "load relative to the busiest group, in the owner's colour;"),
        ("", "· no packets, ↔ migrates to another thread"),
        ("", ""),
        ("keys", "q: quit   space: pause   tab: next dataplane   c: connections   s: sort them"),
        ("", "+ -: shorter and longer interval   ↑ ↓: scroll   esc: back"),
        ("averages", "of windows of 10 ms; the newest has half the weight"),
    ];
    let line = |(name, text): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {name:<14}"), ACCENT), Span::raw(*text)])
    };
    TEXT.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_as_high_as_their_highest_point() {
        assert_eq!(curve(&[0.0, 1.0, 2.0, 4.0], 10), "▁▃▅█");
        assert_eq!(curve(&[0.0, 1.0, 2.0, 4.0], 2), "▅█");
        assert_eq!(curve(&[0.0; 3], 5), "▁▁▁");
        assert_eq!(curve(&[], 5), "");
    }

    #[test]
    fn bars_are_full() {
        for (dataplane, app) in [(0.0, 0.0), (0.5, 0.25), (0.99, 0.99), (1.0, 0.0)] {
            let spans = bar(Shares { dataplane, app, idle: 0.0 }, 12);
            assert_eq!(spans.iter().map(Span::width).sum::<usize>(), 12);
        }
    }
}
