//! The files of the repository, without build outputs.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders that hold no sources.
const SKIPPED: [&str; 3] = [".git", "target", "__pycache__"];

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Paths of all files and folders below `root`, relative to it, with `/` between their parts.
///
/// # Errors
/// The first folder that cannot be read.
pub fn files(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if let Ok(relative) = path.strip_prefix(root) {
                found.insert(relative.to_string_lossy().into_owned());
            }
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            }
        }
    }
    Ok(found)
}

/// The path that `link` means in the document `from`, both relative to the root.
pub fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}
