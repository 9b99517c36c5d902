//! The record that every measuring verb produces: schema 1.
//!
//! `{"schema":1,"verb":…,"command":…,"parameters":{…},"machine":{…},"rows":[…],"notes":[…]}`. A row
//! names its subject and its workload; every other figure is a number whose name ends in its unit
//! (`alloc_ns`, `peak_bytes`, `time_ratio`). Series for plots are in `series`.
//!
//! In every form of a report, figures are in the order in which the verb gave them.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, bail};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::input;
use crate::machine::Machine;

/// The version of the schema written.
pub(crate) const SCHEMA: u32 = 1;

/// One report of one verb.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Always [`SCHEMA`].
    pub(crate) schema: u32,
    /// The verb that made the report (`compare`, `bench tlsf`, …).
    pub(crate) verb: String,
    /// The command line that reproduces the report.
    pub(crate) command: String,
    /// What the rows have in common.
    pub(crate) parameters: IndexMap<String, Value>,
    /// The machine of the measurement.
    pub(crate) machine: Machine,
    /// The figures.
    pub(crate) rows: Vec<Row>,
    /// Lines for plots over time or size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) series: Vec<Series>,
    /// What a reader must know: warnings, what could not be controlled, results of the controls.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
}

/// One row: a subject on a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The allocator.
    pub(crate) subject: String,
    /// The trace, program or workload.
    pub(crate) workload: String,
    /// Figures (numbers, short texts); the unit is the last word of the name.
    #[serde(flatten)]
    pub(crate) figures: IndexMap<String, Value>,
}

/// One line of a plot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    /// The plot it belongs to (`resident over time`, …).
    pub(crate) plot: String,
    /// The allocator, or `live`, `ideal`, …
    pub(crate) subject: String,
    /// The trace, program or workload.
    pub(crate) workload: String,
    /// What the x axis shows, unit last (`time_ms`).
    pub(crate) x_name: String,
    /// What the y axis shows, unit last (`resident_bytes`).
    pub(crate) y_name: String,
    /// The points.
    pub(crate) points: Vec<[f64; 2]>,
}

impl Report {
    /// An empty report of `verb`, for the machine and the command line of this process.
    pub(crate) fn new(verb: &str) -> Self {
        Self {
            schema: SCHEMA,
            verb: verb.to_owned(),
            command: command_line(),
            parameters: IndexMap::new(),
            machine: Machine::probe(),
            rows: Vec::new(),
            series: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When the file cannot be read, or is no record of this schema.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = input::whole(path)?;
        let value: Value = serde_json::from_slice(&text).with_context(|| {
            format!("{name} is not JSON (`--json` of a measuring verb writes it)")
        })?;
        match value.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema == u64::from(SCHEMA) => {}
            Some(schema) => bail!("{name} has schema {schema}; this command reads schema {SCHEMA}"),
            None => bail!("{name} is no record of hectare: it has no `schema`"),
        }
        serde_json::from_value(value).with_context(|| format!("{name} is not a whole record"))
    }

    /// Notes one parameter.
    pub(crate) fn parameter(&mut self, name: &str, value: impl Into<Value>) {
        self.parameters.insert(name.to_owned(), value.into());
    }

    /// The name of the subject that ratios are relative to.
    pub(crate) fn reference(&self) -> Option<&str> {
        self.parameters.get("reference").and_then(Value::as_str)
    }
}

impl Row {
    /// A row without figures.
    pub(crate) fn new(subject: impl Into<String>, workload: impl Into<String>) -> Self {
        Self { subject: subject.into(), workload: workload.into(), figures: IndexMap::new() }
    }

    /// The same row with one more figure.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    /// Whether the row's subject broke. Its earlier runs may not be compared then.
    pub(crate) fn is_broken(&self) -> bool {
        self.figures.contains_key("broken")
    }

    /// Whether the row's subject is a control: it only shows how far the figures can be trusted.
    pub(crate) fn is_control(&self) -> bool {
        matches!(self.text("role"), Some("again" | "planted"))
    }

    /// A figure that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.figures.get(name).and_then(Value::as_f64)
    }

    /// A figure that is a text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.figures.get(name).and_then(Value::as_str)
    }
}

/// The rows of each workload, in the order in which the workloads first appear.
pub(crate) fn by_workload<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
) -> IndexMap<&'a str, Vec<&'a Row>> {
    let mut workloads: IndexMap<&str, Vec<&Row>> = IndexMap::new();
    for row in rows {
        workloads.entry(&row.workload).or_default().push(row);
    }
    workloads
}

/// The names of all figures of `rows` that are a number or a text, in the order in which the rows
/// give them. A name that only later rows have comes before the name that follows it there, or
/// last.
pub(crate) fn columns<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<&'a str> {
    let mut columns: Vec<&str> = Vec::new();
    for row in rows {
        let mut place = columns.len();
        for (name, _) in row.figures.iter().rev().filter(|(_, value)| is_flat(value)) {
            match columns.iter().position(|column| column == name) {
                Some(known) => place = known,
                None => columns.insert(place, name),
            }
        }
    }
    columns
}

/// Whether a figure fits into one cell; lists and records are left to JSON.
fn is_flat(value: &Value) -> bool {
    !value.is_array() && !value.is_object()
}

/// This process's command line as one would type it.
fn command_line() -> String {
    let mut words = vec!["hectare".to_owned()];
    words.extend(std::env::args_os().skip(1).map(|word| typed(&word)));
    words.join(" ")
}

/// A word as one would type it. Bytes that are no text, which the record cannot hold, become
/// `$'\377'`, as bash and zsh read them.
fn typed(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    match word.to_str() {
        Some(word) if !word.is_empty() && word.chars().all(plain) => word.to_owned(),
        Some(word) => format!("'{}'", word.replace('\'', r"'\''")),
        None => {
            let mut typed = "$'".to_owned();
            for chunk in word.as_encoded_bytes().utf8_chunks() {
                typed += &chunk.valid().replace('\\', r"\\").replace('\'', r"\'");
                typed.extend(chunk.invalid().iter().map(|byte| format!(r"\{byte:03o}")));
            }
            typed + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_word_is_what_a_shell_makes_of_it_as_typed() {
        let shell = |word: &OsStr| {
            let script = format!("printf %s {}", typed(word));
            std::process::Command::new("bash").args(["-c", &script]).output().unwrap().stdout
        };
        for bytes in
            [&b"plain"[..], b"", b"it's", b"a b\n\\c", b"/a\xff7", b"it's \\n \xc3\xa4\xc3"]
        {
            let word = OsStr::from_bytes(bytes);
            assert_eq!(shell(word), bytes, "{word:?}: {}", typed(word));
        }
        assert_eq!(typed(OsStr::new("/a.b")), "/a.b");
    }

    #[test]
    fn columns_stand_as_the_rows_give_them() {
        let first = Row::new("a", "w").with("put_ns", 1).with("get_ns", 2).with("runs", vec![1]);
        let second = Row::new("b", "w")
            .with("mode", "x")
            .with("put_ns", 1)
            .with("both_ns", 3)
            .with("get_ns", 2)
            .with("broken", "no");
        assert_eq!(columns([&first, &second]), ["mode", "put_ns", "both_ns", "get_ns", "broken"]);
        let json = serde_json::to_string(&second).unwrap();
        let again: Row = serde_json::from_str(&json).unwrap();
        assert_eq!(columns([&again]), ["mode", "put_ns", "both_ns", "get_ns", "broken"]);
    }
}
