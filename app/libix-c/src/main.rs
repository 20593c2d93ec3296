//! `ix-install PREFIX` installs libix for C where compilers, linkers and `man` find it.
use std::process::ExitCode;

mod install;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["install", prefix] => install::install(prefix.as_ref()),
        _ => Err("nothing to do: write `install PREFIX`, for example `install /usr/local`".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ix-install: {why}");
            ExitCode::FAILURE
        }
    }
}
