//! Builds the libraries, and copies what a C programmer needs.
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const HEADER: &str = include_str!("../include/ix.h");
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Pages by section.
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

/// Builds the libraries with the optimiser; answers the folder where they are.
fn build() -> Result<std::path::PathBuf, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let program = std::env::current_exe().map_err(|e| format!("cannot find itself: {e}"))?;
    // TARGET/PROFILE/ix-install.
    let target = program.ancestors().nth(2).ok_or("not in a target directory: use cargo run")?;
    let mut command = Command::new(cargo);
    command.current_dir(workspace).args(["build", "--release", "--quiet", "--lib"]);
    command.args(["-p", "libix-c", "--target-dir"]).arg(target);
    match command.status() {
        Ok(status) if status.success() => Ok(target.join("release")),
        Ok(status) => Err(format!("cannot build the libraries: cargo ended with {status}")),
        Err(e) => Err(format!("cannot run cargo ({e}): start this by `cargo run -p libix-c`")),
    }
}

fn copy(built: &Path, prefix: &Path) -> Result<(), String> {
    let library = format!("libix.so.{VERSION}");
    put(&prefix.join("include/ix.h"), HEADER.as_bytes())?;
    for (from, to) in [("libix_c.so", library.as_str()), ("libix_c.a", "libix.a")] {
        let from = built.join(from);
        let bytes = fs::read(&from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        put(&prefix.join("lib").join(to), &bytes)?;
    }
    link(&prefix.join("lib/libix.so.0"), &library)?;
    link(&prefix.join("lib/libix.so"), "libix.so.0")?;
    put(&prefix.join("lib/pkgconfig/libix.pc"), package(prefix).as_bytes())?;
    for (name, section, page) in PAGES {
        put(&prefix.join(format!("share/man/man{section}/{name}.{section}")), page.as_bytes())?;
    }
    for function in functions() {
        let path = prefix.join(format!("share/man/man3/{function}.3"));
        put(&path, b".so man3/libix.3\n")?;
    }
    Ok(())
}

/// What `pkg-config libix` says.
fn package(prefix: &Path) -> String {
    format!(
        "prefix={}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\n\
         Name: libix\nDescription: network services on the IX dataplane\nVersion: {VERSION}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -lix\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc\n",
        prefix.display()
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
