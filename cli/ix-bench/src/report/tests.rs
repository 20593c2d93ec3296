//! From committed samples, hand-written with round numbers, to pages that parse.
use super::page::{self, Against};
use super::read::{Results, Row, parse};
use super::{compare, figures, papers, read, series, summary};
use ix_report::problem::Problem;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

fn html(results: &[Results]) -> String {
    page::html(results, None)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/samples")
}

fn samples() -> Vec<Results> {
    read::results(&[folder()]).expect("samples")
}

fn sample(bench: &str) -> Results {
    samples().into_iter().find(|result| result.bench == bench).expect(bench)
}

fn results(value: &Value) -> Results {
    parse(value, UNIX_EPOCH).expect("results")
}

/// Whether markup is well-formed: every element ends where it should, attributes are quoted, and
/// what looks like markup is. Returns all text.
fn well_formed(page: &str) -> Result<String, String> {
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap_or(page);
    let (mut open, mut text, mut rest) = (Vec::new(), String::new(), body);
    while let Some(start) = rest.find('<') {
        text += &rest[..start];
        rest = &rest[start + 1..];
        if let Some(end) = rest.strip_prefix('/') {
            let (name, behind) = end.split_once('>').ok_or("an end tag without its end")?;
            let begun = open.pop().unwrap_or_default();
            if begun != name {
                return Err(format!("</{name}> ends <{begun}>"));
            }
            rest = behind;
            continue;
        }
        let name_end = rest.find(|c: char| !c.is_ascii_alphanumeric()).ok_or("no end of a name")?;
        let (name, mut attributes) = rest.split_at(name_end);
        if name.is_empty() {
            return Err(format!("a stray `<` before {:.20}", rest));
        }
        loop {
            attributes = attributes.trim_start();
            if let Some(behind) = attributes.strip_prefix("/>") {
                rest = behind;
                break;
            }
            if let Some(behind) = attributes.strip_prefix('>') {
                open.push(name);
                rest = behind;
                break;
            }
            let (key, value) = attributes.split_once("=\"").ok_or("an attribute without value")?;
            if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || "-:".contains(c))
            {
                return Err(format!("`{key:.30}` is no attribute"));
            }
            let (value, behind) = value.split_once('"').ok_or("a value without end")?;
            if value.contains('<') {
                return Err(format!("`<` in {key}"));
            }
            attributes = behind;
        }
    }
    match open.pop() {
        None => Ok(text + rest),
        Some(name) => Err(format!("<{name}> does not end")),
    }
}

#[test]
fn the_check_of_markup_can_fail() {
    assert_eq!(well_formed("<p class=\"x\">a<br/>b</p>").as_deref(), Ok("ab"));
    for wrong in ["<p>", "</p>", "<p></b>", "a < b", "<p class=x></p>", "<p x=\"<\"></p>", "<p"] {
        assert!(well_formed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_page_of_all_samples_is_well_formed_and_complete() {
    let results = samples();
    assert_eq!(results.len(), 25);
    let page = html(&results);
    let text = well_formed(&page).expect("well-formed");
    for result in &results {
        for told in [&result.bench, &result.command, &result.date] {
            assert!(text.contains(told.as_str()), "{told}");
        }
        assert!(!figures::of(result).is_empty(), "{} has no figure", result.bench);
    }
    for fact in ["Example CPU 3000", "6.12.0", "bbr", "Retpolines", "no cpufreq", "0123456789"] {
        assert!(text.contains(fact), "{fact}");
    }
    assert!(!page.contains("<script") && !page.contains("src="), "it needs other files");
    assert!(!page.contains("NaN") && !page.contains("inf"), "a place that is none");
    assert!(!text.contains("Not measured:"), "everything was");
}

#[test]
fn the_summary_says_how_many_times_linux_ix_is() {
    let result = results(&json!({"bench": "echo", "rows": [
        {"system": "linux", "mode": "blocking", "client": "linux", "connections": 1, "msgs_per_s": 100, "p50_us": 80},
        {"system": "linux", "mode": "spinning", "client": "linux", "connections": 1, "msgs_per_s": 200, "p50_us": 40},
        {"system": "linux", "mode": "blocking", "client": "linux", "connections": 64, "msgs_per_s": 400},
        {"system": "ix", "mode": "copy", "device": "tap", "client": "linux", "connections": 1,
         "msgs_per_s": 600, "msgs_per_s_min": 540, "msgs_per_s_max": 630, "p50_us": 10},
        {"system": "ix", "mode": "copy", "device": "tap", "client": "linux", "connections": 64, "msgs_per_s": 2000},
        {"system": "ix", "mode": "copy", "device": "tap", "client": "linux", "connections": 99, "msgs_per_s": 2000},
        {"system": "ix", "mode": "copy", "device": "memif", "client": "ix", "connections": 64, "msgs_per_s": 200},
    ]}));
    let lines = summary::lines(&result);
    let told: Vec<_> = lines
        .iter()
        .map(|l| {
            (l.server.as_str(), l.quantity, l.times.median, l.times.low, l.times.high, l.points)
        })
        .collect();
    // The spinning Linux is the better one; 99 connections are nowhere else.
    let expected = [
        ("IX tap", "rate", 4.0, 3.0, 5.0, 2),
        ("IX tap", "median latency", 4.0, 4.0, 4.0, 1),
        ("IX memif", "rate", 0.5, 0.5, 0.5, 1),
    ];
    assert_eq!(told, expected);
    assert_eq!(lines[0].runs, 0.05, "between 10 % and nothing");
    // Where loads are offered, the most that each reached.
    let result = results(&json!({"bench": "memcached", "rows": [
        {"system": "linux", "mode": "spinning", "target_per_s": 50, "msgs_per_s": 50, "p99_us": 5},
        {"system": "linux", "mode": "spinning", "target_per_s": 90, "msgs_per_s": 70, "p99_us": 9000},
        {"system": "ix", "target_per_s": 50, "msgs_per_s": 50, "p99_us": 6},
        {"system": "ix", "target_per_s": 300, "msgs_per_s": 280, "p99_us": 400},
    ]}));
    let lines = summary::lines(&result);
    assert_eq!((lines.len(), lines[0].times.median, lines[0].points), (1, 4.0, 1));
    let page = html(&[result]);
    let text = well_formed(&page).expect("well-formed");
    assert!(text.contains("In short") && text.contains("4×"), "{text}");
    let (short, first) = (page.find("In short"), page.find("id=\"b0\""));
    assert!(short < first, "it comes first");
}

#[test]
fn two_sets_of_results_stand_side_by_side() {
    let row = |connections: u64, low: u64, median: u64, high: u64| {
        json!({"system": "ix", "device": "tap", "client": "ix", "connections": connections,
               "msgs_per_s": median, "msgs_per_s_min": low, "msgs_per_s_max": high})
    };
    let set = |rows: Vec<Value>| results(&json!({"bench": "echo", "rows": rows}));
    let before = set(vec![row(1, 90, 100, 110), row(2, 90, 100, 110), row(3, 90, 100, 110)]);
    let now = set(vec![
        row(1, 111, 150, 160),
        row(2, 105, 108, 120),
        row(3, 50, 60, 89),
        row(4, 1, 1, 1),
    ]);
    let changes = compare::changes(&before, &now);
    use compare::Verdict::{Better, Same, Worse};
    let told: Vec<_> = changes.iter().map(|c| (c.point.as_str(), c.ratio(), c.verdict)).collect();
    let expected = [
        ("connections 1", 1.5, Better),
        ("connections 2", 1.08, Same),
        ("connections 3", 0.6, Worse),
    ];
    assert_eq!(told, expected);
    // Less time is better.
    let late = |us: u64| set(vec![json!({"system": "ix", "connections": 1, "p50_us": us})]);
    assert_eq!(compare::changes(&late(50), &late(40))[0].verdict, Better);
    let against = Against { name: "last <week>".to_owned(), results: vec![before] };
    let page = page::html(&[now, sample("short")], Some(&against));
    let text = well_formed(&page).expect("well-formed");
    for word in [
        "Beside last &lt;week&gt;",
        "+8.0 %",
        "1 points better, 1 worse, 1 the same",
        "Not before: short",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let all = samples();
    let same = Against { name: "itself".to_owned(), results: samples() };
    let text = well_formed(&page::html(&all, Some(&same))).expect("well-formed");
    let same = text.matches("; 0 points better, 0 worse").count();
    assert_eq!(same, text.matches(" points better, ").count(), "{text}");
    assert!(same > 20, "{text}");
}

#[test]
fn every_series_is_in_its_figure_with_all_points() {
    for (bench, labels, points) in [
        ("echo", &["Linux, blocking", "Linux, spinning", "IX ← Linux", "IX ← IX"][..], 16),
        ("memcached", &["memcached, blocking", "Linux, spinning", "IX"], 15),
        ("load", &["Linux, spinning: achieved", "Linux, spinning: wanted"], 80),
    ] {
        let (title, svg) = &figures::of(&sample(bench))[0];
        let text = well_formed(svg).expect("well-formed");
        for label in labels {
            assert!(text.contains(label), "{title} lacks {label}: {text}");
            assert!(svg.contains(&format!("<title>{label}: ")), "{title}: no point of {label}");
        }
        assert_eq!(svg.matches("<title>").count(), points, "{title}");
    }
}

#[test]
fn the_model_is_drawn_with_every_frontier_and_run() {
    let drawn = figures::of(&sample("pareto"));
    let shown: Vec<_> =
        drawn.iter().map(|(_, svg)| well_formed(svg).expect("well-formed")).collect();
    assert!(shown[0].contains("at 1.2 GHz") && shown[0].contains("8 cores × 2"), "{}", shown[0]);
    for label in ["IX, frontier", "IX, clock only", "Linux, frontier", "Linux, clock only"] {
        assert!(shown[1].contains(label), "{label}: {}", shown[1]);
    }
    let drawn = figures::of(&sample("dynamic"));
    let titles: Vec<_> = drawn.iter().map(|(title, _)| title.as_str()).collect();
    assert_eq!(titles.len(), 6);
    assert!(titles[2] == "slope, energy: power" && titles[5].ends_with(": background job"));
    // The minute before the pattern is left out; what is above the axis is at its end.
    assert!(drawn[1].1.contains("<title>p99: 1000 at 2</title>"), "{}", drawn[1].1);
    assert_eq!(drawn[1].1.matches("<title>p99: ").count(), 3);
    assert!(drawn[0].1.contains("<title>more resources: "));
}

#[test]
fn titles_say_what_is_shown() {
    let titles = |bench: &str| -> Vec<String> {
        figures::of(&sample(bench)).into_iter().map(|(title, _)| title).collect()
    };
    assert_eq!(titles("batch").len(), 4, "two loads, rate and latency");
    assert!(titles("batch")[0].contains("load low"), "{:?}", titles("batch"));
    let short = titles("short").join("\n");
    for axis in ["by cores", "by messages of a connection", "by size"] {
        assert!(short.contains(axis), "{short}");
    }
    assert!(titles("udp-echo")[0].contains("Where the time"), "{:?}", titles("udp-echo"));
    assert_eq!(titles("bulk"), ["Mbit/s"]);
}

#[test]
fn parts_of_a_packet_are_stacked_and_a_whole_stays_whole() {
    let (_, svg) = &figures::of(&sample("udp-echo"))[0];
    let text = well_formed(svg).expect("well-formed");
    for part in ["receive", "gate", "transmit", "total", "IX, 64 B", "Linux, spinning, 64 B"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let row = |value: Value| value.as_object().cloned().expect("object");
    let parts = figures::parts_ns(&row(json!({"gate_ns": 5.0, "total_ns": 9.0})));
    assert_eq!(parts.iter().sum::<f64>(), 5.0);
    let whole = figures::parts_ns(&row(json!({"total_ns": 9.0})));
    assert_eq!(whole.iter().sum::<f64>(), 9.0);
}

#[test]
fn hostile_strings_stay_text() {
    let hostile = "</title><script>alert('x')</script>\"&\u{1}";
    let result = results(&json!({
        "bench": hostile, "command": hostile, "date": hostile, "notes": [hostile],
        "machine": {"cpu": hostile, hostile: hostile},
        "rows": [
            {"system": hostile, "mode": hostile, "client": hostile, "connections": 1,
             "msgs_per_s": 5, hostile: hostile, "settings": hostile},
            {"system": "ix", "connections": 2, "msgs_per_s": 6, "workload": hostile},
        ],
    }));
    let page = html(&[result]);
    let text = well_formed(&page).expect("well-formed");
    assert!(!page.contains("<script") && !page.contains('\u{1}'));
    assert!(text.contains("&lt;script&gt;alert(&#39;x&#39;)"), "it is still told");
}

#[test]
fn strange_rows_do_no_harm() {
    for bench in ["echo", "pingpong", "load", "udp-echo", "memcached", "unheard-of"] {
        let rows = json!([
            {}, {"system": 5}, {"system": "ix", "connections": "many", "msgs_per_s": null},
            {"system": "ix", "connections": 1e308, "size": -1, "msgs_per_s": -1e308},
            {"system": "ix", "connections": 0, "second": -3, "p50_us": 0, "msgs_per_s": 0},
            {"receive_ns": 1e300, "size": []},
        ]);
        let result = results(&json!({"bench": bench, "rows": rows}));
        let page = html(&[result]);
        well_formed(&page).expect("well-formed");
        assert!(!page.contains("NaN"), "{bench}");
    }
    let empty = results(&json!({"bench": "echo", "rows": []}));
    assert!(html(&[empty]).contains("No figure"));
}

#[test]
fn unknown_benchmarks_get_a_table_and_a_figure() {
    let rows: Vec<_> = (1..9)
        .map(|i| json!({"system": "ix", "depth": i, "msgs_per_s": 100 * i, "oddity": 7}))
        .collect();
    let result = results(&json!({"bench": "novel", "rows": rows}));
    assert_eq!(figures::of(&result).len(), 1);
    let page = html(&[result]);
    assert!(page.contains("<th>oddity</th>") && page.contains("<path class=\"line\""));
    assert!(page.contains("Not measured: <code>echo</code>"), "the known ones are missed");
}

#[test]
fn the_papers_stand_beside_our_figures() {
    let here = |bench: &str, what: &str| {
        let lines = papers::lines(&sample(bench));
        let line = lines.into_iter().find(|line| line.what.contains(what)).expect(what);
        line.here
    };
    assert_eq!(here("pingpong", "one-way"), "IX 5.03 µs, Linux 16.8 µs");
    assert_eq!(here("short", "IX over Linux"), "3.33×");
    assert_eq!(
        here("memcached", "USR, rate"),
        "IX 1.89M/s, Linux 589k/s, memcached on Linux 442k/s"
    );
    assert_eq!(here("batch", "B = 16"), "+28 %");
    let nothing = results(&json!({"bench": "pingpong", "rows": []}));
    assert!(papers::lines(&nothing).iter().all(|line| line.here.is_empty()));
    assert!(html(&[nothing]).contains("not measured"));
}

#[test]
fn labels_are_as_short_as_they_stay_clear() {
    let row = |s: &str, m: &str, d: &str, c: &str| -> Row {
        let row = json!({"system": s, "mode": m, "device": d, "client": c, "client_mode": ""});
        row.as_object().cloned().expect("object")
    };
    let rows = [
        row("ix", "copy", "afxdp", "linux"),
        row("ix", "copy", "memif", "ix"),
        row("linux", "spinning", "veth", "linux"),
    ];
    let all: Vec<_> = rows.iter().collect();
    let labels: Vec<_> = all.iter().map(|row| series::label(row, &all)).collect();
    assert_eq!(labels, ["IX afxdp", "IX memif", "Linux, spinning"]);
}

#[test]
fn wrong_files_are_one_line() {
    let told = |problem: Problem| problem.to_string();
    let missing = told(read::results(&["/no/such.json".into()]).expect_err("missing"));
    assert!(missing.contains("/no/such.json") && missing.contains("--output"), "{missing}");
    let empty = std::env::temp_dir().join(format!("ix-report-{}", std::process::id()));
    std::fs::create_dir_all(&empty).expect("a folder");
    let none = told(read::results(std::slice::from_ref(&empty)).expect_err("no results"));
    assert!(none.contains("ix bench all"), "{none}");
    for (content, word) in [("{", "EOF"), ("{}", "rows"), (r#"{"rows":[],"x":1}"#, "bench")] {
        let file = empty.join("x.json");
        std::fs::write(&file, content).expect("write");
        let problem = told(read::results(std::slice::from_ref(&empty)).expect_err(content));
        assert!(problem.contains(word) && problem.contains("x.json"), "{problem}");
    }
    std::fs::remove_dir_all(&empty).expect("clean up");
}

#[test]
fn the_date_of_a_file_serves_where_none_is_told() {
    let result = results(&json!({"bench": "echo", "rows": []}));
    assert_eq!(result.date, "1970-01-01 00:00 UTC");
}
