//! The record that every measuring verb gives: schema 1.
//!
//! `{"schema":1,"verb":…,"command":…,"parameters":{…},"machine":{…},"rows":[…],"notes":[…]}`.
//! A row names its subject and its workload; every other figure is a number whose name ends in its
//! unit (`alloc_ns`, `peak_bytes`, `time_ratio`). Series for plots stand in `series`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::Machine;

/// The version of the schema written.
pub(crate) const SCHEMA: u32 = 1;

/// One report of one verb.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Always [`SCHEMA`].
    pub(crate) schema: u32,
    /// The verb that made it (`compare`, `bench tlsf`, …).
    pub(crate) verb: String,
    /// The command line that makes it again.
    pub(crate) command: String,
    /// What the rows have in common.
    pub(crate) parameters: BTreeMap<String, Value>,
    /// Where it was measured.
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
    /// Figures (numbers, short texts), the unit the last word of the name.
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<String, Value>,
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
    /// What is to the right, unit last (`time_ms`).
    pub(crate) x_name: String,
    /// What is upwards, unit last (`resident_bytes`).
    pub(crate) y_name: String,
    /// The points.
    pub(crate) points: Vec<[f64; 2]>,
}

impl Report {
    /// An empty report of `verb`, measured here and now, made by this process's command line.
    pub(crate) fn new(verb: &str) -> Self {
        Self {
            schema: SCHEMA,
            verb: verb.to_owned(),
            command: command_line(),
            parameters: BTreeMap::new(),
            machine: Machine::probe(),
            rows: Vec::new(),
            series: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Notes one parameter.
    pub(crate) fn parameter(&mut self, name: &str, value: impl Into<Value>) {
        self.parameters.insert(name.to_owned(), value.into());
    }
}

impl Row {
    /// A row without figures.
    pub(crate) fn new(subject: impl Into<String>, workload: impl Into<String>) -> Self {
        Self { subject: subject.into(), workload: workload.into(), figures: BTreeMap::new() }
    }

    /// The same with one figure more.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    /// A figure that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.figures.get(name).and_then(Value::as_f64)
    }
}

/// This process's command line as one would type it.
fn command_line() -> String {
    let mut words = vec!["hectare".to_owned()];
    for word in std::env::args_os().skip(1) {
        let word = word.to_string_lossy().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            words.push(word);
        } else {
            words.push(format!("'{}'", word.replace('\'', r"'\''")));
        }
    }
    words.join(" ")
}
