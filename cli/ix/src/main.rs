//! The `ix` command; the library has all of its code.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ix::main()
}
