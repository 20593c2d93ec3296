//! The page: a section for each benchmark, with all that a reader needs to judge or repeat it.
use super::read::{Results, Row};
use super::text::{escape, full, heading, of_value, short};
use super::{figures, papers, series};
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

/// The whole page.
pub fn html(results: &[Results]) -> String {
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
    page += "<nav>\n";
    for (index, result) in results.iter().enumerate() {
        let _ = writeln!(page, "<a href=\"#b{index}\">{}</a>", escape(&result.bench));
    }
    page += "</nav>\n</header>\n<main>\n";
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
