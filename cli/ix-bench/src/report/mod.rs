//! `ix bench report`: one HTML page of all results, with figures that need nothing but a browser.
//!
//! [`read`] reads the files, [`figures`] defines what each benchmark's figures show, [`chart`] and
//! [`bars`] draw them, [`papers`] sets them beside the papers' results, [`page`] writes the page.
mod arrakis;
mod bars;
mod chart;
mod figures;
mod model;
mod page;
mod papers;
mod read;
mod scale;
mod series;
mod text;

#[cfg(test)]
mod tests;

use crate::args::ReportArgs;
use ix_report::problem::{Problem, Result};
use std::path::{Path, PathBuf};

/// `ix bench report`.
pub fn main(args: &ReportArgs) -> Result<()> {
    write(&args.files, &args.output)
}

/// Reads the results in files and folders, writes the page, and prints what it contains.
pub fn write(files: &[PathBuf], output: &Path) -> Result<()> {
    let results = read::results(files)?;
    std::fs::write(output, page::html(&results)).map_err(|e| {
        Problem::new(format!("cannot write {}", output.display()), e)
            .mend("choose another file with -o")
    })?;
    let names: Vec<_> = results.iter().map(|result| result.bench.as_str()).collect();
    println!("{}: {}", output.display(), names.join(", "));
    let missing = figures::missing(&results);
    if !missing.is_empty() {
        println!("not measured yet: {}", missing.join(", "));
    }
    Ok(())
}
