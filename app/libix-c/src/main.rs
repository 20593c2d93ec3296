//! `ix-install PREFIX` puts libix for C where compilers, linkers and `man` look.
use std::process::ExitCode;

mod install;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["install", prefix] => install::install(prefix.as_ref()),
        _ => Err("nothing to do: say `install PREFIX`, for example `install /usr/local`".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ix-install: {why}");
            ExitCode::FAILURE
        }
    }
}
