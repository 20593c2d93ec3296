//! `ix bench report`: one HTML page of all results, with figures that need nothing but a browser.
//!
//! [`read`] reads the files, [`figures`] defines what each benchmark's figures show, [`chart`] and
//! [`bars`] draw them, [`papers`] sets them beside the papers' results, [`summary`] beside Linux,
//! [`compare`] beside other results; [`page`] writes the page.
mod arrakis;
mod bars;
mod chart;
mod compare;
mod figures;
mod model;
mod page;
mod papers;
mod read;
mod scale;
mod series;
mod summary;
mod text;

#[cfg(test)]
mod tests;

use crate::args::ReportArgs;
use ix_report::problem::{Problem, Result};
use std::path::{Path, PathBuf};

/// `ix bench report`.
pub fn main(args: &ReportArgs) -> Result<()> {
    let against = args.against.as_ref().map(|path| -> Result<page::Against> {
        let results = read::results(std::slice::from_ref(path))?;
        Ok(page::Against { name: path.display().to_string(), results })
    });
    write_beside(&args.files, against.transpose()?.as_ref(), &args.output)
}

/// Reads the results in files and folders, writes the page, and prints what it contains.
pub fn write(files: &[PathBuf], output: &Path) -> Result<()> {
    write_beside(files, None, output)
}

/// The same with other results to compare with.
fn write_beside(files: &[PathBuf], against: Option<&page::Against>, output: &Path) -> Result<()> {
    let results = read::results(files)?;
    std::fs::write(output, page::html(&results, against)).map_err(|e| {
        Problem::new(format!("cannot write {}", output.display()), e)
            .mend("choose another file with -o")
    })?;
    let names: Vec<_> = results.iter().map(|result| result.bench.as_str()).collect();
    ix_sys::outln!("{}: {}", output.display(), names.join(", "));
    let missing = figures::missing(&results);
    if !missing.is_empty() {
        ix_sys::outln!("not measured yet: {}", missing.join(", "));
    }
    Ok(())
}
