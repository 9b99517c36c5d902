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
    }
}
