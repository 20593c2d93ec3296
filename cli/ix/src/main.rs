//! The `ix` command; all of it is in the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ix::main()
}
