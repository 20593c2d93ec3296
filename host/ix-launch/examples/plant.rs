//! Runs a program on a dataplane without devices: `plant IMAGE none|pku PROGRAM [ARGUMENTS]`, as
//! user and group 65534 behind a wall; with `LOADED` in the environment the image loads the
//! program. For tests in a guest, which have no cargo.
#[path = "../tests/common/start.rs"]
mod start;

use ix_launch::{Domain, Entry, Exit, Image, LaunchConfig, launch, memfd, serve};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

const NOBODY: (u32, u32) = (65534, 65534);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [image, domain, rest @ ..] = &args[..] else {
        eprintln!("usage: plant IMAGE none|pku PROGRAM [ARGUMENTS]");
        return ExitCode::from(2);
    };
    let walled = domain == "pku";
    match run(Path::new(image), walled, rest) {
        Ok(exit) => {
            eprintln!("plant: {exit}");
            ExitCode::from(exit.status())
        }
        Err(why) => {
            eprintln!("plant: {why}");
            ExitCode::from(125)
        }
    }
}

fn run(
    image: &Path,
    walled: bool,
    command: &[std::ffi::OsString],
) -> Result<Exit, Box<dyn std::error::Error>> {
    let image = Image::from_bytes(&std::fs::read(image)?, true)?;
    let config = LaunchConfig {
        program: command.first().ok_or("no program")?.into(),
        args: command.to_vec(),
        domain: if walled { Domain::Pku } else { Domain::None },
        user: walled.then_some(NOBODY),
        entry: match std::env::var_os("LOADED") {
            Some(_) => Entry::Loading,
            None => Entry::Planted,
        },
        ..LaunchConfig::default()
    };
    let mut child = launch(&image, &config)?;
    let page = memfd(c"ix-controller")?;
    serve(&mut child, start::begin(), &[page.as_fd()], &mut |_, _| Ok(()))?;
    Ok(child.wait()?)
}
