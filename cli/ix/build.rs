//! Builds the dataplane image and the library for unmodified programs, which the command contains
//! (`IX_IMAGE`, `IX_POSIX_LIBRARY`).
use ix_build::Builder;
use std::path::PathBuf;

/// The folders of the crates that the two are built from.
const ROOMS: [&str; 4] = ["sys", "core", "dataplane", "app"];
/// Names the profile of the dataplane by which the image is compiled, if it is set.
const PROFILE: &str = "IX_PROFILE";

fn main() {
    let variable = |name: &str| std::env::var_os(name).expect("cargo sets it");
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for room in ROOMS {
        for part in std::fs::read_dir(workspace.join(room)).expect("a folder of the workspace") {
            for what in ["src", "Cargo.toml"] {
                let path = part.as_ref().expect("a readable folder").path().join(what);
                // A room's README has neither, and cargo takes what is missing for changed.
                if path.exists() {
                    println!("cargo::rerun-if-changed={}", path.display());
                }
            }
        }
    }
    for file in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(file).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PROFILE}");
    let profile = std::env::var_os(PROFILE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = profile.as_ref().filter(|path| !path.is_file()) {
        println!(
            "cargo::error={PROFILE}={}: no such file; packaging/profile makes one",
            path.display()
        );
        std::process::exit(1);
    }

    // TARGET/PROFILE/build/ix-HASH/out: one image and library for all profiles.
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = out.ancestors().nth(4).expect("cargo's layout");
    let cargo = variable("CARGO");
    let builder = Builder { cargo: &cargo, workspace: &workspace, profile: profile.as_deref() };
    let built = builder.image(&target.join("image")).and_then(|image| {
        let library = builder.posix_library(&target.join("posix"))?;
        Ok((image, library))
    });
    match built {
        Ok((image, library)) => {
            println!("cargo::rustc-env=IX_IMAGE={}", image.display());
            println!("cargo::rustc-env=IX_POSIX_LIBRARY={}", library.display());
        }
        Err(why) => {
            println!("cargo::error={why}");
            std::process::exit(1);
        }
    }
}
