//! The files of a tree, in memory.

use crate::Package;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Folders at the top, in the order in which they may use each other.
pub const ROOMS: [&str; 8] =
    ["sys", "core", "dataplane", "host", "app", "programs", "verify", "cli"];

/// Extensions of the files that the rules read.
const ENDS: [&str; 4] = [".rs", ".toml", ".md", ".sh"];

/// Folders at the top that are no rooms.
const OTHERS: [&str; 3] = [".ci", "docs", "packaging"];

/// Folders of which the rules read all files.
const SCRIPTS: [&str; 2] = [".ci/", "packaging/"];

/// Texts by path below the root, with `/` between names.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
    /// Path of the tree on this machine. No file may contain it.
    place: Option<String>,
}

impl Tree {
    /// Root of the tree that this crate is in.
    pub fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Reads a tree from the disk: the rooms, `docs`, `packaging`, `.ci` and the files at the root.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        let place = root.canonicalize()?;
        for entry in std::fs::read_dir(&place)? {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let name = name.to_string_lossy().into_owned();
            let wanted = ROOMS.contains(&name.as_str()) || OTHERS.contains(&name.as_str());
            if path.is_file() || wanted {
                tree.take(&path, &name)?;
            }
        }
        tree.place = place.to_str().map(str::to_owned);
        Ok(tree)
    }

    /// Adds a file, or a folder with all its files.
    fn take(&mut self, path: &Path, name: &str) -> io::Result<()> {
        if path.is_dir() {
            if name.ends_with("/target") || name.ends_with("/corpus") {
                return Ok(());
            }
            for entry in std::fs::read_dir(path)? {
                let entry = entry?;
                let name = format!("{name}/{}", entry.file_name().to_string_lossy());
                self.take(&entry.path(), &name)?;
            }
        } else if ENDS.iter().any(|end| name.ends_with(end))
            || SCRIPTS.iter().any(|folder| name.starts_with(folder))
        {
            self.files.insert(name.to_owned(), std::fs::read_to_string(path)?);
        }
        Ok(())
    }

    /// A tree of these files, for tests of the rules.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Tree { files: files.iter().map(own).collect(), place: None }
    }

    /// All files: path and text.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Files whose path has this beginning and this end.
    pub fn within<'a>(
        &'a self,
        begin: &'a str,
        end: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.starts_with(begin) && path.ends_with(end))
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Path of the tree on this machine.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// The packages: `ROOM/NAME/Cargo.toml`.
    pub fn packages(&self) -> Vec<Package> {
        let manifests = self.files().filter(|(path, _)| {
            let parts: Vec<&str> = path.split('/').collect();
            parts.len() == 3 && parts[2] == "Cargo.toml" && ROOMS.contains(&parts[0])
        });
        manifests.map(|(path, text)| Package::parse(path, text)).collect()
    }
}
