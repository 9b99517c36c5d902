//! How a report leaves the command: table, JSON, CSV, Markdown, HTML.
