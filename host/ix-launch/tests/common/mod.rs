//! Builds the image and test programs, and runs programs on a dataplane without devices.
#![allow(dead_code)]
mod start;

use ix_build::Builder;
use ix_launch::{Child, Entry, Exit, Image, LaunchConfig, LaunchError, launch, memfd, serve};
use ix_proto::Start;
pub use start::begin;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory that cargo builds into: the test lies in TARGET/PROFILE/deps.
fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    test.ancestors().nth(3).expect("cargo's layout").to_owned()
}

/// The image, built when it is not fresh.
pub fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let workspace = crate_dir().join("../..");
        let builder =
            Builder { cargo: env!("CARGO").as_ref(), workspace: &workspace, profile: None };
        let built = builder.image(&target_dir().join("image"));
        let bytes = std::fs::read(built.expect("image")).expect("image");
        Image::from_bytes(&bytes, true).expect("a static PIE")
    })
}

/// Compiles `programs/NAME.c`; `flags` make a variant of it.
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let folder = target_dir().join("test-programs");
    std::fs::create_dir_all(&folder).expect("folder");
    let program = folder.join(format!("{name}{}", flags.concat()));
    // Tests run side by side: nobody may execute a half-written file.
    static BUILDING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = BUILDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let temporary = program.with_extension(format!("{}", std::process::id()));
    let source = crate_dir().join("tests/programs").join(name).with_extension("c");
    let status = Command::new("cc")
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&temporary)
        .arg(source)
        .args(flags)
        .status()
        .expect("a C compiler, which linking Rust needs anyway");
    assert!(status.success());
    std::fs::rename(&temporary, &program).expect("rename");
    program
}

/// Starts a program, with the image planted.
pub fn start(program: impl AsRef<OsStr>, args: &[&str]) -> Result<Child, LaunchError> {
    start_by(Entry::Planted, program, args)
}

/// Starts a program; the variable `LOADED` says which way in it was.
pub fn start_by(
    entry: Entry,
    program: impl AsRef<OsStr>,
    args: &[&str],
) -> Result<Child, LaunchError> {
    let program = PathBuf::from(program.as_ref());
    let arg0 = program.clone().into_os_string();
    let args = std::iter::once(arg0).chain(args.iter().map(Into::into)).collect();
    let loaded = (entry == Entry::Loading).then(|| ("LOADED".into(), "1".into()));
    let env = loaded.into_iter().collect();
    launch(image(), &LaunchConfig { program, args, env, entry, ..LaunchConfig::default() })
}

/// Boots the dataplane in it.
pub fn boot(child: &mut Child) {
    boot_with(child, begin());
}

/// Boots a dataplane that begins so in it.
pub fn boot_with(child: &mut Child, start: Start) {
    let page = memfd(c"ix-controller").expect("memfd");
    serve(child, start, &[page.as_fd()], &mut |_, _| Ok(())).expect("boots");
}

/// Runs a program on IX that the image has loaded to its end.
pub fn run_loaded(program: impl AsRef<OsStr>, args: &[&str]) -> Exit {
    let mut child = start_by(Entry::Loading, program, args).expect("starts");
    boot(&mut child);
    child.wait().expect("ends")
}

/// Runs a program on IX to its end.
pub fn run(program: impl AsRef<OsStr>, args: &[&str]) -> Exit {
    let mut child = start(program, args).expect("starts");
    boot(&mut child);
    child.wait().expect("ends")
}
