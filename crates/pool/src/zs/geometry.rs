//! Size classes and the chains of pages that they are cut from.

/// Every object, except one with a page to itself, starts with 8 bytes that name its cell.
pub(super) const HEADER: usize = 8;
pub(super) const MIN_CLASS: usize = 32;

/// How one class cuts its zspages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bytes from one object to the next.
    pub(super) size_bytes: usize,
    /// Pages of a zspage.
    pub(super) pages: usize,
    /// Objects of a zspage.
    pub(super) objects: usize,
}

impl Geometry {
    /// The chain of at most `max_chain` pages that leaves the least unused at its end.
    ///
    /// With equal waste the shorter chain wins. A power of two never straddles a page, and takes
    /// one page.
    pub(super) fn of(size_bytes: usize, page_bytes: usize, max_chain: usize) -> Self {
        let chain = |pages: usize| pages * page_bytes % size_bytes;
        let pages = if size_bytes.is_power_of_two() {
            1
        } else {
            (1..=max_chain).min_by_key(|&pages| chain(pages)).unwrap_or(1)
        };
        Self { size_bytes, pages, objects: pages * page_bytes / size_bytes }
    }

    /// Whether an object has a page to itself: then its header is in the zspage's descriptor.
    #[inline]
    pub(super) const fn is_huge(self) -> bool {
        self.pages == 1 && self.objects == 1
    }

    /// Bytes of an object that its owner cannot use.
    #[inline]
    pub(super) const fn header_bytes(self) -> usize {
        if self.is_huge() { 0 } else { HEADER }
    }

    /// Whether both can share zspages: if so, the larger size serves both.
    fn is_like(self, other: Self) -> bool {
        self.pages == other.pages && self.objects == other.objects
    }
}

/// Goes through the size steps from the largest down and calls `each` with the step's number and
/// its geometry, which is that of the next larger step if the two can share zspages.
pub(super) fn for_each_step(
    page_bytes: usize,
    step_bytes: usize,
    max_chain: usize,
    mut each: impl FnMut(usize, Geometry),
) {
    let steps = step_count(page_bytes, step_bytes);
    let mut larger: Option<Geometry> = None;
    for step in (0..steps).rev() {
        let size_bytes = (MIN_CLASS + step * step_bytes).min(page_bytes);
        let own = Geometry::of(size_bytes, page_bytes, max_chain);
        let geometry = larger.filter(|&larger| larger.is_like(own)).unwrap_or(own);
        larger = Some(geometry);
        each(step, geometry);
    }
}

/// How many size steps there are.
pub(super) const fn step_count(page_bytes: usize, step_bytes: usize) -> usize {
    (page_bytes - MIN_CLASS).div_ceil(step_bytes) + 1
}

/// The step that serves an object of `size_bytes`.
#[inline]
pub(super) const fn step_of(size_bytes: usize, step_bytes: usize, steps: usize) -> usize {
    let step = (size_bytes + HEADER).saturating_sub(MIN_CLASS).div_ceil(step_bytes);
    if step < steps { step } else { steps - 1 }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn classes(max_chain: usize) -> Vec<Geometry> {
        let mut all = Vec::new();
        for_each_step(4096, 16, max_chain, |_, geometry| all.push(geometry));
        all.dedup();
        all.reverse();
        all
    }

    /// From the zsmalloc documentation's table of classes at a chain of 8 (`pages_per_zspage`).
    #[test]
    fn chains_are_the_kernels() {
        let all = classes(8);
        for (size, pages) in [(1536, 3), (1632, 2), (2048, 1), (3264, 4), (3632, 8), (4096, 1)] {
            let found = all.iter().find(|class| class.size_bytes == size);
            assert_eq!(found.map(|class| class.pages), Some(pages), "class of {size} bytes");
        }
        assert!(all.last().is_some_and(|class| class.is_huge()));
    }

    /// The size from which on an object has a page to itself: 3264 at a chain of 4, 3632 at 8, 3840
    /// at 16 (zsmalloc's documentation).
    #[test]
    fn the_last_class_that_shares_is_the_kernels() {
        for (chain, watermark) in [(4, 3264), (8, 3632), (16, 3840)] {
            let all = classes(chain);
            let largest = all.iter().rev().find(|class| !class.is_huge());
            assert_eq!(largest.map(|class| class.size_bytes), Some(watermark));
        }
    }

    #[test]
    fn steps_share_zspages_exactly_where_these_are_alike() {
        for (page_bytes, step_bytes, max_chain) in [(4096, 16, 8), (4096, 4, 1), (1 << 16, 256, 64)]
        {
            let mut larger = None;
            for_each_step(page_bytes, step_bytes, max_chain, |step, geometry| {
                let size_bytes = (MIN_CLASS + step * step_bytes).min(page_bytes);
                let own = Geometry::of(size_bytes, page_bytes, max_chain);
                assert_eq!((geometry.pages, geometry.objects), (own.pages, own.objects));
                let is_new = larger != Some((own.pages, own.objects));
                assert_eq!(geometry.size_bytes == size_bytes, is_new, "{size_bytes} bytes");
                larger = Some((own.pages, own.objects));
            });
        }
    }

    #[test]
    fn every_size_finds_room() {
        for step_bytes in [4, 8, 16, 64] {
            let steps = step_count(4096, step_bytes);
            let mut geometries = Vec::new();
            for_each_step(4096, step_bytes, 8, |_, geometry| geometries.push(geometry));
            geometries.reverse();
            for size in 1..=4096 {
                let geometry = geometries[step_of(size, step_bytes, steps)];
                assert!(geometry.size_bytes - geometry.header_bytes() >= size, "{size}");
            }
        }
    }
}
