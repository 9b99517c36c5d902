//! The settings of a pool, and which values they can have.

use core::fmt;

/// A setting has a value that its pool does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfRange {
    setting: Setting,
    value: usize,
}

/// A setting by its name, and the values that it can have: the numbers of this kind from `least` to
/// `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) least: usize,
    pub(crate) most: usize,
    pub(crate) kind: Kind,
}

/// Which of the numbers within its range a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Any,
    PowerOfTwo,
    MultipleOf(usize),
}

impl Setting {
    pub(crate) fn check(self, value: usize) -> Result<(), OutOfRange> {
        let is_of_kind = match self.kind {
            Kind::Any => true,
            Kind::PowerOfTwo => value.is_power_of_two(),
            Kind::MultipleOf(step) => value.is_multiple_of(step),
        };
        let fits = (self.least..=self.most).contains(&value) && is_of_kind;
        if fits { Ok(()) } else { Err(OutOfRange { setting: self, value }) }
    }
}

/// Panics if a pool does not take the pages of its source: offsets in a page have 16 bits.
pub(crate) fn check_pages(pool: &str, page_bytes: usize, least: usize) {
    let most = 1 << 16;
    let pages = Setting { name: "page_bytes", least, most, kind: Kind::PowerOfTwo };
    if let Err(wrong) = pages.check(page_bytes) {
        panic!("{pool}: the source's {wrong}");
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { name, least, most, kind } = self.setting;
        write!(f, "`{name}` is {}; it can be ", self.value)?;
        match kind {
            Kind::Any => f.write_str("a number")?,
            Kind::PowerOfTwo => f.write_str("a power of two")?,
            Kind::MultipleOf(step) => write!(f, "a multiple of {step}")?,
        }
        write!(f, " from {least} to {most}")
    }
}

impl core::error::Error for OutOfRange {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use crate::{Limits, ZsConfig};

    #[test]
    fn a_value_out_of_range_is_named_with_what_it_can_be() {
        let zs = ZsConfig::for_page_bytes(4096);
        let dense = Limits::new();
        assert_eq!((zs.check(4096), dense.check(4096)), (Ok(()), Ok(())));
        let told = [
            ZsConfig { chain_pages: 65, ..zs }.check(4096),
            ZsConfig { class_step_bytes: 7, ..zs }.check(4096),
            ZsConfig { class_step_bytes: 4100, ..zs }.check(4096),
            Limits { area_bytes: 3 << 20, ..dense }.check(4096),
            Limits { area_bytes: 16 << 10, ..dense }.check(8192),
            Limits { max_pieces: 0, ..dense }.check(4096),
            Limits { shards: 32, ..dense }.check(4096),
            Limits { compact_percent: 101, ..dense }.check(4096),
        ]
        .map(|checked| checked.expect_err("it is out of range").to_string());
        assert_eq!(
            told,
            [
                "`chain_pages` is 65; it can be a number from 1 to 64",
                "`class_step_bytes` is 7; it can be a multiple of 4 from 4 to 4096",
                "`class_step_bytes` is 4100; it can be a multiple of 4 from 4 to 4096",
                "`area_bytes` is 3145728; it can be a power of two from 16384 to 2147483648",
                "`area_bytes` is 16384; it can be a power of two from 32768 to 2147483648",
                "`max_pieces` is 0; it can be a number from 1 to 16",
                "`shards` is 32; it can be a power of two from 1 to 16",
                "`compact_percent` is 101; it can be a number from 0 to 100",
            ]
        );
    }
}
