//! `ix bench elastic`, short: a second thread comes and goes, and the background job gets the rest.
use crate::support::command::{errors, ix, may_make_links};
use ix_skip::{Need, skip};
use serde_json::Value;

#[test]
#[ignore = "needs hardware threads that nobody else uses; nightly"]
fn a_second_thread_comes_and_goes_with_the_load() {
    let test = "a_second_thread_comes_and_goes_with_the_load";
    if !may_make_links(test) {
        return;
    }
    if ix_testbed::cpu::allowed().len() < 2 {
        skip(test, Need::Cpus(2), "one CPU");
        return;
    }
    let output = ix(&["bench", "elastic", "--device", "tap", "--seconds", "16", "--json", "-"]);
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = value["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 17, "a row a second, and the whole");
    let seconds = &rows[..16];
    let threads = |row: &Value| row["threads"].as_f64().expect("threads");
    assert!(seconds.iter().all(|row| (1.0..=2.0).contains(&threads(row))), "{said}");
    assert!(threads(&seconds[0]) < 1.5, "it begins with one: {said}");
    assert!(seconds.iter().any(|row| threads(row) > 1.5), "the second is added: {said}");
    let whole = &rows[16];
    assert_eq!(whole["errors"], 0.0, "{whole}");
    assert!(whole["background_percent"].as_f64() > Some(5.0), "{whole}");
    assert!(whole["load_cpu"].as_f64().is_some_and(|cpu| cpu > 0.0 && cpu < 1.0), "{whole}");
}
