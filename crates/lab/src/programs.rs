//! A file that names programs to be measured, one a line.
//!
//! ```text
//!  # a comment
//!  json: python3 -c 'import json; json.loads("[" + "1," * 999999 + "1]")'
//!  sort: sort --parallel=1 words.txt
//! ```
//! The words are divided as a shell divides them. No other feature of a shell is available
//! (`sh -c '…'` has them all).

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use crate::contest::analysis::ALL_CASES;
use crate::input;

/// One line of such a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name in tables.
    pub(crate) name: String,
    /// The program with its arguments.
    pub(crate) command: Vec<OsString>,
}

/// The programs that the file at `path` names, in its order.
///
/// # Errors
/// When the file cannot be read, names no program, or has a line that names none. The message says
/// which line.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Program>> {
    let bytes = input::whole(path)?;
    let text = str::from_utf8(&bytes)
        .with_context(|| format!("{}: a list of programs is a text in UTF-8", path.display()))?;
    let programs = parse(text).with_context(|| path.display().to_string())?;
    ensure!(
        !programs.is_empty(),
        "{}: it names no program (`NAME: CMD…`, one a line)",
        path.display()
    );
    Ok(programs)
}

fn parse(text: &str) -> anyhow::Result<Vec<Program>> {
    let mut names = HashSet::new();
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| {
            let program = program(line).with_context(|| format!("line {}", index + 1))?;
            ensure!(
                names.insert(program.name.clone()),
                "line {}: a second `{}`",
                index + 1,
                program.name
            );
            Ok(program)
        })
        .collect()
}

fn program(line: &str) -> anyhow::Result<Program> {
    // (Blanks at the end have been trimmed: without a command nothing follows the colon.)
    let alone = || Some((line.strip_suffix(':')?, ""));
    let Some((name, command)) = line.split_once(": ").or_else(alone) else {
        bail!("`{line}` has no name: it takes the form `NAME: CMD…`");
    };
    let name = name.trim_end();
    ensure!(!name.is_empty(), "a name is missing before the `:`");
    ensure!(name != ALL_CASES, "`{ALL_CASES}` is the name of the mean over all programs");
    let words = shell_words::split(command)
        .with_context(|| format!("`{command}` cannot be divided into words"))?;
    ensure!(!words.is_empty(), "`{name}` has no command");
    Ok(Program { name: name.to_owned(), command: words.into_iter().map(OsString::from).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    #[test]
    fn words_are_divided_as_a_shell_does() {
        let text = "# all\n\n  two words: sh -c 'a \"b\"  c' d\\ e \"\"\nsort: sort -k 2: x\n";
        let expected = |name: &str, command: &[&str]| Program {
            name: name.to_owned(),
            command: command.iter().map(OsString::from).collect(),
        };
        let programs = parse(text).unwrap();
        assert_eq!(
            programs,
            [
                expected("two words", &["sh", "-c", "a \"b\"  c", "d e", ""]),
                expected("sort", &["sort", "-k", "2:", "x"]),
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, part) in [
            ("a: b\n\nsort x\n", "line 3: `sort x` has no name"),
            ("a: b\na: c\n", "line 2: a second `a`"),
            (": b\n", "line 1: a name is missing"),
            (":\n", "line 1: a name is missing"),
            ("a: \n", "line 1: `a` has no command"),
            ("a:\n", "line 1: `a` has no command"),
            ("all: b\n", "line 1: `all` is the name of the mean"),
            ("a: 'b\n", "line 1: `'b` cannot be divided into words"),
        ] {
            let told = refused(text);
            assert!(told.contains(part), "{told}");
        }
        assert!(parse("# nothing\n").unwrap().is_empty());
    }
}
