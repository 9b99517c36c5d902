//! How a report leaves the command: table, JSON, CSV, Markdown, HTML.

pub(crate) mod export;
pub(crate) mod html;
pub(crate) mod place;
pub(crate) mod table;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::report::Report;
use place::Kind;

/// Where a measuring verb writes its results besides the table. No two files go to the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) files: Files,
}

/// The files. One named `-` is the standard output; the table then goes to the error output.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Files {
    /// Write the record as JSON (schema 1; `-` is standard output, as for the others)
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Json))]
    pub(crate) json: Option<PathBuf>,
    /// Write the rows as CSV
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Csv))]
    pub(crate) csv: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Markdown))]
    pub(crate) markdown: Option<PathBuf>,
    /// Write an HTML report (one file, works offline)
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Html))]
    pub(crate) report: Option<PathBuf>,
}

impl Files {
    fn named(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [
            ("--json", &self.json),
            ("--csv", &self.csv),
            ("--markdown", &self.markdown),
            ("--report", &self.report),
        ];
        all.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)))
    }

    /// The first two files that would be written to the same place.
    fn clash(&self) -> Option<String> {
        let named: Vec<_> =
            self.named().filter(|(_, path)| *path != Path::new("/dev/null")).collect();
        named.iter().enumerate().find_map(|(nth, (later, path))| {
            let same = |earlier: &Path| place::resolved(earlier) == place::resolved(path);
            let (first, _) = named[..nth].iter().find(|(_, earlier)| same(earlier))?;
            let place = match place::is_standard_output(path) {
                true => "the standard output".to_owned(),
                false => path.display().to_string(),
            };
            Some(format!("{first} and {later} cannot both be written to {place}: give one a file"))
        })
    }
}

impl Args for Outputs {
    fn augment_args(command: Command) -> Command {
        Files::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Files::augment_args_for_update(command)
    }
}

impl FromArgMatches for Outputs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut outputs = Self::default();
        outputs.update_from_arg_matches(matches)?;
        Ok(outputs)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.files.update_from_arg_matches(matches)?;
        match self.files.clash() {
            Some(why) => Err(clap::Error::raw(ErrorKind::ArgumentConflict, why)),
            None => Ok(()),
        }
    }
}

impl Outputs {
    /// Writes every file asked for, then prints the table of `report`. A reader that closes the
    /// pipe after a few lines must not cost us the files, nor a full disk the table.
    ///
    /// # Errors
    /// When a file cannot be written; its name is in the message.
    pub(crate) fn deliver(&self, report: &Report) -> anyhow::Result<()> {
        let written = self.write(report);
        self.tell(&table::text(report));
        written
    }

    /// The first option given that asks for a file.
    pub(crate) fn first(&self) -> Option<&'static str> {
        self.files.named().next().map(|(option, _)| option)
    }

    /// Prints text for people.
    pub(crate) fn tell(&self, text: &str) {
        if self.files.named().any(|(_, path)| place::is_standard_output(path)) {
            eprint!("{text}");
        } else {
            print!("{text}");
        }
    }

    /// Writes every file asked for, even if another cannot be written.
    ///
    /// # Errors
    /// When a file cannot be written; its name is in the message.
    pub(crate) fn write(&self, report: &Report) -> anyhow::Result<()> {
        let Files { json, csv, markdown, report: page } = &self.files;
        let written = [
            write_file(json.as_deref(), || export::json(report)),
            write_file(csv.as_deref(), || Ok(export::csv(report))),
            write_file(markdown.as_deref(), || Ok(table::markdown(report))),
            write_file(page.as_deref(), || html::page(std::slice::from_ref(report))),
        ];
        let errors: Vec<_> = written.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() {
            return Ok(());
        }
        let errors: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
        bail!("{}", errors.join("; "))
    }
}

fn write_file(
    path: Option<&Path>,
    text: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    put(path, text()?.as_bytes())
}

/// Writes a file and says so.
///
/// # Errors
/// When it cannot be written; its name is in the message.
pub(crate) fn put(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if place::is_standard_output(path) {
        let mut out = std::io::stdout().lock();
        let written = out.write_all(content).and_then(|()| out.flush());
        return written.context("writing to the standard output");
    }
    let done = place::done(path);
    place::replace(path, |new| Ok(std::fs::write(new, content)?))
        .with_context(|| format!("writing {}", path.display()))?;
    eprintln!("{done} {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        outputs: Outputs,
    }

    #[test]
    fn a_file_that_cannot_be_written_costs_no_other() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let (full, fine) = (PathBuf::from("/dev/full"), scratch.path().join("fine.csv"));
        let files = Files { json: Some(full), csv: Some(fine.clone()), ..Files::default() };
        let error = Outputs { files }.write(&Report::new("x")).unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
        assert!(fine.is_file());
    }

    #[test]
    fn two_files_at_one_place_are_refused() {
        let parse = |arguments: &[&str]| {
            Cli::try_parse_from([&["x"], arguments].concat()).map(|cli| cli.outputs.files)
        };
        let refused = |arguments: &[&str]| parse(arguments).unwrap_err().to_string();
        let message = refused(&["--json", "-", "--csv", "-"]);
        assert!(message.contains("--json and --csv cannot both be written to the standard output"));
        let message = refused(&["--json", "/dev/stdout", "--csv", "-"]);
        assert!(message.contains("--json and --csv cannot both be written to the standard output"));
        let message = refused(&["--markdown", "no-such.file", "--report", "no-such.file"]);
        assert!(message.contains("--markdown and --report") && message.contains("no-such.file"));
        let message = refused(&["--json", "no-such.file", "--csv", "./no-such.file"]);
        assert!(message.contains("--json and --csv"));
        let files = parse(&["--json", "-", "--csv", "/dev/null", "--report", "/dev/null"]).unwrap();
        assert!(files.json.is_some() && files.report.is_some() && files.markdown.is_none());
    }
}
