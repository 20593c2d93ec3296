//! Counts of system calls that a program makes by instructions of its own, and what the socket
//! library in it has said, from a file that all its processes have. The program can write there
//! what it likes: it is read once, as a copy, and nothing follows from it but what is shown.
use ix_abi::{
    OWN_CALLS_BYTES, OWN_SITES_MAX, OwnSite, REFUSED_BIND_AT, RefusedBind, SAID_BYTES, SiteState,
};
use ix_proto::control::OwnCalls;
use ix_sys::log::one_line;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

/// The file; empty for programs without the library.
#[derive(Debug, Default)]
pub struct OwnCallsPage(Option<File>);

/// A port that the program was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPort {
    /// Why.
    pub errno: i32,
    /// Its number.
    pub port: u16,
    /// The user has read so.
    pub told: bool,
}

impl OwnCallsPage {
    /// This file.
    pub fn new(file: File) -> OwnCallsPage {
        OwnCallsPage(Some(file))
    }

    /// What is there now, the most frequent sites first.
    pub fn read(&self) -> Vec<OwnCalls> {
        let mut bytes = [0; OWN_CALLS_BYTES];
        let read = |file: &File| file.read_exact_at(&mut bytes, 0).is_ok();
        if !self.0.as_ref().is_some_and(read) {
            return Vec::new();
        }
        let sites = bytes.chunks_exact(size_of::<OwnSite>()).take(OWN_SITES_MAX);
        let mut all: Vec<_> = sites.map(site).filter(|site| site.process != 0).collect();
        all.sort_unstable_by_key(|site| std::cmp::Reverse(calls(site)));
        all
    }

    /// What the library has said, each line behind its time.
    pub fn said(&self) -> Vec<String> {
        let mut bytes = [0; SAID_BYTES];
        let read = |file: &File| file.read_exact_at(&mut bytes, OWN_CALLS_BYTES as u64).is_ok();
        if !self.0.as_ref().is_some_and(read) {
            return Vec::new();
        }
        let lines =
            bytes.split(|byte| *byte == b'\n' || *byte == 0).filter(|line| !line.is_empty());
        lines.map(|line| one_line(&String::from_utf8_lossy(line))).collect()
    }

    /// The port, if the program was refused one and has bound no other since.
    pub fn refused_bind(&self) -> Option<RefusedPort> {
        let mut bytes = [0; size_of::<RefusedBind>()];
        self.0.as_ref()?.read_exact_at(&mut bytes, REFUSED_BIND_AT as u64).ok()?;
        let errno_at = offset_of!(RefusedBind, errno);
        let errno = i32::try_from(short(&bytes, errno_at)).ok().filter(|errno| *errno > 0)?;
        let port = u16::try_from(short(&bytes, offset_of!(RefusedBind, port))).ok()?;
        Some(RefusedPort { errno, port, told: short(&bytes, offset_of!(RefusedBind, told)) != 0 })
    }
}

/// A number of four bytes.
fn short(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

/// All calls of a site.
fn calls(site: &OwnCalls) -> u64 {
    site.trapped.saturating_add(site.rewritten)
}

fn site(bytes: &[u8]) -> OwnCalls {
    let long = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let short = |at: usize| short(bytes, at);
    OwnCalls {
        process: short(offset_of!(OwnSite, process)),
        address: long(offset_of!(OwnSite, address)),
        number: long(offset_of!(OwnSite, number)),
        trapped: long(offset_of!(OwnSite, trapped)),
        rewritten: long(offset_of!(OwnSite, rewritten)),
        why: SiteState::of(short(offset_of!(OwnSite, state)))
            .and_then(SiteState::why)
            .map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_page_is_read_as_it_is() {
        let path = std::env::temp_dir().join(format!("ix-own-calls-{}", std::process::id()));
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(&path).expect("a file");
        std::fs::remove_file(&path).expect("removed");
        let mut page = Vec::new();
        for (process, state, trapped, rewritten) in [(7u32, 3u32, 5u64, 0u64), (8, 1, 4, 100)] {
            page.extend(process.to_le_bytes());
            page.extend(state.to_le_bytes());
            for long in [0x40_8c6c, 72, trapped, rewritten] {
                page.extend(long.to_le_bytes());
            }
        }
        // A page that was cut short has nothing.
        file.write_all(&page).expect("written");
        let read = |file: &File| OwnCallsPage::new(file.try_clone().expect("a copy")).read();
        assert_eq!(read(&file), []);
        file.write_all(&[0; OWN_CALLS_BYTES]).expect("written");
        let all = read(&file);
        let of = |site: &OwnCalls| (site.process, site.trapped, site.rewritten, site.why.clone());
        let why = Some("no room for a jump".to_owned());
        assert_eq!(all.iter().map(of).collect::<Vec<_>>(), [(8, 4, 100, None), (7, 5, 0, why)]);
        assert_eq!((all[0].address, all[0].number), (0x40_8c6c, 72));
        assert_eq!(OwnCallsPage::default().read(), []);
        let refused = || OwnCallsPage::new(file.try_clone().expect("a copy")).refused_bind();
        assert_eq!(refused(), None);
        let bytes = [libc::EACCES.to_le_bytes(), 80i32.to_le_bytes(), 1i32.to_le_bytes()].concat();
        file.write_all_at(&bytes, REFUSED_BIND_AT as u64).expect("written");
        let expected = RefusedPort { errno: libc::EACCES, port: 80, told: true };
        assert_eq!(refused(), Some(expected));
        let said = || OwnCallsPage::new(file.try_clone().expect("a copy")).said();
        let text = b"at once one\nlater \x1btwo\xff\n";
        file.set_len((OWN_CALLS_BYTES + SAID_BYTES) as u64).expect("room");
        file.write_all_at(&[0; SAID_BYTES], OWN_CALLS_BYTES as u64).expect("written");
        assert_eq!(said(), [""; 0]);
        file.write_all_at(text, OWN_CALLS_BYTES as u64).expect("written");
        assert_eq!(said(), ["at once one", "later \\u{1b}two\u{fffd}"]);
    }
}
