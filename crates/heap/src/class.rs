//! Size classes: which object serves a request of a given size.
//!
//! ```text
//!   16 32 … 128 │ 144 160 … 256 │ … │ 576 … 1024 │ 1040 1152 … 2048 │ 2112 … 4096 │ 4368 … 32768
//!   steps of 16   eight steps to each doubling     a slab's 63, 56, … 32nd, 31st, … 16th, 15th, … part
//! ```
//! Up to 8 KiB at most 12.5 % of an object is waste. Above 1 KiB a class is as large as it can be
//! without fewer objects in a slab, in whole cache lines. Sizes just above a power of two (a
//! program's page with a header before it) would otherwise be the worst of all requests. They have
//! classes to themselves, as large as they can be to the last 16 bytes.
//!
//! All objects of a class lie in slabs of [`SLAB_BYTES`], each aligned to its size. The first
//! object lies at the slab's start, so the low bits of an address are its offset in the slab.

use hectare_base::align::{align_down, align_up};

/// The size and the alignment of a slab in bytes.
pub(crate) const SLAB_BYTES: usize = 1 << 16;

/// The largest request that an object of a size class serves, in bytes; above it, whole pages.
pub const MAX_SMALL_BYTES: usize = 32 * 1024;

/// The least alignment of every object, in bytes: what `max_align_t` asks on x86-64 and AArch64.
pub const MIN_ALIGN: usize = 16;

/// More than any value that a [`ClassId`] can have. Some of these values stand for other states of
/// a page. (One is unused: `stand_in.rs` needs as many.)
pub const STATES: usize = 68;

/// How many size classes there are.
pub(crate) const CLASSES: usize = 64;

const _: () = assert!((ClassId::GIVEN_UP.0 as usize) < STATES);

/// A size class, or another state of a page in the page map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct ClassId(u8);

impl ClassId {
    /// The page holds no object's start.
    pub(crate) const NONE: Self = Self(0);
    /// The page is the first of a run: a large object, or a freed run that a thread keeps.
    pub(crate) const RUN: Self = Self(CLASSES as u8 + 1);
    /// The page belongs to a given-up slab. The slab's descriptor tells the class.
    pub(crate) const GIVEN_UP: Self = Self(CLASSES as u8 + 2);

    /// Classes of which two threads with an object each are likely to share a cache line: their
    /// objects are smaller than two lines, and do not fill whole lines.
    pub(crate) const SHARING_LINES: [Self; 6] =
        [Self(1), Self(2), Self(3), Self(5), Self(6), Self(7)];

    /// The class whose objects serve `bytes`, at most [`MAX_SMALL_BYTES`].
    #[inline(always)]
    pub const fn for_bytes(bytes: usize) -> Self {
        Self(LOOKUP[bytes.div_ceil(MIN_ALIGN)])
    }

    /// The least class whose objects serve `bytes` and are all aligned to `align`, a power of two.
    /// `None` if there is none. O(classes), but mostly the first class that is looked at.
    pub(crate) fn for_aligned(bytes: usize, align: usize) -> Option<Self> {
        if bytes > MAX_SMALL_BYTES || align > MAX_SMALL_BYTES {
            return None;
        }
        // If all objects of a class are aligned, its size is a multiple of the alignment.
        let first = Self::for_bytes(align_up(bytes.max(1), align));
        (first.0..=CLASSES as u8).map(Self).find(|class| class.is_aligned(align))
    }

    /// As [`for_aligned`](Self::for_aligned), for any `align`, if the first class looked at will
    /// do. Otherwise, or if `align` is no power of two or `bytes` is 0, `None`.
    #[inline(always)]
    pub(crate) fn for_aligned_at_once(bytes: usize, align: usize) -> Option<Self> {
        let low_bits = align.wrapping_sub(1);
        // One less than `bytes` rounded up to a multiple of the alignment. If either is 0, more
        // than any size.
        let last = bytes.wrapping_sub(1) | low_bits;
        if align & low_bits != 0 || last >= MAX_SMALL_BYTES {
            return None;
        }
        let class = Self(LOOKUP[last / MIN_ALIGN + 1]);
        class.is_aligned(align).then_some(class)
    }

    /// The next class, of larger objects; `None` if it is the last.
    pub(crate) fn next(self) -> Option<Self> {
        (self.0 < CLASSES as u8).then(|| Self(self.0 + 1))
    }

    /// Whether all its objects are aligned to `align`, a power of two.
    pub(crate) const fn is_aligned(self, align: usize) -> bool {
        self.object_bytes() & (align - 1) == 0
    }

    /// Whether an object of this class that is to hold `bytes` stays where it is. Growing within
    /// the object is free, and shrinking pays only if it saves half.
    #[inline]
    pub(crate) const fn keeps(self, bytes: usize) -> bool {
        let object_bytes = self.object_bytes();
        bytes <= object_bytes && (bytes > object_bytes / 2 || Self::for_bytes(bytes).0 == self.0)
    }

    /// All size classes, the smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=CLASSES as u8).map(Self)
    }

    /// What the page map's byte says.
    ///
    /// # Safety
    /// `byte` came from [`byte`](Self::byte).
    #[inline(always)]
    pub(crate) const unsafe fn from_byte(byte: u8) -> Self {
        // SAFETY: every value of the type is less than STATES, and so is what it came from.
        unsafe { promise_state(byte as usize) };
        Self(byte)
    }

    /// The byte that stands for this state in the page map.
    #[inline(always)]
    pub(crate) const fn byte(self) -> u8 {
        self.0
    }

    /// Its place in an array of [`STATES`] entries.
    #[inline(always)]
    pub const fn index(self) -> usize {
        let index = self.0 as usize;
        // SAFETY: every value of the type is less than STATES: NONE, one of `CLASSES` classes,
        // RUN, GIVEN_UP.
        unsafe { promise_state(index) };
        index
    }

    /// Whether it is a size class.
    pub(crate) const fn is_small(self) -> bool {
        self.0 != Self::NONE.0 && self.0 <= CLASSES as u8
    }

    /// The size of an object in bytes; 0 if this is no size class.
    #[inline(always)]
    pub const fn object_bytes(self) -> usize {
        SIZES[self.index()] as usize
    }

    /// How many objects a slab has; 0 if this is no size class.
    pub(crate) const fn objects(self) -> usize {
        if self.is_small() { SLAB_BYTES / self.object_bytes() } else { 0 }
    }

    /// Whether its objects have pages of their own, which a program may never touch: they are 8 KiB
    /// or longer.
    pub(crate) const fn is_of_pages(self) -> bool {
        self.object_bytes() >= SLAB_BYTES / 8
    }

    /// Whether it is one of [`SHARING_LINES`](Self::SHARING_LINES).
    pub(crate) const fn shares_lines(self) -> bool {
        self.object_bytes() < 2 * LINE_BYTES && !self.object_bytes().is_multiple_of(LINE_BYTES)
    }

    /// ⌈2³² / object bytes⌉, which turns the division of an offset in a slab into a multiplication.
    /// The result is exact, since offset × (error of the reciprocal) < 2¹⁶ × 2¹⁵. (Lemire, Kaser
    /// and Kurz, "Faster remainder by direct computation", 2019.) 0 if this is no size class.
    pub(crate) const fn reciprocal(self) -> u32 {
        if self.is_small() { (1u64 << 32).div_ceil(self.object_bytes() as u64) as u32 } else { 0 }
    }

    /// The most objects that pass between a thread and a pool at once.
    pub const fn batch(self) -> usize {
        BATCHES[self.index()] as usize
    }

    /// Whether an object has room, behind its link and mark, for the addresses of all others of its
    /// batch.
    pub(crate) const fn notes_members(self) -> bool {
        self.object_bytes() / size_of::<usize>() > self.batch()
    }

    /// How many bytes a batch has.
    pub(crate) const fn batch_bytes(self) -> usize {
        self.batch() * self.object_bytes()
    }
}

/// Promises the compiler that `index` stands for a value of [`ClassId`].
///
/// # Safety
/// `index < STATES`
#[inline(always)]
const unsafe fn promise_state(index: usize) {
    if cfg!(debug_assertions) {
        // (Core's own check of a promise adds its text to each module that makes one.)
        if index >= STATES {
            no_state();
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::hint::assert_unchecked(index < STATES) };
    }
}

#[cold]
#[inline(never)]
const fn no_state() -> ! {
    panic!("no state of a page");
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// How many bytes a [batch](ClassId::batch) holds. What is walked over then stays in the
/// first-level cache.
pub(crate) const BATCH_BYTES: usize = 8 * 1024;
/// A batch of large objects holds more bytes: at least this many objects, unless they are too long.
/// Otherwise a program that has a few more of them, then a few less, would leave its list at every
/// second call.
pub(crate) const LEAST_OBJECTS: usize = 8;
pub(crate) const LONG_BATCH_BYTES: usize = 32 * 1024;
/// The most objects of a batch. They fill whole lines if objects share lines, and a byte can count
/// them.
pub(crate) const BATCH_OBJECTS: usize = 252;

/// [`ClassId::object_bytes`] of each class. (A constant would be in the library once for each
/// module that reads it.)
static SIZES: [u16; STATES] = sizes();

/// [`ClassId::batch`] of each class. If objects share lines, a batch fills whole lines.
const BATCHES: [u8; STATES] = {
    let mut batches = [BATCH_OBJECTS as u8; STATES];
    let mut class = 1;
    while class <= CLASSES {
        let bytes = SIZES[class] as usize;
        let least = min(LEAST_OBJECTS, LONG_BATCH_BYTES / bytes);
        let count = max(least, min(BATCH_OBJECTS, BATCH_BYTES / bytes));
        let beyond = if ClassId(class as u8).shares_lines() { count % LINE_ROW } else { 0 };
        batches[class] = (count - beyond) as u8;
        class += 1;
    }
    batches
};

/// [`ClassId::reciprocal`] of each class.
pub(crate) static RECIPROCALS: [u32; STATES] = {
    let mut reciprocals = [0; STATES];
    let mut class = 0;
    while class < STATES {
        reciprocals[class] = ClassId(class as u8).reciprocal();
        class += 1;
    }
    reciprocals
};

/// In a section of its own, so that a linker's script can choose its place (`crates/preload/cold.ld`).
// SAFETY: constants may lie in any section that is only read.
#[unsafe(link_section = ".rodata.hectare_lookup")]
static LOOKUP: [u8; MAX_SMALL_BYTES / MIN_ALIGN + 1] = lookup();

/// How many objects a slab of each class above 1 KiB and up to 8 KiB has.
const OBJECTS: [usize; 26] = [
    63, 56, 51, 46, 42, 39, 36, 34, 32, // up to 2 KiB
    31, 28, 25, 23, 21, 19, 18, 17, 16, // up to 4 KiB
    15, 14, 13, 12, 11, 10, 9, 8, // up to 8 KiB
];

/// The largest sizes, in whole pages except for the first two, since objects of whole pages are the
/// most frequent.
const LARGEST: [u16; 6] = [9216, 10240, 12288, 16384, 20480, 32768];

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// This many objects of any class fill whole lines, since sizes are multiples of a quarter of a
/// line.
pub(crate) const LINE_ROW: usize = LINE_BYTES / MIN_ALIGN;

const fn sizes() -> [u16; STATES] {
    let mut sizes = [0; STATES];
    let mut class = 1;
    let mut bytes = 16;
    while bytes <= 128 {
        sizes[class] = bytes;
        class += 1;
        bytes += 16;
    }
    let mut doubling = 128;
    while doubling < 1024 {
        let mut step = 1;
        while step <= 8 {
            sizes[class] = doubling + doubling / 8 * step;
            class += 1;
            step += 1;
        }
        doubling *= 2;
    }
    let mut i = 0;
    while i < OBJECTS.len() {
        let unit = if (OBJECTS[i] + 1).is_power_of_two() { MIN_ALIGN } else { LINE_BYTES };
        sizes[class] = align_down(SLAB_BYTES / OBJECTS[i], unit) as u16;
        class += 1;
        i += 1;
    }
    let mut i = 0;
    while i < LARGEST.len() {
        sizes[class] = LARGEST[i];
        class += 1;
        i += 1;
    }
    assert!(class == CLASSES + 1);
    sizes
}

const fn lookup() -> [u8; MAX_SMALL_BYTES / MIN_ALIGN + 1] {
    let mut table = [1; MAX_SMALL_BYTES / MIN_ALIGN + 1];
    let mut class = 1;
    let mut step = 1;
    while step < table.len() {
        if step * MIN_ALIGN > SIZES[class] as usize {
            class += 1;
        }
        table[step] = class as u8;
        step += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_gets_the_least_class_that_fits() {
        for bytes in 0..=MAX_SMALL_BYTES {
            let class = ClassId::for_bytes(bytes);
            assert!(class.is_small() && class.object_bytes() >= bytes, "{bytes}");
            let least = ClassId::all().find(|c| c.object_bytes() >= bytes);
            assert_eq!(Some(class), least, "{bytes}");
        }
    }

    #[test]
    fn batches_are_few_objects_or_few_bytes() {
        for class in ClassId::all() {
            let (count, object_bytes) = (class.batch(), class.object_bytes());
            assert!((1..=BATCH_OBJECTS).contains(&count), "{object_bytes}: {count}");
            assert!(count * object_bytes <= LONG_BATCH_BYTES, "{object_bytes}: {count}");
            let is_long = (count + 1) * object_bytes > LONG_BATCH_BYTES;
            assert!(count >= LEAST_OBJECTS || is_long, "{object_bytes}: {count}");
        }
    }

    #[test]
    fn classes_that_share_lines_are_listed() {
        let sharing = ClassId::all().filter(|class| class.shares_lines());
        assert!(sharing.eq(ClassId::SHARING_LINES));
    }

    #[test]
    fn waste_is_bounded() {
        for bytes in 129..=8192 {
            let object = ClassId::for_bytes(bytes).object_bytes();
            assert!((object - bytes) * 8 <= object, "{bytes} in {object}");
        }
    }

    #[test]
    fn reciprocals_divide_every_offset_exactly() {
        for class in ClassId::all() {
            let (object, reciprocal) = (class.object_bytes(), class.reciprocal());
            for offset in 0..SLAB_BYTES {
                let quotient = (offset as u64 * u64::from(reciprocal)) >> 32;
                assert_eq!(quotient as usize, offset / object);
                let divides = (offset as u32).wrapping_mul(reciprocal) < reciprocal;
                assert_eq!(divides, offset % object == 0, "{offset} by {object}");
            }
        }
    }

    #[test]
    fn aligned_requests_get_aligned_objects() {
        for align in (0..=15).map(|shift| 1usize << shift) {
            for bytes in (0..MAX_SMALL_BYTES).step_by(37) {
                let class = ClassId::for_aligned(bytes, align).expect("a class");
                let serves = |class: ClassId| {
                    class.object_bytes() >= bytes && class.object_bytes().is_multiple_of(align)
                };
                let least = (1..=CLASSES as u8).map(ClassId).find(|&class| serves(class));
                assert_eq!(Some(class), least, "{bytes} bytes aligned to {align}");
            }
        }
        assert_eq!(ClassId::for_aligned(16, 65536), None);
        assert_eq!(ClassId::for_aligned(MAX_SMALL_BYTES + 1, 16), None);
    }

    #[test]
    fn what_is_found_at_once_is_the_class_of_an_aligned_request() {
        for align in (0..=16).map(|shift| 1usize << shift) {
            for bytes in 1..=MAX_SMALL_BYTES + 1 {
                let class = ClassId::for_aligned(bytes, align);
                let at_once = ClassId::for_aligned_at_once(bytes, align);
                assert!(at_once.is_none() || at_once == class, "{bytes} bytes aligned to {align}");
                // The same holds for any request that programs are likely to make.
                let is_usual = align <= 64 && bytes <= 2048 || bytes == align;
                assert!(!is_usual || at_once == class, "{bytes} bytes aligned to {align}");
            }
        }
        let (most, high) = (usize::MAX, 1 << (usize::BITS - 1));
        let none = [
            (0, 16),
            (0, 1),
            (16, 0),
            (0, 0),
            (most, 16),
            (16, high),
            (most, high),
            (16, 24),
            (16, most),
        ];
        for (bytes, align) in none {
            assert_eq!(ClassId::for_aligned_at_once(bytes, align), None, "{bytes}, {align}");
        }
    }
}
