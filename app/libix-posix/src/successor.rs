//! Programs that processes of this run execute. They start as the first one can (`--entry
//! loading`): Linux executes the dataplane's image, which loads the program, this library with it.
//! So they have IX, and the sockets that they inherit.
use crate::{commons, fds, low_ports, own_calls, route};
use core::ffi::CStr;
use core::ops::Range;
use core::ptr::null;
use ix_sys::program_file::{self, Elf};
use libc::{RLIMIT_NOFILE, c_char};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// Environment variable that the launcher sets, such as `962;960;ix-image;load;A=b;0000`: the
/// number of the image's descriptor, that of the channel to the broker, the image's name for
/// itself and its word for a program to load, its environment, and what it replaces in `IX_ABI`.
/// A process that executes another program adds the number of [`commons`].
pub const ENV: &str = "IX_IMAGE";

/// Pointers to strings, up to a null pointer.
pub type Strings = *const *const c_char;

/// Bytes of a program's file that say how it starts.
const HEAD_BYTES: u64 = 4096;
/// Longest line of interpreters of scripts, as Linux's.
const SCRIPTS_MAX: u32 = 4;

struct Image {
    fd: RawFd,
    channel: RawFd,
    /// The rest of [`ENV`].
    words: Vec<String>,
    /// The value of [`route::ENV`].
    routes: String,
    library: RawFd,
    /// The dataplane's numbers of descriptors.
    reserved: Range<RawFd>,
    says_json: bool,
}

static IMAGE: OnceLock<Image> = OnceLock::new();

/// The number of the commons in the value of [`ENV`], if this process was executed by another one.
pub fn commons_of(text: &str) -> Option<RawFd> {
    text.split(';').nth(6)?.parse().ok()
}

/// At the start: what executed programs get, if the launcher has left it here.
pub fn begin(
    text: &str,
    routes: String,
    library: RawFd,
    reserved: Range<RawFd>,
    says_json: bool,
) -> Option<()> {
    let words: Vec<String> = text.split(';').map(str::to_owned).collect();
    let number = |nth: usize| words.get(nth)?.parse::<RawFd>().ok();
    let (fd, channel) = (keep(number(0)?)?, number(1)?);
    let commons = keep(commons::file())?;
    commons::moved_to(commons);
    let words = words.get(2..6)?.to_vec();
    let image = Image { fd, channel, words, routes, library, reserved, says_json };
    let _ = IMAGE.set(image);
    Some(())
}

/// Moves a descriptor out of the program's way; its old number is free.
fn keep(fd: RawFd) -> Option<RawFd> {
    let copy = fds::copy_out_of_the_way(fd)?;
    fds::close_private(fd);
    Some(copy)
}

/// A program that is about to be executed.
pub struct Successor {
    image: &'static Image,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    /// What the pointers point to, beside the program's own strings.
    _texts: Vec<CString>,
}

/// How Linux would start a file.
enum Start {
    /// By its dynamic loader, or without one.
    Loaded,
    /// A script, by this interpreter with perhaps an argument.
    Script(Vec<u8>, Option<Vec<u8>>),
}

/// How a file starts; `None` if Linux is to start it, or to refuse it.
fn look_at(path: &[u8]) -> Option<Start> {
    if !may_execute(&CString::new(path).ok()?) {
        return None;
    }
    let file = File::open(Path::new(std::ffi::OsStr::from_bytes(path))).ok()?;
    let status = file.metadata().ok()?;
    // Such a program changes its user, and the loader preloads nothing into it.
    if !status.is_file() || status.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return None;
    }
    let mut head = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    if head.starts_with(b"#!") {
        let (interpreter, argument) = program_file::interpreter(&head)?;
        return Some(Start::Script(interpreter.to_vec(), argument.map(<[u8]>::to_vec)));
    }
    match program_file::elf(&head)? {
        Elf::Ours(_) => Some(Start::Loaded),
        Elf::Foreign => None,
    }
}

/// # Safety
/// Null, or pointers to strings up to a null pointer, which outlive what is returned.
unsafe fn all(mut at: Strings) -> Vec<*const c_char> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: as above.
        unsafe {
            all.push(*at);
            at = at.add(1);
        }
    }
    all
}

/// The file that a name stands for along `PATH`.
pub fn find(name: &CStr) -> Option<CString> {
    if name.to_bytes().contains(&b'/') {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut files = std::env::split_paths(&path).filter_map(|folder| {
        let file = folder.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        CString::new(file.into_os_string().as_bytes()).ok()
    });
    files.find(|file| may_execute(file))
}

/// Whether this process may execute a file.
pub fn may_execute(path: &CStr) -> bool {
    // SAFETY: a C string.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
}

/// The program's file as it was named, where the image stands in for it.
static NAMED: OnceLock<Vec<u8>> = OnceLock::new();

/// The program's file has this name.
pub fn is_named(file: &CStr) {
    let _ = NAMED.set(file.to_bytes().to_vec());
}

/// Whether a name stands for the program that runs.
fn is_own_name(file: &[u8]) -> bool {
    file == b"/proc/self/exe" || file == b"/proc/thread-self/exe"
}

/// The file of the program that runs.
fn own_file() -> Option<Vec<u8>> {
    let link = std::fs::read_link("/proc/self/exe").ok()?.into_os_string().into_encoded_bytes();
    if !link.starts_with(b"/memfd:ix-image") {
        return Some(link);
    }
    if let Some(named) = NAMED.get() {
        return Some(named.clone());
    }
    // SAFETY: a string on the initial stack, or 0.
    unsafe {
        let at = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        (!at.is_null()).then(|| CStr::from_ptr(at).to_bytes().to_vec())
    }
}

/// A program that can start with IX; `None`: Linux starts it, without.
///
/// # Safety
/// Arguments and environment are null, or pointers to strings up to a null pointer, and outlive
/// what is returned.
pub unsafe fn prepare(file: &CStr, arguments: Strings, environment: Strings) -> Option<Successor> {
    let image = IMAGE.get()?;
    // SAFETY: the caller's promise.
    let (mut arguments, environment) = unsafe { (all(arguments), all(environment)) };
    // In the next process that name is the image's.
    let own = is_own_name(file.to_bytes()).then(own_file).flatten();
    let (mut file, mut texts) = (own.unwrap_or_else(|| file.to_bytes().to_vec()), Vec::new());
    let mut looks = 0;
    while let Start::Script(interpreter, argument) = look_at(&file)? {
        looks += 1;
        if looks > SCRIPTS_MAX {
            return None;
        }
        let mut words = vec![CString::new(interpreter.clone()).ok()?];
        words.extend(argument.map(CString::new).transpose().ok()?);
        words.push(CString::new(file).ok()?);
        let rest = arguments.get(1..).unwrap_or_default().to_vec();
        arguments = words.iter().map(|word| word.as_ptr()).chain(rest).collect();
        texts.extend(words);
        file = interpreter;
    }
    let [name, load, tunables, placeholder] = &image.words[..] else { return None };
    let mut text = |text: Vec<u8>| -> Option<*const c_char> {
        texts.push(CString::new(text).ok()?);
        Some(texts.last()?.as_ptr())
    };
    let value = |variable: &str| {
        environment.iter().find_map(|at| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { CStr::from_ptr(*at) }.to_bytes();
            Some(bytes.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?.to_vec())
        })
    };
    let own_tunables = tunables.split('=').next()?;
    let mut told = vec![b'-'];
    told.extend(value(own_tunables).unwrap_or_default());
    let channel = image.channel.to_string().into_bytes();
    let mut all = Vec::new();
    for word in [name.as_bytes(), load.as_bytes(), &file, &channel, b"later", b"process", &told] {
        all.push(text(word.to_vec())?);
    }
    if arguments.is_empty() {
        all.push(text(file.clone())?);
    }
    all.extend(arguments);
    all.push(null());
    let mut preload = format!("LD_PRELOAD=/proc/self/fd/{}", image.library).into_bytes();
    if let Some(others) = value("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.extend([b":", &others[..]].concat());
    }
    let words = image.words.join(";");
    let numbers = [image.fd, image.channel].map(|number| number.to_string()).join(";");
    let added = [
        (ENV, format!("{ENV}={numbers};{words};{}", commons::file())),
        (route::ENV, format!("{}={}", route::ENV, image.posix())),
        (own_tunables, tunables.clone()),
        (ix_abi::ENV_HEADER, format!("{}={placeholder}", ix_abi::ENV_HEADER)),
    ];
    let is_replaced = |at: *const c_char| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { CStr::from_ptr(at) }.to_bytes();
        let is = |name: &str| {
            bytes.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
        };
        is("LD_PRELOAD") || added.iter().any(|(name, _)| is(name))
    };
    let mut environment: Vec<_> =
        environment.iter().copied().filter(|at| !is_replaced(*at)).collect();
    environment.push(text(preload)?);
    for (_, whole) in &added {
        environment.push(text(whole.clone().into_bytes())?);
    }
    if image.says_json {
        environment.push(text(format!("{}=json", ix_sys::log::FORMAT_ENV).into_bytes())?);
    }
    environment.push(null());
    Some(Successor { image, arguments: all, environment, _texts: texts })
}

impl Image {
    /// The value of [`route::ENV`] with the numbers that descriptors have now.
    fn posix(&self) -> String {
        let number = |nth: usize| match nth {
            2 => Some(self.library),
            5 => Some(low_ports::broker()),
            9 => Some(own_calls::file()),
            _ => None,
        };
        let parts = self.routes.split(';').enumerate().map(|(nth, part)| match number(nth) {
            Some(fd) if fd >= 0 => fd.to_string(),
            Some(_) => String::new(),
            None => part.to_owned(),
        });
        parts.collect::<Vec<_>>().join(";")
    }

    /// What the program inherits beside what it would on Linux.
    fn inherited(&self) -> impl Iterator<Item = RawFd> {
        let (ports, counts) = (low_ports::broker(), own_calls::file());
        let all = [self.fd, self.channel, self.library, ports, counts, commons::file()];
        all.into_iter().filter(|fd| *fd >= 0)
    }
}

/// While it lives, an executed program inherits the dataplane's descriptors, and may have as many
/// of its own as the first one.
struct Open(&'static Image, Option<libc::rlimit>);

impl Open {
    fn begin(image: &'static Image) -> Open {
        // SAFETY: no pointers; then a local is filled and read.
        unsafe {
            for fd in image.inherited() {
                libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, 0);
            }
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(RLIMIT_NOFILE, &mut limit);
            if limit.rlim_cur != image.reserved.start as u64 {
                return Open(image, None);
            }
            let lifted = libc::rlimit { rlim_cur: image.reserved.end as u64, ..limit };
            libc::syscall(libc::SYS_setrlimit, RLIMIT_NOFILE, &raw const lifted);
            Open(image, Some(limit))
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: reads a local; then no pointers.
        unsafe {
            if let Some(limit) = &self.1 {
                libc::syscall(libc::SYS_setrlimit, RLIMIT_NOFILE, core::ptr::from_ref(limit));
            }
            for fd in self.0.inherited() {
                libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
}

impl Successor {
    /// Executes it in this process. Returns only if that fails.
    pub fn execute(&self) {
        let _open = Open::begin(self.image);
        let (arguments, environment) = (self.arguments.as_ptr(), self.environment.as_ptr());
        let (call, fd, how) = (libc::SYS_execveat, self.image.fd, libc::AT_EMPTY_PATH);
        // SAFETY: pointers to C strings up to a null pointer, which live as long as `self`.
        unsafe { libc::syscall(call, fd, c"".as_ptr(), arguments, environment, how) };
    }

    /// Has another process execute it, by a function of the C library's that takes its file, its
    /// arguments and its environment.
    pub fn spawn<T>(&self, spawn: impl FnOnce(*const c_char, Strings, Strings) -> T) -> T {
        let _open = Open::begin(self.image);
        let file = CString::new(format!("/proc/self/fd/{}", self.image.fd)).unwrap_or_default();
        spawn(file.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr())
    }
}
