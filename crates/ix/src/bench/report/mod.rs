//! `ix bench report`: one HTML page of all results, with figures that need nothing but a browser.
//!
//! [`read`] has the files, [`figures`] says what each benchmark's figures show, [`chart`] and
//! [`bars`] draw them, [`papers`] sets them beside the papers' results, [`page`] puts it together.
mod bars;
mod chart;
mod figures;
mod page;
mod papers;
mod read;
mod scale;
mod series;
mod text;

#[cfg(test)]
mod tests;

use crate::args::ReportArgs;
use crate::problem::{Problem, Result};

/// Reads the results and writes the page.
pub fn main(args: &ReportArgs) -> Result<()> {
    let results = read::results(&args.files)?;
    let page = page::html(&results);
    std::fs::write(&args.output, page).map_err(|e| {
        Problem::new(format!("cannot write {}", args.output.display()), e)
            .mend("choose another file by -o")
    })?;
    let names: Vec<_> = results.iter().map(|result| result.bench.as_str()).collect();
    println!("{}: {}", args.output.display(), names.join(", "));
    let missing = figures::missing(&results);
    if !missing.is_empty() {
        println!("not measured yet: {}", missing.join(", "));
    }
    Ok(())
}
