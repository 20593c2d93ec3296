//! Builds the libraries, and copies what C programs need.
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const HEADER: &str = include_str!("../include/ix.h");
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Manual pages, by section.
const PAGES: [(&str, u32, &str); 2] = [
    ("libix", 3, include_str!("../man/libix.3")),
    ("libix-contract", 7, include_str!("../man/libix-contract.7")),
];

/// Installs below `prefix`.
pub fn install(prefix: &Path) -> Result<(), String> {
    let built = build()?;
    let cannot = |e: std::io::Error| format!("cannot install below {}: {e}", prefix.display());
    fs::create_dir_all(prefix).map_err(cannot)?;
    let prefix = prefix.canonicalize().map_err(cannot)?;
    copy(&built, &prefix)?;
    println!("installed below {}; cc $(pkg-config --cflags libix) ...", prefix.display());
    Ok(())
}

/// Builds the optimised libraries; returns their folder.
fn build() -> Result<std::path::PathBuf, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let program = std::env::current_exe()
        .map_err(|e| format!("cannot find the executable of ix-install: {e}"))?;
    // TARGET/PROFILE/ix-install.
    let target = program.ancestors().nth(2).ok_or("not in a target directory: use cargo run")?;
    let mut command = Command::new(cargo);
    command.current_dir(workspace).args(["build", "--release", "--quiet", "--lib"]);
    command.args(["-p", "libix-c", "-p", "libix-event", "--target-dir"]).arg(target);
    match command.status() {
        Ok(status) if status.success() => Ok(target.join("release")),
        Ok(status) => Err(format!("cannot build the libraries: cargo ended with {status}")),
        Err(e) => Err(format!("cannot run cargo ({e}); start this with `cargo run -p libix-c`")),
    }
}

fn copy(built: &Path, prefix: &Path) -> Result<(), String> {
    put(&prefix.join("include/ix.h"), HEADER.as_bytes())?;
    let about = "network services on the IX dataplane";
    library(built, prefix, "libix_c", "libix", about)?;
    library(built, prefix, "libix_event", "libix_event", "libevent's calls for programs on IX")?;
    // Here a program that was linked with libevent finds our library under libevent's name.
    let folder = prefix.join("lib/ix-libevent");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    for name in ["libevent-2.1.so.7", "libevent_core-2.1.so.7", "libevent_pthreads-2.1.so.7"] {
        link(&folder.join(name), "../libix_event.so.0")?;
    }
    for (name, section, page) in PAGES {
        put(&prefix.join(format!("share/man/man{section}/{name}.{section}")), page.as_bytes())?;
    }
    for function in functions() {
        let path = prefix.join(format!("share/man/man3/{function}.3"));
        put(&path, b".so man3/libix.3\n")?;
    }
    Ok(())
}

/// Installs a library in both forms, and its `pkg-config` file.
fn library(built: &Path, prefix: &Path, from: &str, name: &str, about: &str) -> Result<(), String> {
    let (folder, shared) = (prefix.join("lib"), format!("{name}.so.{VERSION}"));
    for (ending, to) in [("so", shared.clone()), ("a", format!("{name}.a"))] {
        let from = built.join(format!("{from}.{ending}"));
        let bytes = fs::read(&from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        put(&folder.join(to), &bytes)?;
    }
    link(&folder.join(format!("{name}.so.0")), &shared)?;
    link(&folder.join(format!("{name}.so")), &format!("{name}.so.0"))?;
    let package = package(name, about);
    put(&folder.join(format!("pkgconfig/{name}.pc")), package.as_bytes())
}

/// What `pkg-config` says of a library, by its own place: packages put it elsewhere.
fn package(name: &str, about: &str) -> String {
    let flag = name.trim_start_matches("lib");
    format!(
        "prefix=${{pcfiledir}}/../..\nincludedir=${{prefix}}/include\nlibdir=${{pcfiledir}}/..\n\n\
         Name: {name}\nDescription: {about}\nVersion: {VERSION}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -l{flag}\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc\n"
    )
}

/// Functions of the header, each of which has a page.
fn functions() -> impl Iterator<Item = &'static str> {
    HEADER.lines().filter(|line| !line.starts_with([' ', '#', '/', '}'])).filter_map(|line| {
        let name = line.split('(').next()?.rsplit([' ', '*']).next()?;
        (line.contains('(') && name.starts_with("ix_")).then_some(name)
    })
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, bytes))
        .map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn link(path: &Path, to: &str) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => symlink(to, path),
    }
    .map_err(|e| format!("cannot link {}: {e}", path.display()))
}
