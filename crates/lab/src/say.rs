//! What the command prints. These macros replace the standard library's of the same names, which
//! panic when the output cannot be written.
//!
//! 1. The standard output carries the result. If it is lost (the disk is full) the command ends
//!    with a message and exit code 1. If the reader went away, SIGPIPE ends the command.
//! 2. The error output is not part of the result: losing it changes nothing.
//! 3. A name from outside (of a file, in a trace) cannot control the terminal: control characters
//!    other than line breaks and tabs are shown as escapes, `\u{1b}`.
//! 4. `println!` and `eprintln!` print one line, whatever it contains: a line break in a name is
//!    shown as `\n`, too. Texts of several lines go through `print!` and `eprint!`.

use std::borrow::Cow;
use std::fmt::{Arguments, Display};
use std::io::{self, Write};

/// As the standard library's, by [`result`].
macro_rules! print {
    ($($text:tt)*) => { $crate::say::result(format_args!($($text)*)) };
}

/// As the standard library's, by [`result`]; one line (4).
macro_rules! println {
    () => { $crate::say::result(format_args!("\n")) };
    ($($text:tt)*) => { $crate::say::result(format_args!("{}\n", $crate::say::line(format_args!($($text)*)))) };
}

/// As the standard library's, by [`beside`].
macro_rules! eprint {
    ($($text:tt)*) => { $crate::say::beside(format_args!($($text)*)) };
}

/// As the standard library's, by [`beside`]; one line (4).
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::say::beside(format_args!("{}\n", $crate::say::line(format_args!($($text)*)))) };
}

/// Prints to the standard output.
pub(crate) fn result(text: Arguments<'_>) {
    ended_by(io::stdout().write_all(shown(&text.to_string()).as_bytes()));
}

/// Flushes the standard output. Must be called at the end of the command, since the standard
/// library tells nobody when that fails.
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
    though_nobody_reads(|| io::stderr().write_all(shown(&text.to_string()).as_bytes()));
}

/// Runs `write`, which writes to the error output. A reader of that output that went away does not
/// end the command, either (2).
fn though_nobody_reads(write: impl FnOnce() -> io::Result<()>) {
    // SAFETY: sets the action of a signal; a result written meanwhile fails with an error (1).
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let _ = write();
    // SAFETY: as above, back to what `main` has set.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Ends the command with the parser's text in place of arguments. Help and the version are results;
/// everything else goes to the error output.
pub(crate) fn parsers(error: &clap::Error) -> ! {
    if !error.use_stderr() {
        ended_by(error.print());
        finish();
    } else if let Cow::Owned(text) = shown(&error.render().to_string()) {
        beside(format_args!("{text}"));
    } else {
        // In colours, if the terminal has any.
        though_nobody_reads(|| error.print());
    }
    std::process::exit(error.exit_code())
}

/// A text as one line (4).
pub(crate) fn line(text: Arguments<'_>) -> String {
    in_one_line(&text.to_string()).into_owned()
}

/// A number of things: `1 event`, `2 events`.
pub(crate) fn counted(count: impl TryInto<u64> + Display + Copy, one: &str) -> String {
    let plural = if count.try_into().is_ok_and(|count| count == 1) { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// A text without control characters, including line breaks: for a name within a line.
pub(crate) fn in_one_line(text: &str) -> Cow<'_, str> {
    without(text, char::is_control)
}

/// A text of several lines, by rule 3.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    without(text, |c| c.is_control() && c != '\n' && c != '\t')
}

fn without(text: &str, is_command: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        match is_command(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_command_the_terminal() {
        let name = "a\u{1b}[31m\u{9b}1m\r\tb\nc µ";
        assert_eq!(shown(name), "a\\u{1b}[31m\\u{9b}1m\\r\tb\nc µ");
        assert_eq!(in_one_line(name), "a\\u{1b}[31m\\u{9b}1m\\r\\tb\\nc µ");
        assert_eq!(line(format_args!("{name} {}", 1)), "a\\u{1b}[31m\\u{9b}1m\\r\\tb\\nc µ 1");
    }

    #[test]
    fn one_is_no_plural() {
        let told = [0_u64, 1, 2].map(|count| counted(count, "event"));
        assert_eq!(told, ["0 events", "1 event", "2 events"]);
        assert_eq!(counted(1_usize, "chunk"), "1 chunk");
    }
}
