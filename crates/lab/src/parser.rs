//! How the command line is read, and what the command says if it cannot be read.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};

use crate::Cli;
use crate::say::in_one_line;

/// Verbs whose contests never run a program: options for programs are refused there, and not shown.
const WITHOUT_PROGRAMS: [&str; 2] = ["replay", "bench"];

/// The command line; or the parser's text in its place: help, the version, or what is wrong.
///
/// # Errors
/// When there is such a text.
pub(crate) fn parsed() -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    parsed_from(&words).map_err(|error| {
        // The message quotes the words as they were typed. A word with a line break would look like
        // more lines of the message, so the message is made again from the words as they are shown.
        let shown: Vec<OsString> = words
            .iter()
            .map(|word| in_one_line(&word.to_string_lossy()).into_owned().into())
            .collect();
        let is_plain = shown == words || error.kind() == ErrorKind::InvalidUtf8;
        let again = if is_plain { None } else { parsed_from(&shown).err() };
        again.unwrap_or(error)
    })
}

fn parsed_from(words: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = whole();
    refuse_unknown_verb(&mut command, words)?;
    let matches = command
        .try_get_matches_from_mut(words)
        .map_err(|error| with_word(error, words))
        .map_err(with_way_out)?;
    Cli::from_arg_matches(&matches).map_err(|error| {
        // The message ends with the usage of the verb.
        let verb = matches.subcommand_name().and_then(|name| command.find_subcommand_mut(name));
        match verb {
            Some(verb) => error.format(verb),
            None => error.format(&mut command),
        }
    })
}

/// The whole command line that the command understands.
fn whole() -> Command {
    with_negative_values(Cli::command()).mut_subcommands(|verb| {
        match WITHOUT_PROGRAMS.contains(&verb.get_name()) {
            true => verb.mut_arg("ignore_failure", |argument| argument.hide(true)),
            false => verb,
        }
    })
}

/// The part of it that users are shown: hidden verbs and options are for the command itself.
pub(crate) fn shown() -> Command {
    shown_of(&whole())
}

fn shown_of(command: &Command) -> Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    // The parser takes only names that live as long as the process.
    let name: &'static str = command.get_name().to_owned().leak();
    let mut shown = Command::new(name).args(arguments.cloned()).subcommands(verbs.map(shown_of));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown
}

/// Makes the parser take `-5` for a value, so that its message says which values there are.
/// Otherwise it would take it for an option, and advise to put it after `--`.
pub(crate) fn with_negative_values(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let takes_value = arg.get_action().takes_values();
            arg.allow_negative_numbers(takes_value)
        })
        .mut_subcommands(with_negative_values)
}

/// Refuses a first word that is no verb. Without a verb the command takes the arguments of
/// `compare`, so the parser would complain of an unexpected argument instead.
fn refuse_unknown_verb(command: &mut Command, words: &[OsString]) -> Result<(), clap::Error> {
    let Some(word) = words.get(1) else { return Ok(()) };
    let is_option = word.as_encoded_bytes().starts_with(b"-");
    if is_option || word == "help" || command.find_subcommand(word).is_some() {
        return Ok(());
    }
    let word = word.to_string_lossy();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs: Vec<&str> = verbs.map(|verb| verb.get_name()).collect();
    let hint = if word.ends_with(".hxt") {
        format!("A trace stands after one, as in `hectare replay {word}`")
    } else {
        format!("A program stands after `--`, as in `hectare compare -- {word}`")
    };
    let message = format!("there is no verb `{word}`; there are: {}. {hint}", verbs.join(", "));
    Err(command.error(ErrorKind::InvalidSubcommand, message))
}

/// Adds which word had to be text: the parser says only that there is one. Paths and programs may
/// have any bytes, so among several words that are no text the culprit is one that is refused even
/// alone.
fn with_word(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return error;
    }
    let is_refused = |&nth: &usize| {
        let mut alone: Vec<OsString> =
            words.iter().map(|word| word.to_string_lossy().into_owned().into()).collect();
        alone[nth].clone_from(&words[nth]);
        let refused = whole().try_get_matches_from_mut(alone).err();
        refused.is_some_and(|error| error.kind() == ErrorKind::InvalidUtf8)
    };
    let wrong = (0..words.len()).filter(|&nth| words[nth].to_str().is_none()).find(is_refused);
    if let Some(nth) = wrong {
        let tip =
            format!("{:?} must be text: only paths and programs may have any bytes", words[nth]);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Adds the remedy to the error if a program was given without `--`, which many other commands do
/// not need.
fn with_way_out(mut error: clap::Error) -> clap::Error {
    let takes_program =
        (error.get(ContextKind::Usage)).is_some_and(|usage| usage.to_string().contains("<CMD>"));
    if error.kind() == ErrorKind::UnknownArgument
        && takes_program
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && !word.starts_with('-')
    {
        let tip = if word.ends_with(".hxt") {
            format!("a trace is measured by 'hectare replay {word}'")
        } else {
            format!("a program stands after '--', as in '-- {word}'")
        };
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}
