//! The page: a section for each benchmark, with all that a reader needs to judge or repeat it.
use super::read::{Results, Row};
use super::text::{escape, full, heading, of_value, short};
use super::{compare, figures, papers, series, summary};
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
/// Facts about a machine: key and name.
const FACTS: [(&str, &str); 9] = [
    ("cpu", "processor"),
    ("cpus", "hardware threads"),
    ("threads_per_core", "threads a core"),
    ("virtual_machine", "virtual machine"),
    ("kernel", "kernel"),
    ("congestion_control", "congestion control"),
    ("governor", "frequency governor"),
    ("mitigations", "mitigations"),
    ("revision", "revision"),
];
/// Columns that name who was measured; the modes are written with them.
const WHO: [&str; 4] = ["system", "server", "device", "client"];
/// Columns that the page shows elsewhere: with the names, or below the table.
const ELSEWHERE: [&str; 3] = ["mode", "client_mode", "settings"];

/// Results to compare with, and their name.
pub struct Against {
    pub name: String,
    pub results: Vec<Results>,
}

/// The whole page.
pub fn html(results: &[Results], against: Option<&Against>) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>IX benchmarks</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>IX benchmarks</h1>\n<p class=\"lead\">IX and Linux side by side, on one machine. \
         Points are medians, whiskers the lowest and highest run.</p>\n",
    );
    let machine = results.first().map(|result| &result.machine);
    if let Some(machine) = machine {
        page += &facts(machine);
    }
    page += "<nav>\n<a href=\"#summary\">in short</a>\n";
    if against.is_some() {
        page += "<a href=\"#against\">compared</a>\n";
    }
    for (index, result) in results.iter().enumerate() {
        let _ = writeln!(page, "<a href=\"#b{index}\">{}</a>", escape(&result.bench));
    }
    page += "</nav>\n</header>\n<main>\n";
    page += &in_short(results);
    page += &against.map_or(String::new(), |against| side_by_side(results, against));
    for (index, result) in results.iter().enumerate() {
        page += &section(index, result, machine);
    }
    page += "</main>\n<footer>\n";
    let missing = figures::missing(results);
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|name| format!("<code>{name}</code>")).collect();
        let _ = writeln!(
            page,
            "<p>Not measured: {}. <code>ix bench all</code> measures everything.</p>",
            names.join(", ")
        );
    }
    page + "</footer>\n</body>\n</html>\n"
}

/// What comes first: how many times Linux IX is.
fn in_short(results: &[Results]) -> String {
    let mut rows = String::new();
    let mut without = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let lines = summary::lines(result);
        if lines.is_empty() {
            without.push(format!("<a href=\"#b{index}\">{}</a>", escape(&result.bench)));
        }
        for line in lines {
            let summary::Spread { median, low, high } = line.times;
            let ends = match low < high {
                true => format!("{}–{}×", short(low), short(high)),
                false => String::new(),
            };
            let _ = writeln!(
                rows,
                "<tr><td class=\"word\"><a href=\"#b{index}\">{}</a></td><td class=\"word\">{}</td>\
                 <td class=\"word\">{}</td><td class=\"word\">{}</td><td><b>{}×</b></td>\
                 <td>{}</td><td>{}</td>\
                 <td>± {:.0} %</td></tr>",
                escape(&result.bench),
                escape(&line.server),
                escape(&line.device),
                line.quantity,
                short(median),
                ends,
                line.points,
                line.runs * 100.0,
            );
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "<section id=\"summary\">\n<h2>In short</h2>\n<p class=\"lead\">How many times better than Linux \
         IX is: the median of all points, and the least and most favourable one. Each is set against the best \
         mode of Linux at the same point; where loads are offered in steps, by the highest rate reached. Below \
         1 Linux is better.</p>\n<div class=\"scroll\"><table>\n<thead><tr><th class=\"word\">benchmark</th>\
         <th class=\"word\">server</th><th class=\"word\">device</th><th class=\"word\">by</th>\
         <th>times Linux</th><th>least and most</th><th>points</th><th>spread of runs</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    );
    if !without.is_empty() {
        let _ = writeln!(
            text,
            "<p>No number beside Linux, because there is no row of Linux at the same point: {}.</p>",
            without.join(", ")
        );
    }
    text + "</section>\n"
}

/// These results beside others, benchmark by benchmark.
fn side_by_side(results: &[Results], against: &Against) -> String {
    let mut text = format!(
        "<section id=\"against\">\n<h2>Beside {}</h2>\n<p class=\"lead\">Before is {}. A point is better or \
         worse if all of its runs are: where the runs overlap it is the same.</p>\n",
        escape(&against.name),
        escape(&against.name),
    );
    let machines = |results: &[Results]| results.first().map(|result| result.machine.clone());
    let differs = |key: &&str| {
        let of = |results: &[Results]| machines(results).and_then(|m| m.get(*key).cloned());
        of(results) != of(&against.results)
    };
    let different: Vec<&str> =
        FACTS.iter().filter(|(key, _)| differs(key)).map(|(_, name)| *name).collect();
    if !different.is_empty() {
        let _ = writeln!(text, "<p>Not the same in both: {}.</p>", different.join(", "));
    }
    for now in results {
        let Some(before) = against.results.iter().find(|before| before.bench == now.bench) else {
            let _ = writeln!(text, "<p>Not before: {}.</p>", escape(&now.bench));
            continue;
        };
        text += &beside(now, &compare::changes(before, now));
    }
    text + "</section>\n"
}

/// The changes of a benchmark.
fn beside(now: &Results, changes: &[compare::Change]) -> String {
    use compare::Verdict::{Better, Same, Worse};
    let count = |verdict| changes.iter().filter(|change| change.verdict == verdict).count();
    let Some(overall) = compare::overall(changes) else {
        return format!("<p>{}: no point is in both.</p>\n", escape(&now.bench));
    };
    let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
    let mut rows = String::new();
    for change in changes {
        let cell = |spread: summary::Spread| {
            let summary::Spread { median, low, high } = spread;
            let ends = if low < high {
                format!("<small>{}–{}</small>", short(low), short(high))
            } else {
                String::new()
            };
            format!("<td>{}{ends}</td>", full(median))
        };
        let verdict = match change.verdict {
            Same => "same",
            Better => "<b>better</b>",
            Worse => "<b>worse</b>",
        };
        let _ = writeln!(
            rows,
            "<tr><td class=\"word\">{}</td><td class=\"word\">{}</td><td class=\"word\">{}</td>{}{}\
             <td>{}</td><td class=\"word\">{verdict}</td></tr>",
            escape(&change.server),
            escape(&change.point),
            escape(&heading(change.outcome)),
            cell(change.before),
            cell(change.now),
            percent(change.ratio()),
        );
    }
    format!(
        "<details>\n<summary><b>{}</b>: {} in the middle ({} to {}); {} points better, {} worse, {} the \
         same</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th class=\"word\">server</th>\
         <th class=\"word\">point</th><th class=\"word\">by</th><th>before</th><th>now</th><th>change</th>\
         <th class=\"word\">all runs</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n</details>\n",
        escape(&now.bench),
        percent(overall.median),
        percent(overall.low),
        percent(overall.high),
        count(Better),
        count(Worse),
        count(Same),
    )
}

fn section(index: usize, result: &Results, first: Option<&Row>) -> String {
    let mut text = format!("<section id=\"b{index}\">\n<h2>{}</h2>\n", escape(&result.bench));
    let _ = writeln!(text, "<p class=\"lead\">{}</p>", escape(figures::what(&result.bench)));
    let drawn = figures::of(result);
    if drawn.is_empty() {
        text += "<p>No figure: no row has anything that could be drawn.</p>\n";
    }
    for (title, svg) in drawn {
        let title = escape(&title);
        let _ = writeln!(text, "<figure>\n<figcaption>{title}</figcaption>\n{svg}\n</figure>");
    }
    text += &beside_papers(result);
    let _ = write!(
        text,
        "<details open=\"open\">\n<summary>All {} points</summary>\n<div class=\"scroll\">{}</div>\n\
         </details>\n<dl>\n<dt>command</dt><dd><code>{}</code></dd>\n<dt>date</dt><dd>{}</dd>\n\
         </dl>\n",
        result.rows.len(),
        table(&result.rows),
        escape(&result.command),
        escape(&result.date),
    );
    if first.is_some_and(|first| *first != result.machine) {
        text += "<h3>Measured on another machine or system</h3>\n";
        text += &facts(&result.machine);
    }
    let notes: Vec<_> = settings(&result.rows).into_iter().chain(result.notes.clone()).collect();
    if !notes.is_empty() {
        let notes: String = notes.iter().map(|n| format!("<li>{}</li>\n", escape(n))).collect();
        let _ = write!(text, "<ul>\n{notes}</ul>\n");
    }
    text + "</section>\n"
}

/// How the systems were set up, a line each.
fn settings(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows {
        let who = series::with_mode(series::word(row, "system"), series::word(row, "mode"));
        let line = match row.get("settings").map(of_value) {
            Some(settings) if !settings.is_empty() => format!("{who}: {settings}"),
            _ => continue,
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// What a machine reports of itself; unknown facts keep their keys as names.
fn facts(machine: &Row) -> String {
    let mut text = String::from("<dl>\n");
    let mut fact = |name: &str, value: &Value| {
        let value = match value {
            Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
            // A year or a revision is no quantity.
            Value::Number(number) => number.to_string(),
            other => of_value(other),
        };
        if !value.is_empty() {
            let _ = writeln!(text, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
        }
    };
    for (key, name) in FACTS {
        if let Some(value) = machine.get(key) {
            fact(name, value);
        }
    }
    let others = machine.iter().filter(|(key, _)| FACTS.iter().all(|(known, _)| known != key));
    others.for_each(|(key, value)| fact(&heading(key), value));
    text + "</dl>\n"
}

fn beside_papers(result: &Results) -> String {
    let lines = papers::lines(result);
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<div class=\"scroll\"><table class=\"papers\">\n<thead><tr><th class=\"word\">The papers</th>\
         <th class=\"word\">paper</th><th class=\"word\">here</th></tr></thead>\n<tbody>\n",
    );
    for line in lines {
        let here = if line.here.is_empty() { "not measured" } else { &line.here };
        let cells = [&line.what, line.paper, here];
        let cells = cells.map(|c| format!("<td class=\"word wrap\">{}</td>", escape(c))).concat();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</tbody>\n</table></div>\n"
}

/// All rows; the extremes stand under their medians.
fn table(rows: &[Row]) -> String {
    let columns = columns(rows);
    let class = |key: &str| {
        let words = rows.iter().any(|row| row.get(key).is_some_and(Value::is_string));
        if words { " class=\"word\"" } else { "" }
    };
    let heads: String =
        columns.iter().map(|c| format!("<th{}>{}</th>", class(c), escape(&heading(c)))).collect();
    let mut text = format!("<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n");
    for row in rows {
        let cells: String =
            columns.iter().map(|c| format!("<td{}>{}</td>", class(c), cell(row, c))).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</tbody>\n</table>"
}

/// Who was measured, then what makes a point, then outcomes. Empty columns are left out.
fn columns(rows: &[Row]) -> Vec<&str> {
    let mut columns: Vec<&str> = WHO.into_iter().chain(series::POINT_KEYS).collect();
    for key in rows.iter().flat_map(Row::keys) {
        let median = key.strip_suffix("_min").or_else(|| key.strip_suffix("_max"));
        let is_extreme = median.is_some_and(|median| rows.iter().any(|r| r.contains_key(median)));
        if !is_extreme && !ELSEWHERE.contains(&key.as_str()) && !columns.contains(&key.as_str()) {
            columns.push(key);
        }
    }
    let is_told = |key: &str| {
        let mut values = rows.iter().filter_map(|row| row.get(key));
        values.any(|value| !value.is_null() && value.as_str() != Some(""))
    };
    columns.retain(|key| is_told(key));
    columns
}

fn cell(row: &Row, key: &str) -> String {
    let Some(value) = row.get(key) else { return String::new() };
    let mode = match key {
        "system" => Some("mode"),
        "client" => Some("client_mode"),
        _ => None,
    };
    if let Some(mode) = mode {
        return escape(&series::with_mode(series::word(row, key), series::word(row, mode)));
    }
    let mut text = match series::number(row, key) {
        // Sizes and counts are exact; outcomes are not.
        Some(number) if series::POINT_KEYS.contains(&key) && number.fract() == 0.0 => full(number),
        _ => escape(&of_value(value)),
    };
    if let Some(median) = series::number(row, key) {
        let (low, high) = series::range(row, key, median);
        if low < high {
            let _ = write!(text, "<small>{}–{}</small>", short(low), short(high));
        }
    }
    text
}
