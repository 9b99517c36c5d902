//! What documents say twice they say alike.

use std::path::Path;

fn read(document: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// The table of a document whose first column is headed `allocator`, and the noise floor told with it.
fn main_job(document: &str) -> (Vec<String>, String) {
    let text = read(document);
    let lines = text.lines().skip_while(|line| !line.starts_with("| allocator | time / glibc |"));
    let table = lines.take_while(|line| line.starts_with('|')).map(str::to_owned).collect();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let noise = words.split_once("±").expect(document).1;
    let noise = noise.split_once(" in memory").expect(document).0;
    (table, noise.to_owned())
}

#[test]
fn the_main_jobs_table_is_the_same_in_both_documents() {
    let (readme, evaluation) = (main_job("README.md"), main_job("docs/evaluation.md"));
    assert!(readme.0.len() > 10 && readme.1.contains(" % in time"), "{readme:?}");
    assert_eq!(readme, evaluation);
}
