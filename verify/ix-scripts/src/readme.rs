//! Which requirement is shown by which script: a table from the scripts' first lines.
//!
//! A script says what it shows in lines `//= rfc9293#3.5 MUST-4: in our own words`.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A requirement and a script that shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Document and section, such as `rfc9293#3.5`.
    pub place: String,
    /// What is required.
    pub what: String,
    /// Path of the script below the folder.
    pub script: String,
}

/// Scripts below `folder`, sorted.
pub fn scripts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "pkt") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The rows of all scripts below `folder`, in the order of requirements.
pub fn rows(folder: &Path) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for path in scripts(folder)? {
        let script = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
        for line in fs::read_to_string(&path)?.lines() {
            let Some(claim) = line.strip_prefix("//= ") else { continue };
            let (place, what) = claim.split_once(' ').unwrap_or((claim, ""));
            rows.push(Row {
                place: place.to_string(),
                what: what.trim().to_string(),
                script: script.clone(),
            });
        }
    }
    rows.sort();
    Ok(rows)
}

/// The rows as a table in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from("| requirement | where | script |\n|---|---|---|\n");
    for Row { place, what, script } in rows {
        text.push_str(&format!("| {what} | {place} | [{script}]({script}) |\n"));
    }
    text
}
