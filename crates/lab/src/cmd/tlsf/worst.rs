//! The states that make each call take its longest path, and random states besides.
//!
//! The longest paths are known from the code: lists that become empty together with their row, both
//! neighbours free, a search that leaves its row, a probe of a list in which only the last block
//! looked at is large enough. Random work finds what this list overlooked.

use std::hint::black_box;
use std::ptr::NonNull;

use hectare_tlsf::{Growing, GrowthPolicy, Rows, Tlsf};

use super::step::Marker;

/// The calls that are distinguished, in the order of the labels.
pub(super) const CALLS: [&str; 10] = [
    "malloc",
    "malloc, refused",
    "free",
    "memalign",
    "memalign, refused",
    "realloc, in place",
    "realloc, moving",
    "malloc + get_mem",
    "free + put_mem",
    "nothing",
];

const MALLOC: usize = 0;
const MALLOC_REFUSED: usize = 1;
pub(super) const FREE: usize = 2;
const MEMALIGN: usize = 3;
pub(super) const MEMALIGN_REFUSED: usize = 4;
const REALLOC_IN_PLACE: usize = 5;
const REALLOC_MOVING: usize = 6;
const MALLOC_GROWING: usize = 7;
const FREE_SHRINKING: usize = 8;
/// What the marks themselves cost.
pub(super) const NOTHING: usize = 9;

/// Blocks larger than this are not resized.
const MOST_COPIED_BYTES: usize = 100;

/// A heap under test with its marked calls.
struct Subject<'a, R: Rows> {
    heap: &'a mut Tlsf<R>,
    marker: &'a Marker,
}

impl<R: Rows> Subject<'_, R> {
    fn malloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = black_box(bytes);
        let label = |block: &Option<_>| if block.is_some() { MALLOC } else { MALLOC_REFUSED };
        self.marker.count_by(label, || black_box(self.heap.malloc(bytes)))
    }

    fn free(&mut self, ptr: NonNull<u8>) {
        let ptr = black_box(ptr);
        // SAFETY: the callers own the block.
        let freed = self.marker.count(FREE, || unsafe { self.heap.free(ptr) });
        freed.expect("a block of the heap");
    }

    fn free_unmarked(&mut self, ptr: NonNull<u8>) {
        // SAFETY: the callers own the block.
        unsafe { self.heap.free(ptr) }.expect("a block of the heap");
    }

    fn memalign(&mut self, align: usize, bytes: usize) -> Option<NonNull<u8>> {
        let (align, bytes) = black_box((align, bytes));
        let label = |block: &Option<_>| if block.is_some() { MEMALIGN } else { MEMALIGN_REFUSED };
        self.marker.count_by(label, || black_box(self.heap.memalign(align, bytes)))
    }

    fn realloc(&mut self, ptr: NonNull<u8>, bytes: usize, label: usize) -> Option<NonNull<u8>> {
        let (ptr, bytes) = black_box((ptr, bytes));
        // SAFETY: the callers own the block.
        let new = self.marker.count(label, || unsafe { self.heap.realloc(ptr, 16, bytes) });
        new.expect("a block of the heap")
    }
}

/// Drives every call of `heap` into its worst states. The heap has its pools; it is empty before
/// and after. `largest_bytes` is about a quarter of the largest pool.
pub(super) fn drive<R: Rows>(heap: &mut Tlsf<R>, largest_bytes: usize, marker: &Marker) {
    marker.count(NOTHING, || ());
    let mut subject = Subject { heap, marker };
    beside_a_victim(&mut subject);
    let sizes = [1, 100, 1000, 4000, largest_bytes / 8, largest_bytes / 3];
    for &size in &sizes {
        for &neighbour in &sizes {
            neighbours(&mut subject, size, neighbour);
        }
    }
    probing(&mut subject, largest_bytes);
    refused(&mut subject);
    random(&mut subject, largest_bytes);
}

/// The longest search and split. The only block that serves the request lies in a list of the
/// bitmap's next word; the victim would serve it, too, but is larger. The rest that is cut off that
/// block is nearly unwanted, so its list is examined. The rest becomes the victim, and the old
/// victim goes to a list. Both lists, and their words, were empty or become so. This comes first,
/// since the peak must rise, too.
fn beside_a_victim<R: Rows>(subject: &mut Subject<'_, R>) {
    const GRANULE: usize = 16;
    const ALIGN: usize = 8192;
    // The bitmap's words of either width end at 256 granules.
    let cases = [
        (270, None, 249 * GRANULE - GRANULE),
        // The block begins a granule before an aligned address: too little for a block before it.
        (269, Some(64), 245 * GRANULE - GRANULE),
    ];
    for (case, (granules, align, bytes)) in cases.into_iter().enumerate() {
        // Each case uses more than the one before.
        let mut live = Vec::new();
        live.extend((0..8 * case).filter_map(|_| subject.heap.malloc(1000)));
        // The smallest blocks, one of them a granule longer, up to where `granules` are left before
        // an aligned address.
        let least = Tlsf::<R>::MIN_BLOCK_BYTES;
        let mut block_bytes = least;
        while let Some(block) = subject.heap.malloc(block_bytes - Tlsf::<R>::HEADER_BYTES) {
            live.push(block);
            let behind = block.addr().get() + block_bytes;
            let missing = (behind + granules * GRANULE).wrapping_neg() % ALIGN;
            if missing == 0 {
                break;
            }
            block_bytes = least + missing % least;
        }
        live.extend(subject.heap.memalign(ALIGN, 1));
        live.extend(match align {
            None => subject.malloc(bytes),
            Some(align) => subject.memalign(align, bytes),
        });
        for block in live {
            subject.free_unmarked(block);
        }
    }
}

/// Free and realloc of a block between two others. Each neighbour is either used or free; a free
/// one is alone in its list and row, or first, or in the middle.
fn neighbours<R: Rows>(subject: &mut Subject<'_, R>, size: usize, neighbour: usize) {
    for company in 0..3 {
        for free_before in [false, true] {
            for free_after in [false, true] {
                let Some(blocks) = row_of_blocks(subject, size, neighbour) else { return };
                let [before, block, after, fence] = blocks;
                let mut others: Vec<_> =
                    (0..company).filter_map(|_| pair(subject, neighbour)).collect();
                let mut released = Vec::new();
                if company == 2 {
                    released.extend(others.pop());
                }
                for (freed, _) in &released {
                    subject.free(*freed);
                }
                if free_before {
                    subject.free(before);
                }
                if free_after {
                    subject.free(after);
                }
                for (freed, _) in &others {
                    subject.free(*freed);
                }
                // A block that moves is copied. Keep the copy short, since it is not what is
                // measured.
                let block = if size <= MOST_COPIED_BYTES {
                    let may_move =
                        if free_before || free_after { REALLOC_IN_PLACE } else { REALLOC_MOVING };
                    let grown = subject.realloc(block, size + neighbour, may_move).unwrap_or(block);
                    subject.realloc(grown, size, REALLOC_IN_PLACE).unwrap_or(grown)
                } else {
                    block
                };
                subject.free(block);
                if !free_before {
                    subject.free(before);
                }
                if !free_after {
                    subject.free(after);
                }
                for (_, kept) in others.into_iter().chain(released) {
                    subject.free(kept);
                }
                subject.free(fence);
            }
        }
    }
}

/// Four blocks in a row: neighbour, block, neighbour, fence.
fn row_of_blocks<R: Rows>(
    subject: &mut Subject<'_, R>,
    size: usize,
    neighbour: usize,
) -> Option<[NonNull<u8>; 4]> {
    let mut blocks = Vec::new();
    for bytes in [neighbour, size, neighbour, 1] {
        match subject.malloc(bytes) {
            Some(block) => blocks.push(block),
            None => break,
        }
    }
    <[_; 4]>::try_from(blocks).map_or_else(
        |blocks| {
            blocks.into_iter().for_each(|block| subject.free(block));
            None
        },
        Some,
    )
}

/// A block, and one after it that keeps it from merging.
fn pair<R: Rows>(subject: &mut Subject<'_, R>, bytes: usize) -> Option<(NonNull<u8>, NonNull<u8>)> {
    let block = subject.malloc(bytes)?;
    match subject.malloc(1) {
        Some(fence) => Some((block, fence)),
        None => {
            subject.free(block);
            None
        }
    }
}

/// Requests that only the list of their own size can serve, at each position that is examined, and
/// one that it cannot serve.
fn probing<R: Rows>(subject: &mut Subject<'_, R>, largest_bytes: usize) {
    let base = (largest_bytes / 8).max(2048);
    let larger = base + base / 48;
    for place in 0..6 {
        let mut blocks = Vec::new();
        for number in 0..6 {
            blocks.extend(pair(subject, if number == place { larger } else { base }));
        }
        let mut fill = Vec::new();
        for bytes in (0..usize::BITS).rev().map(|log2| 1usize << log2) {
            while fill.len() < 4096 {
                match subject.heap.malloc(bytes) {
                    Some(block) => fill.push(block),
                    None => break,
                }
            }
        }
        for (block, _) in blocks.iter().rev() {
            subject.free(*block);
        }
        for bytes in [base + 16, larger] {
            if let Some(block) = subject.malloc(bytes) {
                subject.free(block);
            }
            if let Some(block) = subject.memalign(64, base - 256) {
                subject.free(block);
            }
        }
        for block in fill.into_iter().chain(blocks.into_iter().map(|(_, fence)| fence)) {
            subject.free_unmarked(block);
        }
    }
}

/// Refusals for each reason.
fn refused<R: Rows>(subject: &mut Subject<'_, R>) {
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 45, 1 << 39] {
        assert_eq!(subject.malloc(bytes), None);
        assert_eq!(subject.memalign(4096, bytes), None);
    }
}

/// Random work: every call counted.
fn random<R: Rows>(subject: &mut Subject<'_, R>, largest_bytes: usize) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut live = Vec::new();
    let size = |random: &mut fastrand::Rng| {
        let log2 = random.u32(0..=largest_bytes.ilog2());
        random.usize(0..=1 << log2)
    };
    for _ in 0..4_000 {
        match random.u32(0..8) {
            0..=2 => live.extend(subject.malloc(size(&mut random))),
            3 => {
                let align = 1 << random.u32(5..=12);
                live.extend(subject.memalign(align, size(&mut random)));
            }
            4..=6 if !live.is_empty() => {
                let block = live.swap_remove(random.usize(..live.len()));
                subject.free(block);
            }
            7 if !live.is_empty() => {
                // Small, so that little is copied, since the copy is not what is measured.
                if let Some(block) = subject.malloc(random.usize(1..40)) {
                    let grown = random.usize(40..400);
                    live.push(subject.realloc(block, grown, REALLOC_MOVING).unwrap_or(block));
                }
            }
            _ => {}
        }
    }
    for block in live {
        subject.free(block);
    }
}

/// The calls that take a region from the system or give one back. The kernel's part of a system
/// call is not counted; the page source's part is.
pub(super) fn drive_growth(marker: &Marker) {
    let policy = GrowthPolicy { region_bytes: 64 << 10, keep_free_bytes: 0 };
    let mut heap: Growing<_> = Growing::new(hectare_pages::Os, policy);
    for round in 0..200usize {
        let bytes = black_box(40_000 + 100 * (round % 100));
        let block = marker.count(MALLOC_GROWING, || black_box(heap.malloc(bytes)));
        let second = marker.count(MALLOC_GROWING, || black_box(heap.malloc(bytes)));
        for block in [block, second].into_iter().flatten() {
            // SAFETY: allocated just above.
            let freed = marker.count(FREE_SHRINKING, || unsafe { heap.free(block) });
            freed.expect("a block of the heap");
        }
    }
}
