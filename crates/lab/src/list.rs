//! Lists on the command line. Every option that takes a list takes it in the same way: values
//! separated by commas, or the option given several times. If all values are of one form the parser
//! divides them (`value_delimiter`); this module divides lists whose values have commas of their
//! own.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::bail;

use crate::cmd::Exit;

/// Files. A value that names an existing file is that file, whatever commas its name has.
pub(crate) fn files(given: &[PathBuf]) -> Vec<PathBuf> {
    let divided = |value: &PathBuf| -> Vec<PathBuf> {
        let bytes = value.as_os_str().as_bytes();
        if value.exists() || !bytes.contains(&b',') {
            return vec![value.clone()];
        }
        let parts = bytes.split(|&byte| byte == b',').filter(|part| !part.is_empty());
        parts.map(|part| OsStr::from_bytes(part).into()).collect()
    };
    given.iter().flat_map(divided).collect()
}

/// Names with parameters, `NAME:key=value,key=value`. A part that is `key=value` alone belongs to
/// the name before it.
pub(crate) fn with_parameters(given: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in given.iter().flat_map(|value| value.split(',')).filter(|part| !part.is_empty()) {
        match names.last_mut() {
            Some(name) if part.contains('=') && !part.contains(':') => {
                name.push(',');
                name.push_str(part);
            }
            _ => names.push(part.to_owned()),
        }
    }
    names
}

/// Reads a number, or a range of numbers as `2-5`, by the reader of one number.
///
/// # Errors
/// Those of the reader, and when a range ends before it begins.
pub(crate) fn range<T: PartialOrd>(
    part: &str,
    number: impl Fn(&str) -> Result<T, String>,
) -> Result<RangeInclusive<T>, String> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (number(first)?, number(last)?);
    if last < first {
        return Err(format!("`{part}` ends before it begins: write it like 2-5"));
    }
    Ok(first..=last)
}

/// Refuses a list with a repeated value: its figures would appear twice under one name.
///
/// # Errors
/// When a value is repeated. `option` is in the message.
pub(crate) fn refuse_twice<T: PartialEq + Display>(option: &str, list: &[T]) -> anyhow::Result<()> {
    match list.iter().enumerate().find(|&(nth, value)| list[..nth].contains(value)) {
        Some((_, value)) => bail!(Exit::misused(format!("{option}: {value} is given twice"))),
        None => Ok(()),
    }
}

/// Refuses a list in which a file is repeated, by whatever names.
///
/// # Errors
/// When one is.
pub(crate) fn refuse_same_files(files: &[PathBuf]) -> anyhow::Result<()> {
    let resolved = |file: &PathBuf| match file.as_os_str() == "-" {
        true => "/dev/stdin".into(),
        false => file.canonicalize().unwrap_or_else(|_| file.clone()),
    };
    let places: Vec<PathBuf> = files.iter().map(resolved).collect();
    match (1..files.len()).find(|&nth| places[..nth].contains(&places[nth])) {
        Some(nth) => bail!(Exit::misused(format!("{} is given twice", files[nth].display()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn files_are_divided_unless_a_file_has_the_whole_name() {
        let scratch = Scratch::new().unwrap();
        let whole = scratch.path().join("a,b.hxt");
        std::fs::write(&whole, "").unwrap();
        let given = [whole.clone(), "c,d".into(), "e".into(), "f,".into()];
        let expected: Vec<PathBuf> = vec![whole, "c".into(), "d".into(), "e".into(), "f".into()];
        assert_eq!(files(&given), expected);
    }

    #[test]
    fn a_file_is_known_by_its_other_names() {
        let scratch = Scratch::new().unwrap();
        let (file, link) = (scratch.path().join("a"), scratch.path().join("b"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let other = scratch.path().join("c");
        assert!(refuse_same_files(&[file.clone(), other.clone()]).is_ok());
        let refused = refuse_same_files(&[file.clone(), other, link]).unwrap_err().to_string();
        assert!(refused.ends_with("b is given twice"), "{refused}");
        assert!(refuse_same_files(&["-".into(), "-".into()]).is_err());
        assert!(refuse_same_files(&["no".into(), "no".into()]).is_err(), "though it is not there");
    }

    #[test]
    fn parameters_stay_with_their_name() {
        let given = ["xv,zs:chain=1,step=4,dense".to_owned(), "dense:compact=0".to_owned()];
        assert_eq!(
            with_parameters(&given),
            ["xv", "zs:chain=1,step=4", "dense", "dense:compact=0"]
        );
        assert_eq!(with_parameters(&["step=4".to_owned(), "x,".to_owned()]), ["step=4", "x"]);
    }
}
