//! The table of requirements (`docs/requirements.md`): what is asked, where the code says that it
//! does so, and what shows it.
//!
//! What is asked stands in `docs/requirements/*.txt` and in the claims of scripts. Where the code does
//! it is read from its comments: they name the sections of RFCs anyway.
use crate::readme::{Row, rows};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Places of the code whose comments are read.
const CODE: &[&str] = &["crates/ix-tcp/src", "crates/ix-wire/src", "crates/ix-dataplane/src"];

/// For each RFC and section that comments name, the files.
type Citations = BTreeMap<(u32, String), Vec<String>>;

/// The table, and what is wrong with it.
pub fn requirements(root: &Path) -> io::Result<(String, Vec<String>)> {
    let mut cited = Citations::new();
    for folder in CODE {
        for path in files(&root.join(folder), "rs")? {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            for (rfc, section) in citations(&fs::read_to_string(&path)?) {
                let files = cited.entry((rfc, section)).or_default();
                if !files.contains(&name) {
                    files.push(name.clone());
                }
            }
        }
    }
    let claims = rows(&root.join("tests/packets"))?;
    let mut wrong = Vec::new();
    let mut text = String::from(HEAD);
    numbered(root, &cited, &claims, &mut text, &mut wrong)?;
    text.push_str("\n## What scripts show beyond that\n\n");
    text.push_str("| requirement | where | code | shown by |\n|---|---|---|---|\n");
    for row in claims.iter().filter(|row| number_of(&row.what).is_none()) {
        let code = code_of(&cited, &row.place);
        if code.is_empty() {
            wrong.push(format!("{}: {} has no code that names it", row.script, row.place));
        }
        let Row { place, what, script } = row;
        let _ = writeln!(text, "| {what} | {place} | {code} | tests/packets/{script} |");
    }
    Ok((text, wrong))
}

const HEAD: &str = "# Requirements

Made of `docs/requirements/*.txt`, of the claims of [scripts](../tests/packets/README.md) and of the sections
that comments in the code name, by `IX_WRITE=1 cargo test -p ix-packets --test requirements`. The test fails
when a row has lost what shows it, or when no code names its RFC any more; a dash: no comment names that very
section. Of RFC 9293 the list lacks MUST-50 to 53 (IP options), SHLD-13, SHLD-20 to 24 and SHLD-27; of the
other RFCs there is what scripts show, and no list yet of what they do not.

## RFC 9293, by number

| number | requirement | section | code | shown by |
|---|---|---|---|---|
";

/// The rows of `docs/requirements/rfc9293.txt`.
fn numbered(
    root: &Path,
    cited: &Citations,
    claims: &[Row],
    text: &mut String,
    wrong: &mut Vec<String>,
) -> io::Result<()> {
    let list = fs::read_to_string(root.join("docs/requirements/rfc9293.txt"))?;
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut known = Vec::new();
    for line in lines {
        let (what, note) = line.split_once(" | ").unwrap_or((line, ""));
        let mut words = what.splitn(3, ' ');
        let mut word = || words.next().unwrap_or("");
        let (number, section, what) = (word(), word(), word());
        known.push(number);
        let shows = |row: &&Row| number_of(&row.what) == Some(number);
        let scripts: Vec<String> = claims
            .iter()
            .filter(shows)
            .map(|row| format!("tests/packets/{}", row.script))
            .collect();
        let code = code_of(cited, &format!("rfc9293#{section}"));
        let mut shown = scripts.join(", ");
        if let Some(test) = note.strip_prefix("test: ") {
            let (file, inside) = test.split_once(' ').unwrap_or((test, ""));
            let there = fs::read_to_string(root.join(file)).is_ok_and(|t| t.contains(inside));
            if !there {
                wrong.push(format!("{number}: {file} has no `{inside}`"));
            }
            shown = file.to_string();
        } else if !note.is_empty() {
            let also = if shown.is_empty() { String::new() } else { format!("; {shown}") };
            shown = format!("*{note}*{also}");
        }
        if shown.is_empty() {
            wrong.push(format!("{number}: nothing shows it"));
        }
        if code.is_empty() && !note.starts_with("open: ") && !note.starts_with("waived: ") {
            wrong.push(format!("{number}: no code names section {section}"));
        }
        let _ = writeln!(text, "| {number} | {what} | {section} | {code} | {shown} |");
    }
    let unknown = claims.iter().filter_map(|row| Some((row, number_of(&row.what)?)));
    for (row, number) in unknown.filter(|(_, number)| !known.contains(number)) {
        wrong.push(format!("{}: {number} is no number of RFC 9293", row.script));
    }
    Ok(())
}

/// `MUST-4` of `MUST-4: …`
fn number_of(what: &str) -> Option<&str> {
    let number = what.split_once(':')?.0;
    let sane = ["MUST-", "SHLD-", "MAY-"].iter().any(|kind| number.starts_with(kind));
    (sane && !number.contains(' ')).then_some(number)
}

/// Files that name a section, or one that holds it or is held by it; a dash when only the RFC is
/// named somewhere, nothing when not even that.
fn code_of(cited: &Citations, place: &str) -> String {
    let (rfc, section) = place.split_once('#').unwrap_or((place, ""));
    let rfc: u32 = rfc.trim_start_matches("rfc").parse().unwrap_or(0);
    let within = |a: &str, b: &str| a == b || a.starts_with(b) && a[b.len()..].starts_with('.');
    let of_rfc = || cited.iter().filter(|((number, _), _)| *number == rfc);
    let named = of_rfc().filter(|((_, named), _)| {
        !named.is_empty() && (within(section, named) || within(named, section))
    });
    let mut files: Vec<&str> = named.flat_map(|(_, files)| files).map(String::as_str).collect();
    files.sort_unstable();
    files.dedup();
    files.truncate(3);
    match files.is_empty() && of_rfc().next().is_some() {
        true => "—".to_string(),
        false => files.join(", "),
    }
}

/// RFCs and sections that the comments of a source text name; an empty section: the RFC alone.
fn citations(text: &str) -> Vec<(u32, String)> {
    let comments: String = text
        .lines()
        .filter_map(|line| line.split_once("//"))
        .map(|(_, comment)| format!("{} ", comment.trim_start_matches(['/', '!', ' '])))
        .collect();
    let mut found = Vec::new();
    for part in comments.split("RFC ").skip(1) {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let Ok(rfc) = part[..end].parse() else { continue };
        found.push((rfc, String::new()));
        for word in part[end..].split([' ', ',', ';', '(', ')', ':']).take(12) {
            let section = word.trim_end_matches('.');
            let sane = section.starts_with(|c: char| c.is_ascii_digit())
                && section.chars().all(|c| c.is_ascii_digit() || c == '.');
            match word {
                _ if sane => found.push((rfc, section.to_string())),
                "" | "section" | "sections" | "and" | "to" => {}
                _ => break,
            }
        }
    }
    found
}

fn files(folder: &Path, end: &str) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|other| other == end) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_comments_name() {
        let text =
            "/// Says so (RFC 9293\n/// section 3.7.1, 3.8), RFC 768.\nlet x = 1; // RFC 5681 4.2";
        let found = citations(text);
        for wanted in [(9293, "3.7.1"), (9293, "3.8"), (768, ""), (5681, "4.2")] {
            assert!(found.contains(&(wanted.0, wanted.1.to_string())), "{wanted:?} in {found:?}");
        }
        assert!(!found.contains(&(768, "1".to_string())));
    }
}
