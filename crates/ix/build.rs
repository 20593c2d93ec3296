//! Builds the dataplane image, which the command carries inside itself (`IX_IMAGE`).
include!("../ix-image/build_image.rs");

/// What the image is made of.
const PARTS: [&str; 8] =
    ["ix-abi", "ix-wire", "ix-tcp", "ix-mem", "ix-nic", "ix-dataplane", "ix-domain", "ix-image"];

fn main() {
    let variable = |name: &str| std::env::var_os(name).expect("cargo sets it");
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for part in PARTS {
        for what in ["src", "Cargo.toml"] {
            let path = workspace.join("crates").join(part).join(what);
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for file in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(file).display());
    }
    println!(
        "cargo::rerun-if-changed={}",
        workspace.join("crates/ix-image/build_image.rs").display()
    );
    println!("cargo::rerun-if-changed=build.rs");

    // TARGET/PROFILE/build/ix-HASH/out: one image for all profiles.
    let out = PathBuf::from(variable("OUT_DIR"));
    let target_dir = out.ancestors().nth(4).expect("cargo's layout").join("image");
    match build_image(&variable("CARGO"), &workspace, &target_dir) {
        Ok(image) => println!("cargo::rustc-env=IX_IMAGE={}", image.display()),
        Err(why) => {
            println!("cargo::error={why}");
            std::process::exit(1);
        }
    }
}
