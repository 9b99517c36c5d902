//! The state of each page, as in the kernel's `block_state`.

use std::fmt;
use std::time::Duration;

/// Where a page's content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// One word fills it: it takes no memory.
    SameFilled,
    /// Compressed.
    Compressed {
        /// The bytes that it takes in the pool.
        bytes: usize,
        /// The number of its codec in [`Config::codecs`](crate::Config::codecs).
        codec: usize,
        /// Whether it is stored once for several pages.
        shared: bool,
    },
    /// Kept as it is, because it does not get smaller.
    Raw,
    /// In the file.
    WrittenBack,
}

/// What [`Store::for_each_page`](crate::Store::for_each_page) says about a page. Its `Display` is a
/// line of the kernel's `block_state`: key, time, and a letter for each property that holds:
/// `s`ame-filled, `w`ritten back, `h`uge (raw), `i`dle, `r`ecompressed, i`n`compressible by every
/// codec tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageState {
    /// Which page.
    pub key: usize,
    /// When it was last put or got, since the store was made.
    pub touched: Duration,
    /// Where it is.
    pub kind: PageKind,
    /// Whether it has not been touched since [`Store::tend`](crate::Store::tend) was last called.
    pub is_idle: bool,
    /// Whether stronger codecs were tried in vain.
    pub is_incompressible: bool,
}

impl fmt::Display for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |holds: bool, letter: char| if holds { letter } else { '.' };
        let is_recompressed = matches!(self.kind, PageKind::Compressed { codec, .. } if codec > 0);
        write!(
            f,
            "{:12} {:12}.{:06} {}{}{}{}{}{}",
            self.key,
            self.touched.as_secs(),
            self.touched.subsec_micros(),
            letter(self.kind == PageKind::SameFilled, 's'),
            letter(self.kind == PageKind::WrittenBack, 'w'),
            letter(self.kind == PageKind::Raw, 'h'),
            letter(self.is_idle, 'i'),
            letter(is_recompressed, 'r'),
            letter(self.is_incompressible, 'n'),
        )
    }
}
