//! The other way in: Linux executes the image, which maps the dynamic loader and the program.
use crate::launch::{Domain, LaunchConfig};
use crate::plant::IMAGE_ENV;
use crate::program::resolve;
use ix_entry::{ABI_PLACEHOLDER, DATAPLANE, IMAGE_ARGV0, LOAD};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const TUNABLES: &str = "GLIBC_TUNABLES";

/// Arguments and environment of the image, made before the fork.
pub struct Exec {
    image: RawFd,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Exec {
    /// For this program. `image` and `channel` are numbers of descriptors in the child.
    pub fn new(config: &LaunchConfig, image: RawFd, channel: RawFd) -> io::Result<Exec> {
        let path = std::env::var_os("PATH");
        let program: PathBuf = resolve(&config.program, path.as_deref())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let tunables = std::env::var_os(TUNABLES);
        let mut told = OsString::from("-");
        told.push(tunables.as_deref().unwrap_or_default());
        let channel = channel.to_string();
        let domain = config.domain.word();
        let when = if config.later { "later" } else { "now" };
        let own = [OsStr::new(IMAGE_ARGV0), OsStr::new(LOAD), program.as_os_str()];
        let own = own.into_iter().chain([&channel, when, domain].map(OsStr::new)).chain([&*told]);
        let program = [program.clone().into_os_string()];
        let args = if config.args.is_empty() { &program[..] } else { &config.args };
        let args = own.chain(args.iter().map(OsString::as_os_str)).map(text);
        Ok(Exec {
            image,
            args: args.collect::<io::Result<_>>()?,
            env: environment(config).collect::<io::Result<_>>()?,
        })
    }

    /// For a dataplane in a process of its own, with nothing of the broker's environment.
    pub fn of_dataplane(image: RawFd, channel: RawFd) -> io::Result<Exec> {
        let channel = channel.to_string();
        let args = [IMAGE_ARGV0, DATAPLANE, &channel].map(OsStr::new).map(text);
        let args = args.into_iter().collect::<io::Result<_>>()?;
        Ok(Exec { image, args, env: vec![text(OsStr::new(IMAGE_ENV))?] })
    }

    /// Executes the image; returns only if that fails. Makes only a system call.
    pub fn run(&self, args: &[*const libc::c_char], env: &[*const libc::c_char]) -> io::Error {
        let empty = c"".as_ptr();
        let (args, env) = (args.as_ptr(), env.as_ptr());
        // SAFETY: arrays of C strings that end with null, made by `pointers` of strings that live.
        unsafe {
            libc::syscall(libc::SYS_execveat, self.image, empty, args, env, libc::AT_EMPTY_PATH)
        };
        io::Error::last_os_error()
    }

    /// Arguments of [`Exec::run`].
    pub fn pointers(&self) -> [Vec<*const libc::c_char>; 2] {
        let pointers = |texts: &[CString]| {
            let ends = std::iter::once(std::ptr::null());
            texts.iter().map(|text| text.as_ptr()).chain(ends).collect()
        };
        [pointers(&self.args), pointers(&self.env)]
    }
}

/// The program's environment, with the image's tunables.
fn environment(config: &LaunchConfig) -> impl Iterator<Item = io::Result<CString>> {
    let added = config.env.clone();
    let is_new = move |name: &OsStr| {
        let mut replaced = added.iter().map(|(other, _)| other).chain(&config.without_env);
        replaced.all(|other| other != name)
    };
    let kept = std::env::vars_os().filter(move |(name, _)| is_new(name) && name != TUNABLES);
    let mut all: Vec<(OsString, OsString)> = kept.chain(config.env.iter().cloned()).collect();
    all.retain(|(name, _)| name != ix_abi::ENV_HEADER);
    all.push((ix_abi::ENV_HEADER.into(), ABI_PLACEHOLDER.into()));
    if config.domain == Domain::Pku {
        all.push(("LD_BIND_NOW".into(), "1".into()));
    }
    let join = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        text(&name)
    };
    all.into_iter().map(join).chain([text(OsStr::new(IMAGE_ENV))])
}

fn text(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(OsString::from(text).into_vec())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_image_is_told_what_to_load() {
        let config = LaunchConfig {
            program: "/bin/sh".into(),
            args: vec!["sh".into(), OsString::from_vec(b"\xff x".to_vec())],
            env: vec![("A".into(), "b".into())],
            without_env: vec!["PATH".into()],
            later: true,
            ..LaunchConfig::default()
        };
        let exec = Exec::new(&config, 7, 8).expect("made");
        let told: Vec<&[u8]> = exec.args.iter().map(|text| text.as_bytes()).collect();
        assert_eq!(told[..6], [&b"ix-image"[..], b"load", b"/bin/sh", b"8", b"later", b"none"]);
        assert_eq!(told[7..], [&b"sh"[..], b"\xff x"]);
        for wanted in [&b"A=b"[..], b"IX_ABI=0000000000000000", IMAGE_ENV.as_bytes()] {
            let same = exec.env.iter().filter(|text| text.as_bytes() == wanted);
            assert_eq!(same.count(), 1);
        }
        assert_eq!(
            OsStr::from_bytes(told[6]).len(),
            1 + std::env::var_os(TUNABLES).map_or(0, |t| t.len())
        );
        let has_path = exec.env.iter().any(|text| text.as_bytes().starts_with(b"PATH="));
        assert!(!has_path && std::env::var_os("PATH").is_some());
        let [args, env] = exec.pointers();
        assert_eq!((args.len(), env.len()), (exec.args.len() + 1, exec.env.len() + 1));
    }
}
