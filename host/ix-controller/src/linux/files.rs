//! Small files of the kernel, below a root that tests replace with a folder.
use std::io;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// The root of `/sys` and `/proc`.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// A file that could not be read or written.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    writing: Option<String>,
    error: io::Error,
}

impl FileError {
    /// The kernel's reason.
    pub fn kind(&self) -> io::ErrorKind {
        self.error.kind()
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.writing {
            Some(text) if text.is_empty() => write!(f, "cannot write {}: ", self.path.display())?,
            Some(text) => write!(f, "cannot write {text:?} to {}: ", self.path.display())?,
            None => write!(f, "cannot read {}: ", self.path.display())?,
        }
        write!(f, "{}", self.error)?;
        match self.error.kind() {
            io::ErrorKind::PermissionDenied => write!(f, "; run it as root"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for FileError {}

impl Default for Tree {
    fn default() -> Tree {
        Tree::at("/")
    }
}

impl Tree {
    /// A tree below a folder.
    pub fn at(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// The full path of one of its files.
    pub fn path(&self, file: impl AsRef<Path>) -> PathBuf {
        let file = file.as_ref();
        self.root.join(file.strip_prefix("/").unwrap_or(file))
    }

    /// Whether this file or folder exists.
    pub fn has(&self, file: impl AsRef<Path>) -> bool {
        self.path(file).exists()
    }

    /// A file's text, trimmed.
    pub fn read(&self, file: impl AsRef<Path>) -> Result<String, FileError> {
        let path = self.path(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) => Err(FileError { path, writing: None, error }),
        }
    }

    /// A file's number; `None` if it cannot be read or is no number.
    pub fn number(&self, file: impl AsRef<Path>) -> Option<u64> {
        self.read(file).ok()?.parse().ok()
    }

    /// Writes to an existing file.
    pub fn write(&self, file: impl AsRef<Path>, text: &str) -> Result<(), FileError> {
        use std::io::Write;
        let path = self.path(file);
        let mut options = fs::OpenOptions::new();
        // Kernel files have no length; test files must not keep a longer old text.
        let opened = options.write(true).truncate(true).open(&path);
        // One system call: the kernel takes each write as a whole value.
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| FileError { path, writing: Some(text.to_owned()), error })
    }

    /// Checks that a file can be written to, without writing.
    pub fn may_write(&self, file: impl AsRef<Path>) -> Result<(), FileError> {
        let path = self.path(file);
        let opened = fs::OpenOptions::new().write(true).open(&path);
        let why = |error| FileError { path, writing: Some(String::new()), error };
        opened.map(drop).map_err(why)
    }

    /// Names in a folder, sorted; empty if it does not exist.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// Parses a list as the kernel writes it: `0-3,8`. `None` if it is malformed.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 8192;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}
