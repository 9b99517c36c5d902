//! Numbers on the command line, with the range in which they make sense.

use std::fmt::Display;
use std::str::FromStr;

/// A parser for the command line: a whole number from `low` to `high`.
pub(crate) fn within<T>(low: T, high: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Copy,
{
    move |text| match text.parse::<T>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("it can be a whole number from {low} to {high}")),
    }
}

/// As [`within`], but refuses only what is no number at all: the caller can say more about a number
/// outside the range.
pub(crate) fn number<T>(low: T, high: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Copy,
{
    let parse = within(low, high);
    move |text| text.parse().or_else(|_| parse(text))
}

/// The largest number that a process can have.
pub(crate) const MOST_PID: u32 = i32::MAX as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_is_refused_with_the_range() {
        let parse = within(1_usize, 12);
        assert_eq!((parse("1"), parse("12")), (Ok(1), Ok(12)));
        for text in ["0", "13", "18446744073709551616", "-1", "x", ""] {
            assert_eq!(parse(text), Err("it can be a whole number from 1 to 12".to_owned()));
        }
        let parse = number(1_u8, 12);
        assert_eq!((parse("1"), parse("13")), (Ok(1), Ok(13)));
        for text in ["-1", "x", "256"] {
            assert_eq!(parse(text), Err("it can be a whole number from 1 to 12".to_owned()));
        }
    }
}
