//! A program that is root of a namespace: what its process does before it executes the program.
use ix_sys::landlock::SignalScope;
use ix_sys::mounts::{self, Change};
use ix_sys::user_namespace::{self, UserNamespace};
use ix_sys::{Error, process};
use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

/// Root of a user namespace, who sees files of the machine as its broker wants.
#[derive(Debug)]
pub struct NamespaceRoot {
    namespace: UserNamespace,
    view: Vec<Change>,
    /// Where the program begins.
    folder: Option<CString>,
    scope: Option<SignalScope>,
}

/// What was being done, and the error's number.
type Failure = (usize, i32);

/// The steps around the changes of the view.
const BEFORE: usize = 1;
const LANDLOCK: &str = "keep its signals from other processes (Landlock)";

impl NamespaceRoot {
    /// Root of this namespace, who sees files with these changes, and signals only its own
    /// processes if there is a scope.
    pub fn new(
        namespace: UserNamespace,
        view: Vec<Change>,
        scope: Option<SignalScope>,
    ) -> NamespaceRoot {
        let folder = std::env::current_dir().unwrap_or_default();
        let folder = CString::new(folder.into_os_string().into_vec()).ok();
        NamespaceRoot { namespace, view, folder, scope }
    }

    /// Its user namespace.
    pub fn namespace(&self) -> &UserNamespace {
        &self.namespace
    }

    /// Makes the calling process it, which must have one thread. Makes only system calls.
    pub(crate) fn become_it(&self) -> io::Result<()> {
        self.steps().map_err(|(_, errno)| io::Error::from_raw_os_error(errno))
    }

    fn steps(&self) -> Result<(), Failure> {
        let at = |nth: usize| move |e: io::Error| (nth, e.raw_os_error().unwrap_or(libc::EINVAL));
        mounts::leave().map_err(at(0))?;
        for (nth, change) in self.view.iter().enumerate() {
            change.make().map_err(at(BEFORE + nth))?;
        }
        if let Some(folder) = &self.folder {
            // The process is still in what was mounted before. If no path leads to its folder, it
            // stays there.
            let _ = rustix::process::chdir(folder);
        }
        let behind = BEFORE + self.view.len();
        self.scope.as_ref().map_or(Ok(()), SignalScope::enter).map_err(at(behind))?;
        user_namespace::join(self.namespace.as_fd()).map_err(at(behind + 1))
    }

    /// Tries in a child process whether a process can become it.
    pub fn try_it(&self) -> Result<(), Error> {
        let what = |what: &'static str| move |e| Error::new(what, e);
        let (ours, theirs) = io::pipe().map_err(what("cannot make a pipe"))?;
        // SAFETY: the child makes system calls only, and ends.
        let pid = ix_sys::check(unsafe { libc::fork() }).map_err(what("cannot fork"))?;
        if pid == 0 {
            self.try_and_end(&theirs);
        }
        drop(theirs);
        let failure = failure_in(ours);
        // An error means that it has ended.
        let _ = process::wait(pid, true);
        match failure.map_err(what("cannot hear a child"))? {
            None => Ok(()),
            Some((nth, errno)) => {
                let doing = match nth.checked_sub(BEFORE) {
                    None => "make a mount namespace".to_owned(),
                    Some(nth) if nth < self.view.len() => self.view[nth].text(),
                    Some(nth) if nth == self.view.len() => LANDLOCK.to_owned(),
                    Some(_) => "enter its user namespace".to_owned(),
                };
                let e = io::Error::from_raw_os_error(errno);
                Err(Error::new(format!("cannot {doing}"), e))
            }
        }
    }

    fn try_and_end(&self, theirs: &PipeWriter) -> ! {
        let (nth, errno) = self.steps().err().unwrap_or((0, 0));
        let word = (nth as u64) << 32 | errno as u64;
        // If nobody reads it, the end comes all the same.
        let _ = ix_sys::fd::write_bare(theirs.as_fd(), &word.to_ne_bytes());
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
}

fn failure_in(mut pipe: PipeReader) -> io::Result<Option<Failure>> {
    let mut word = [0; 8];
    pipe.read_exact(&mut word)?;
    let word = u64::from_ne_bytes(word);
    Ok((word as u32 != 0).then_some(((word >> 32) as usize, word as u32 as i32)))
}
