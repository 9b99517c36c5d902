//! JSON and CSV.

use serde_json::Value;

use crate::report::{Report, columns};

/// The record itself.
///
/// # Errors
/// Never for a report made by this command.
pub(crate) fn json(report: &Report) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// One line per row. The columns are `subject`, `workload` and every figure that any row has. Lists
/// and records inside rows are left to JSON.
pub(crate) fn csv(report: &Report) -> String {
    let columns = columns(&report.rows);
    let mut text = String::from("subject,workload");
    for column in &columns {
        text.push(',');
        text.push_str(&quoted(column));
    }
    text.push('\n');
    for row in &report.rows {
        text.push_str(&quoted(&row.subject));
        text.push(',');
        text.push_str(&quoted(&row.workload));
        for column in &columns {
            text.push(',');
            match row.figures.get(*column) {
                None | Some(Value::Null | Value::Array(_) | Value::Object(_)) => {}
                Some(Value::String(word)) => text.push_str(&quoted(word)),
                // A whole number is written as an integer in every form.
                Some(value) => {
                    let number = value.to_string();
                    text.push_str(number.strip_suffix(".0").unwrap_or(&number));
                }
            }
        }
        text.push('\n');
    }
    text
}

/// A field, quoted according to RFC 4180.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn csv_quotes_and_leaves_gaps() {
        let mut report = Report::new("test");
        report.rows.push(Row::new("a,b", "w").with("time_ns", 1.5).with("runs", vec![1, 2]));
        report.rows.push(Row::new("c", "w").with("why", "said \"no\""));
        assert_eq!(
            csv(&report),
            "subject,workload,time_ns,why\n\"a,b\",w,1.5,\nc,w,,\"said \"\"no\"\"\"\n"
        );
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let mut report = Report::new("test");
        report.rows.push(Row::new("a", "w").with("time_ns", 1.5));
        let again: Report = serde_json::from_str(&json(&report).unwrap()).unwrap();
        assert_eq!(again.schema, crate::report::SCHEMA);
        assert_eq!(again.rows[0].number("time_ns"), Some(1.5));
    }
}
