//! What the command says: in place of the standard library's macros of the same names, which panic
//! when the output cannot be written.
//!
//! 1. What is printed to the standard output is the result: when it is lost (the disk is full) the
//!    command ends with a message and exit code 1. A reader that went away ends it by SIGPIPE.
//! 2. What is printed to the error output is beside the result: losing it changes nothing.

use std::fmt::Arguments;
use std::io::{self, Write};

/// As the standard library's, by [`result`].
macro_rules! print {
    ($($text:tt)*) => { $crate::say::result(format_args!($($text)*)) };
}

/// As the standard library's, by [`result`].
macro_rules! println {
    () => { $crate::say::result(format_args!("\n")) };
    ($($text:tt)*) => { $crate::say::result(format_args!("{}\n", format_args!($($text)*))) };
}

/// As the standard library's, by [`beside`].
macro_rules! eprint {
    ($($text:tt)*) => { $crate::say::beside(format_args!($($text)*)) };
}

/// As the standard library's, by [`beside`].
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::say::beside(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints to the standard output.
pub(crate) fn result(text: Arguments<'_>) {
    ended_by(io::stdout().write_fmt(text));
}

/// Writes out what the standard output still holds; to be called at the end of the command, since
/// the standard library tells nobody when that fails.
pub(crate) fn finish() {
    ended_by(io::stdout().flush());
}

fn ended_by(written: io::Result<()>) {
    if let Err(error) = written {
        beside(format_args!("hectare: writing to the standard output: {error}\n"));
        std::process::exit(1);
    }
}

/// Prints to the error output.
pub(crate) fn beside(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}
