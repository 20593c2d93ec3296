//! `ix bench migration`: flow groups move back and forth between the two elastic threads of an echo
//! server under full load.
//!
//! The judgement comes from outside of the parts that migrate: the client compares every byte with
//! what it sent, on connections that never end by themselves; the TCPs at both ends count segments
//! that were duplicated, reordered or lost; devices count their drops. Times come from the
//! dataplane's records, one for each migration.
mod driver;
mod judge;
mod phases;

use super::lab::{Host, Lab};
use super::plan::{MESSAGE_BYTES, or};
use super::serve::Serve;
use crate::args::{BenchArgs, Client};
use driver::Driver;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use judge::{Damage, Ends};
use phases::Phases;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Flow groups that are moved in all; with `--quick`.
const MIGRATIONS: (u64, u64) = (100_000, 2_000);
/// Connections, and messages in flight on each: both threads always have work.
const CONNECTIONS: usize = 64;
const DEPTH: &str = "1";
/// Length of one load, s; with `--quick`. Loads are repeated as needed.
const LOAD_SECONDS: (f64, f64) = (30.0, 6.0);
/// Time of a load before the first migration and after the last one, s: to open connections, and to
/// notice losses.
const QUIET: Duration = Duration::from_millis(1_500);
/// Longest time for connecting and ending, beyond that.
const SLACK: Duration = Duration::from_secs(30);
/// Threads of the server.
const THREADS: usize = 2;

/// Results of the run.
#[derive(Default)]
struct Outcome {
    phases: Phases,
    damage: Damage,
    /// Migrations that the dataplane refused.
    refused: u64,
    msgs_per_s: Vec<f64>,
}

/// Moves flow groups under load until there are enough.
pub(super) fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let clients: &[Host] = match (lab.has_ix_client(), args.client) {
        (true, None | Some(Client::Ix)) => &[Host::IX],
        (false, Some(Client::Ix)) => {
            return Err(Problem::new("cannot run the client on IX", "a tap has one end only")
                .mend("use --device memif, or --client linux"));
        }
        _ => &[Host::BLOCKING],
    };
    let connections = or(&args.connections, &[CONNECTIONS]);
    let sizes = or(&args.size, &[MESSAGE_BYTES]);
    let mut rows = Vec::new();
    for &client in clients {
        for (&connections, &size) in
            connections.iter().flat_map(|c| sizes.iter().map(move |s| (c, s)))
        {
            let point = Point { lab, args, client, connections, size };
            let (row, lines) = point.measure()?;
            notes.extend(lines);
            rows.push(row);
        }
    }
    Ok(rows)
}

struct Point<'a> {
    lab: &'a Lab,
    args: &'a BenchArgs,
    client: Host,
    connections: usize,
    size: u64,
}

impl Point<'_> {
    fn measure(&self) -> Result<(Row, Vec<String>)> {
        let quick = self.args.quick;
        let wanted = if quick { MIGRATIONS.1 } else { MIGRATIONS.0 };
        let serve = Serve { threads: THREADS, ..Serve::echo(&[self.size.to_string()]) };
        let mut server = self.lab.start(self.lab.on_ix(), &serve)?;
        let mode = server.mode().unwrap_or_default();
        let path = server.control().ok_or_else(|| Problem::line("no control socket"))?;
        let mut outcome = Outcome::default();
        let mut driver = Driver::new(&path)?;
        let start = Instant::now();
        while driver.moved() < wanted {
            self.load(&mut server, &mut driver, wanted, &mut outcome)?;
            let (moved, seconds) = (driver.moved(), start.elapsed().as_secs());
            eprintln!("ix: {moved} of {wanted} flow groups moved in {seconds} s");
        }
        server.stop();
        outcome.refused = driver.refused();
        let lines = outcome.lines(self.lab.device_of(Host::IX), &driver);
        Ok((self.row(mode, &outcome, driver.moved()), lines))
    }

    /// Runs one load with migrations.
    fn load(
        &self,
        server: &mut super::lab::Server,
        driver: &mut Driver,
        wanted: u64,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let usual = if self.args.quick { LOAD_SECONDS.1 } else { LOAD_SECONDS.0 };
        let seconds = self.args.seconds.unwrap_or(usual).clamp(3.5, 3600.0);
        let words = [
            ("--size", self.size.to_string()),
            ("--connections", self.connections.to_string()),
            ("--depth", DEPTH.to_owned()),
            ("--warmup", "0.2".to_owned()),
            ("--seconds", seconds.to_string()),
        ];
        let words: Vec<_> = words.into_iter().flat_map(|(k, v)| [k.to_owned(), v]).collect();
        let arguments = self.lab.echo_client(self.client, server, &words);
        let begin = Instant::now();
        let load = self.lab.start_load(self.client, &arguments)?;
        let ends = Ends::new(self.lab, self.client);
        std::thread::sleep(QUIET);
        let before = ends.look(driver)?;
        let until = begin + Duration::from_secs_f64(seconds) - QUIET;
        while Instant::now() < until && driver.moved() < wanted {
            driver.migrate()?;
        }
        outcome.phases.add(driver.take_records()?);
        // Packets lost now are retransmitted by then, so they show.
        std::thread::sleep(QUIET.min(until + QUIET - Instant::now()).mul_f64(0.7));
        outcome.damage.add(&before, &ends.look(driver)?);
        let result = load.finish(server, Duration::from_secs_f64(seconds) + SLACK)?;
        let number = |key: &str| result.get(key).and_then(Value::as_u64).unwrap_or(0);
        outcome.damage.broken += number("errors");
        outcome.damage.stalled += number("stalled");
        outcome.msgs_per_s.extend(result.get("msgs_per_s").and_then(Value::as_f64));
        Ok(())
    }

    fn row(&self, mode: String, outcome: &Outcome, moved: u64) -> Row {
        let mut row = Row {
            system: "ix".to_owned(),
            domain: self.lab.on_ix().domain(),
            mode,
            device: self.lab.device_of(Host::IX).to_owned(),
            client: self.client.system().to_owned(),
            client_mode: if self.client.is_ix() { "ix" } else { "blocking" }.to_owned(),
            connections: self.connections,
            size: self.size,
            ..Row::default()
        };
        outcome.msgs_per_s.iter().for_each(|&rate| row.add([("msgs_per_s", rate)]));
        let Damage { lost, reordered, broken, stalled, retransmits, duplicates } = outcome.damage;
        row.add(
            [
                ("migrations", moved),
                ("migration_commands", outcome.phases.len() as u64),
                ("refused", outcome.refused),
                ("lost", lost),
                ("reordered", reordered),
                ("broken_connections", broken),
                ("stalled_connections", stalled),
                ("retransmits", retransmits),
                ("duplicate_segments", duplicates),
            ]
            .map(|(key, count)| (key, count as f64)),
        );
        row.add(outcome.phases.figures());
        row
    }
}

impl Outcome {
    /// The table of phases, and more remarks.
    fn lines(&self, device: &str, driver: &Driver) -> Vec<String> {
        let mut lines = vec![format!(
            "{device}: {} flow groups moved by {} commands; a pause covers all groups of a command",
            driver.moved(),
            self.phases.len(),
        )];
        lines.extend(self.phases.table());
        lines
    }
}
