//! What a command prints on standard output, its results.
use std::fmt;
use std::io::Write as _;

/// Prints, formatted as by `print!`.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {
        $crate::output::write(format_args!($($text)*))
    };
}

/// Prints a line, formatted as by `println!`.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints. Where that fails, on a full disk say, the results would be lost without a word: the
/// process says why in one line and ends with status 1. (`println!` panics.)
pub fn write(text: fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        crate::log::line(
            crate::log::Level::Error,
            format_args!("cannot write to standard output: {error}; choose another place for it"),
        );
        std::process::exit(1);
    }
}
