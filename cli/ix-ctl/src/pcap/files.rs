//! Where packets go: one file, or a ring of files of which the oldest is written over.
use super::format::{self, Entry};
use ix_report::problem::{Problem, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// One file after the other.
pub struct Files {
    path: PathBuf,
    /// Files of the ring; 0: one file that grows.
    count: u32,
    bytes_max: u64,
    interfaces: Vec<String>,
    snaplen: u32,
    current: u32,
    written: u64,
    out: BufWriter<Box<dyn Write>>,
}

impl Files {
    /// `-` is standard output. A ring of `count` files has their numbers at the names' ends.
    pub fn create(
        path: PathBuf,
        (count, bytes_max): (u32, u64),
        interfaces: Vec<String>,
        snaplen: u32,
    ) -> Result<Files> {
        let out = BufWriter::new(Box::new(io::sink()) as Box<dyn Write>);
        let (current, written) = (0, 0);
        let mut files =
            Files { path, count, bytes_max, interfaces, snaplen, current, written, out };
        files.open()?;
        Ok(files)
    }

    /// Of the number that is the ring's turn.
    fn name(&self) -> PathBuf {
        if self.count == 0 {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let end = self.path.extension().map_or("pcapng".into(), |e| e.to_string_lossy());
        self.path.with_file_name(format!("{stem}.{}.{end}", self.current))
    }

    fn open(&mut self) -> Result<()> {
        let name = self.name();
        let out: Box<dyn Write> = if self.count == 0 && self.path.as_os_str() == "-" {
            Box::new(io::stdout())
        } else {
            let file = File::create(&name).map_err(|e| {
                Problem::new(format!("cannot write {}", name.display()), e)
                    .mend("choose another place with -w")
            })?;
            Box::new(file)
        };
        self.out = BufWriter::new(out);
        let begun = format::begin(&mut self.out, &self.interfaces, self.snaplen);
        self.written = begun.map_err(|e| self.problem(e))?;
        Ok(())
    }

    /// Writes a packet, into the next file when this one is full.
    pub fn write(&mut self, entry: &Entry<'_>) -> Result<()> {
        let written = format::packet(&mut self.out, entry).map_err(|e| self.problem(e))?;
        self.written += written;
        if self.count > 0 && self.written >= self.bytes_max {
            self.flush()?;
            self.current = (self.current + 1) % self.count;
            self.open()?;
        }
        Ok(())
    }

    /// Who reads the file sees all that was written.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|e| self.problem(e))
    }

    /// The last words.
    pub fn end(&mut self, time_us: u64, taken: u64, lost: u64) -> Result<()> {
        format::end(&mut self.out, time_us, taken, lost).map_err(|e| self.problem(e))?;
        self.flush()
    }

    fn problem(&self, e: io::Error) -> Problem {
        Problem::new(format!("cannot write {}", self.name().display()), e)
    }
}
