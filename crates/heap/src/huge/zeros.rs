//! Whether the program fills the zeros that it asks for.
//!
//! The zeros may be the room of a sparse table, each page of which should cost a page when it is
//! touched. Or all of them may be written, which takes eight times as long page by page as in huge
//! pages. So the first block comes page by page, and what became of the last block decides for the
//! next. If the last block came page by page, most of it must be resident. If it came in huge
//! pages, all of it is resident, and most must be set. A block is looked at when it is freed; and
//! while it is in use, when the next is asked for: then only for whether it is filled, since it may
//! yet be.

use core::num::NonZero;
use core::ptr::NonNull;

use hectare_base::align::align_down;
use hectare_pages::PageSource;

use super::HugeBlock;
use crate::region::{FRAME_BYTES, Probe, Step};

/// What is known of zeros: nothing, if all zeros.
#[derive(Debug)]
pub(super) struct Zeros {
    /// Where the last block of zeros begins, and whether it came in huge pages.
    last: Option<NonNull<u8>>,
    is_last_huge: bool,
    are_filled: bool,
}

impl Zeros {
    pub(super) const fn new() -> Self {
        Self { last: None, is_last_huge: false, are_filled: false }
    }

    /// Where the last block of zeros that was taken began.
    pub(super) fn last(&self) -> Option<NonNull<u8>> {
        self.last
    }

    /// Whether zeros that are asked for now are likely to be filled. `last` is the last block of
    /// zeros, if it is in use.
    pub(super) fn will_be_filled(
        &mut self,
        last: Option<HugeBlock>,
        source: &impl PageSource,
    ) -> bool {
        // A block came in huge pages because others were filled, and says nothing before it is
        // freed.
        if let Some(block) = last.filter(|_| !self.is_last_huge) {
            self.are_filled |= is_full(block, false, source);
        }
        self.are_filled
    }

    /// Notes that zeros were taken at `start`, in huge pages or not.
    pub(super) fn note_taken(&mut self, start: NonNull<u8>, is_huge: bool) {
        (self.last, self.is_last_huge) = (Some(start), is_huge);
    }

    /// Probes `block` if it is the last block of zeros. Its owner has given it up.
    pub(super) fn probe(&mut self, block: HugeBlock, source: &impl PageSource) {
        if self.last == Some(block.start) {
            self.last = None;
            self.are_filled = is_full(block, self.is_last_huge, source);
        }
    }
}

/// Whether most of `block` is resident. If it came `in_huge_pages`: whether most of it is set, too.
fn is_full(block: HugeBlock, in_huge_pages: bool, source: &impl PageSource) -> bool {
    let is_filled = |word| is_there(word, source) && (!in_huge_pages || is_set(word, source));
    let frames = block.committed_bytes / FRAME_BYTES;
    let step = if in_huge_pages { Step::EighthPage } else { Step::Page };
    Probe::of(block.start, frames).is_full(step, &is_filled)
}

/// Whether the page of `word` holds memory.
#[inline(never)]
fn is_there(word: NonNull<u8>, source: &impl PageSource) -> bool {
    let start = |address: NonZero<usize>| align_down(address.get(), source.page_bytes());
    let page = word.map_addr(|address| NonZero::new(start(address)).unwrap_or(address));
    source.is_resident(page) == Some(true)
}

/// Whether `word` is not zero. Asks the system, since the owner may have protected the word, and
/// left it so.
fn is_set(word: NonNull<u8>, source: &impl PageSource) -> bool {
    source.is_zero(word.cast()) == Some(false)
}

#[cfg(test)]
mod tests {
    use hectare_pages::Os;

    use super::super::{Contents, Huge, MIN_HUGE_BYTES};
    use super::*;

    /// Takes zeros, and writes each page up to `written_bytes`. Returns them, and whether they came
    /// in huge pages.
    fn take(huge: &mut Huge, written_bytes: usize) -> (NonNull<u8>, bool) {
        let (start, is_zero) = huge.get(MIN_HUGE_BYTES, 1, Contents::Zeros, &Os).expect("memory");
        for at in (0..written_bytes).step_by(FRAME_BYTES) {
            // SAFETY: within the block just taken.
            let place = unsafe { start.add(at) };
            // SAFETY: as above.
            assert_eq!(unsafe { place.read() }, 0);
            // SAFETY: as above.
            unsafe { place.write(1) };
        }
        assert!(is_zero);
        (start, huge.zeros.is_last_huge)
    }

    #[test]
    fn zeros_are_huge_where_those_freed_last_were_filled() {
        let mut huge = Huge::new();
        let most = MIN_HUGE_BYTES / 4 * 3;
        for (turn, (written_bytes, is_huge)) in [
            (FRAME_BYTES, false),
            (MIN_HUGE_BYTES / 2, false),
            (most, false),
            (most, true),
            (MIN_HUGE_BYTES / 2, true),
            (0, false),
        ]
        .into_iter()
        .enumerate()
        {
            let (start, came_huge) = take(&mut huge, written_bytes);
            assert_eq!(came_huge, is_huge, "turn {turn}");
            huge.put(start, &Os).expect("a block");
        }
    }

    #[test]
    fn zeros_are_huge_where_those_taken_last_are_filled() {
        let mut huge = Huge::new();
        let blocks = [(FRAME_BYTES, false), (MIN_HUGE_BYTES, false), (0, true), (0, true)].map(
            |(written_bytes, is_huge)| {
                let (start, came_huge) = take(&mut huge, written_bytes);
                assert_eq!(came_huge, is_huge);
                start
            },
        );
        for (block, are_filled) in [(blocks[0], true), (blocks[3], false)] {
            huge.put(block, &Os).expect("a block");
            assert_eq!(huge.zeros.are_filled, are_filled, "only the last one says anything");
        }
        for block in &blocks[1..3] {
            huge.put(*block, &Os).expect("a block");
        }
    }
}
