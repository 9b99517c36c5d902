//! Parses `--seeds`.

use crate::list;

/// The most seeds accepted: more than any contest could go through.
const MOST: usize = 10_000;

/// Seeds of a workload, each once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seeds(pub(super) Vec<u64>);

/// Reads `1-20` or `3,7,10-12`.
///
/// # Errors
/// Names the part that is no seed and no range, is a repetition, or is too much.
pub(super) fn parse(text: &str) -> Result<Seeds, String> {
    let number = |word: &str| {
        let seed = word.trim().parse::<u64>();
        seed.map_err(|_| format!("`{word}` is no seed: write them like 7, 1-20 or 3,7,10-12"))
    };
    let mut seeds: Vec<u64> = Vec::new();
    for part in text.split(',') {
        let range = list::range(part, number)?;
        if range.end() - range.start() >= (MOST - seeds.len()) as u64 {
            return Err(format!("with `{part}` they are more than {MOST}"));
        }
        if let Some(twice) = seeds.iter().find(|&seed| range.contains(seed)) {
            return Err(format!("{twice} is given twice"));
        }
        seeds.extend(range);
    }
    Ok(Seeds(seeds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_ranges_are_read_in_their_order() {
        let read = |text| parse(text).map(|seeds| seeds.0);
        assert_eq!(read("7"), Ok(vec![7]));
        assert_eq!(read("1-20"), Ok((1..=20).collect()));
        assert_eq!(read("9,1-3, 5-5"), Ok(vec![9, 1, 2, 3, 5]));
        assert_eq!(read("0,18446744073709551615"), Ok(vec![0, u64::MAX]));
        assert_eq!(read("1-10000").map(|seeds| seeds.len()), Ok(MOST));
    }

    #[test]
    fn what_is_no_seed_is_told() {
        for (text, part) in [
            ("5-1", "`5-1` ends before it begins"),
            ("x", "`x` is no seed"),
            ("", "`` is no seed"),
            ("1,", "`` is no seed"),
            ("-3", "`` is no seed"),
            ("1-2-3", "`2-3` is no seed"),
            ("18446744073709551616", "is no seed"),
            ("1-5,3", "3 is given twice"),
            ("3,1-5", "3 is given twice"),
            ("0-18446744073709551615", "more than 10000"),
            ("1-10000,10001", "with `10001` they are more than 10000"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
