//! `ix packets` without the rest of the command.
fn main() -> std::process::ExitCode {
    ix_scripts::cli(std::env::args_os().skip(1))
}
