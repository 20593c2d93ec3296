//! Gives the library an entry point, at which it begins as a program of its own beside a static
//! one (`src/trap/beside.rs`).
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-e,ix_posix_beside");
}
