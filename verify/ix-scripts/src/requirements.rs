//! The table of requirements (`docs/requirements.md`): what is asked, where the code says that it
//! does so, and what shows it.
//!
//! What is asked stands in `docs/requirements/*.txt` and in the claims of scripts. Where the code
//! does it is read from its comments: they name the sections of RFCs anyway.
use crate::readme::{Row, rows};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Places of the code whose comments are read.
const CODE: &[&str] = &["core/ix-tcp/src", "core/ix-wire/src", "dataplane/ix-dataplane/src"];

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
    let claims = rows(&root.join("verify/ix-scripts/scripts"))?;
    let mut wrong = Vec::new();
    let mut text = String::from(HEAD);
    let numbers = numbered(root, &cited, &claims, &mut text, &mut wrong)?;
    listed(root, &cited, &numbers, &mut text, &mut wrong)?;
    text.push_str("\n## What scripts show beyond that\n\n");
    text.push_str("| requirement | where | code | shown by |\n|---|---|---|---|\n");
    for row in claims.iter().filter(|row| number_of(&row.what).is_none()) {
        let code = code_of(&cited, &row.place);
        if code.is_empty() {
            wrong.push(format!("{}: {} has no code that names it", row.script, row.place));
        }
        let Row { place, what, script } = row;
        let _ =
            writeln!(text, "| {what} | {place} | {code} | verify/ix-scripts/scripts/{script} |");
    }
    Ok((text, wrong))
}

const HEAD: &str = "# Requirements

Made of `docs/requirements/*.txt`, of the claims of scripts (`verify/ix-scripts/scripts/README.md`) and of the sections
that comments in the code name, by `IX_WRITE=1 cargo test -p ix-scripts --test tests requirements`. The test fails
when a row has lost what shows it, or when no code names its RFC any more; a dash: no comment names that very
section. *Waived*: not done, and why; *open*: not done yet.

## RFC 9293, by number

| number | requirement | section | code | shown by |
|---|---|---|---|---|
";

/// The rows of `docs/requirements/rfc9293.txt`, and their numbers.
fn numbered(
    root: &Path,
    cited: &Citations,
    claims: &[Row],
    text: &mut String,
    wrong: &mut Vec<String>,
) -> io::Result<Vec<String>> {
    let list = fs::read_to_string(root.join("docs/requirements/rfc9293.txt"))?;
    let mut known = Vec::new();
    for Requirement { number, section, what, note } in requirements_of(&list) {
        known.push(number.to_string());
        let shows = |row: &&Row| number_of(&row.what) == Some(number);
        let scripts: Vec<String> = claims
            .iter()
            .filter(shows)
            .map(|row| format!("verify/ix-scripts/scripts/{}", row.script))
            .collect();
        let code = code_of(cited, &format!("rfc9293#{section}"));
        let noted = evidence(root, note, &[]).unwrap_or_else(|why| {
            wrong.push(format!("{number}: {why}"));
            String::new()
        });
        let shown = match (noted.is_empty(), noted.starts_with('*'), scripts.is_empty()) {
            (true, ..) => scripts.join(", "),
            (false, true, false) => format!("{noted}; {}", scripts.join(", ")),
            _ => noted,
        };
        if shown.is_empty() {
            wrong.push(format!("{number}: nothing shows it"));
        }
        if code.is_empty() && !is_excused(note) {
            wrong.push(format!("{number}: no code names section {section}"));
        }
        let _ = writeln!(text, "| {number} | {what} | {section} | {code} | {shown} |");
    }
    let unknown = claims.iter().filter_map(|row| Some((row, number_of(&row.what)?)));
    for (row, number) in unknown.filter(|(_, number)| !known.iter().any(|it| it == number)) {
        wrong.push(format!("{}: {number} is no number of RFC 9293", row.script));
    }
    Ok(known)
}

/// The rows of the other lists, one table each. `numbers`: those of RFC 9293, which has taken over
/// some.
fn listed(
    root: &Path,
    cited: &Citations,
    numbers: &[String],
    text: &mut String,
    wrong: &mut Vec<String>,
) -> io::Result<()> {
    let mut lists = files(&root.join("docs/requirements"), "txt")?;
    let rfc = |path: &Path| -> u32 {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        name.trim_start_matches("rfc").parse().unwrap_or(0)
    };
    lists.retain(|path| rfc(path) != 9293);
    lists.sort_by_key(|path| rfc(path));
    for path in lists {
        let (rfc, list) = (rfc(&path), fs::read_to_string(&path)?);
        let title = list.lines().next().unwrap_or("").trim_start_matches("# ");
        let _ = writeln!(text, "\n## {title}\n\n| | requirement | section | code | shown by |");
        text.push_str("|---|---|---|---|---|\n");
        for Requirement { number: level, section, what, note } in requirements_of(&list) {
            let code = code_of(cited, &format!("rfc{rfc}#{section}"));
            let shown = evidence(root, note, numbers).unwrap_or_else(|why| {
                wrong.push(format!("rfc{rfc} {section}, {what}: {why}"));
                String::new()
            });
            if note.is_empty() {
                wrong.push(format!("rfc{rfc} {section}, {what}: nothing shows it"));
            }
            if code.is_empty() && !is_excused(note) {
                wrong.push(format!("rfc{rfc} {section}, {what}: no code names the RFC"));
            }
            let _ = writeln!(text, "| {level} | {what} | {section} | {code} | {shown} |");
        }
    }
    Ok(())
}

/// A line of a list.
struct Requirement<'a> {
    /// Its number in RFC 9293, or how binding it is.
    number: &'a str,
    section: &'a str,
    what: &'a str,
    /// What shows it.
    note: &'a str,
}

fn requirements_of(list: &str) -> impl Iterator<Item = Requirement<'_>> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let (what, note) = line.split_once(" | ").unwrap_or((line, ""));
        // `MUST NOT` is two words.
        let end = if what.split(' ').nth(1) == Some("NOT") { 2 } else { 1 };
        let end = what.match_indices(' ').nth(end - 1).map_or(what.len(), |(at, _)| at);
        let (number, rest) = what.split_at(end);
        let (section, what) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
        Requirement { number, section, what, note }
    })
}

/// What a note says shows the requirement: `test: FILE WORDS` (which the file must have), `script:`
/// with scripts, `as:` with a number of RFC 9293, or a reason in words.
fn evidence(root: &Path, note: &str, numbers: &[String]) -> Result<String, String> {
    if let Some(test) = note.strip_prefix("test: ") {
        let (file, inside) = test.split_once(' ').unwrap_or((test, ""));
        let there = fs::read_to_string(root.join(file)).is_ok_and(|t| t.contains(inside));
        return if there { Ok(file.into()) } else { Err(format!("{file} has no `{inside}`")) };
    }
    if let Some(scripts) = note.strip_prefix("script: ") {
        let paths = scripts.split(", ").map(|script| format!("verify/ix-scripts/scripts/{script}"));
        let paths: Vec<String> = paths.collect();
        return match paths.iter().find(|path| !root.join(path).is_file()) {
            Some(missing) => Err(format!("there is no {missing}")),
            None => Ok(paths.join(", ")),
        };
    }
    if let Some(number) = note.strip_prefix("as: ") {
        let known = numbers.iter().any(|it| it == number);
        return match known {
            true => Ok(format!("{number} of RFC 9293")),
            false => Err(format!("{number} is no number of RFC 9293")),
        };
    }
    match note.is_empty() || is_excused(note) {
        true if note.is_empty() => Ok(String::new()),
        true => Ok(format!("*{note}*")),
        false => Err(format!("`{note}` is no test, script, reason or number")),
    }
}

fn is_excused(note: &str) -> bool {
    note.starts_with("open: ") || note.starts_with("waived: ") || note.starts_with("as: ")
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
    // An RFC without numbered sections is named as a whole.
    let named = of_rfc().filter(|((_, named), _)| match section {
        "-" => true,
        _ => !named.is_empty() && (within(section, named) || within(named, section)),
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
