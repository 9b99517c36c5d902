//! A block of a pool, and the words by which it and its neighbours find each other.
//!
//! ```text
//!   one granule of 16 bytes, words of 4:
//!                       payload (what the caller gets; a multiple of GRANULE)
//!                          │
//!   …│footer of the│header │ next │ prev │            …            │footer │header │
//!    │block before,│size,  │ only while this block is free         │size   │of the │
//!    │if it is free│flags  │                                       │       │next   │
//! ```
//!
//! A block extends from its header to the next header; its size includes its own header, not the
//! next. All that a free needs to know about its block and the one before is in the two words in
//! front of the payload, which always share a cache line.
//!
//! Invariants, of every block of every pool of a heap
//! 1. `size > 0` is in granules, and `size` granules further on is the header of the next block or
//!    of the pool's end, which counts as in use and has size zero.
//! 2. `PREV_FREE` is set exactly while the block before is free or there is none. The word before
//!    the header is then a footer. It holds the size of the block before, marked `FREE`; or, if
//!    there is no block before, the size of the pool, without that mark.
//! 3. No two neighbours are both free.
//! 4. A free block is in the list of its size, except the victim, which is in none. The last block
//!    of a list has a `next` of zero. The `prev` of the first is meaningless: the list's head
//!    identifies it.

use core::marker::PhantomData;
use core::ptr::with_exposed_provenance_mut;

use crate::table::Shape;
use crate::word::Word;

/// A header or a footer: a size in granules and two flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header(usize);

impl Header {
    const FREE: usize = 1;
    const PREV_FREE: usize = Self::FREE << 1;
    pub(crate) const FLAG_BITS: u32 = 2;

    /// The end of a pool.
    pub(crate) const END: Self = Self(0);

    #[inline(always)]
    pub(crate) fn used(granules: usize) -> Self {
        Self(granules << Self::FLAG_BITS)
    }

    #[inline(always)]
    pub(crate) fn free(granules: usize) -> Self {
        Self(granules << Self::FLAG_BITS | Self::FREE)
    }

    #[inline(always)]
    pub(crate) fn with_free(self) -> Self {
        Self(self.0 | Self::FREE)
    }

    #[inline(always)]
    pub(crate) fn without_free(self) -> Self {
        Self(self.0 & !Self::FREE)
    }

    #[inline(always)]
    pub(crate) fn with_prev_free(self) -> Self {
        Self(self.0 | Self::PREV_FREE)
    }

    #[inline(always)]
    pub(crate) fn without_prev_free(self) -> Self {
        Self(self.0 & !Self::PREV_FREE)
    }

    /// This header with the `PREV_FREE` of `other`; it must not be set here yet.
    #[inline(always)]
    pub(crate) fn with_prev_free_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & Self::PREV_FREE)
    }

    #[inline(always)]
    pub(crate) fn granules(self) -> usize {
        self.0 >> Self::FLAG_BITS
    }

    /// The size in units of `2^-FLAG_BITS` granules: its bits as they stand in the header.
    #[inline(always)]
    pub(crate) fn size_bits(self) -> usize {
        self.0 & !(Self::FREE | Self::PREV_FREE)
    }

    #[inline(always)]
    pub(crate) fn is_free(self) -> bool {
        self.0 & Self::FREE != 0
    }

    #[inline(always)]
    pub(crate) fn is_prev_free(self) -> bool {
        self.0 & Self::PREV_FREE != 0
    }

    /// Whether this used block, followed by `next`, has a free neighbour or none before it.
    #[inline(always)]
    pub(crate) fn may_merge(self, next: Self) -> bool {
        // One `and` for both flags.
        (self.0 | next.0 << 1) & Self::PREV_FREE != 0
    }

    /// Whether this is the header of a used block of at most `granules`.
    #[inline(always)]
    pub(crate) fn is_used_within(self, granules: usize) -> bool {
        // One comparison: `FREE` rotated to the top makes it larger than any size, and a size of
        // zero wraps. `PREV_FREE` is half of the unit.
        self.0.rotate_right(1).wrapping_sub(1 << 1) < granules << 1
    }

    /// The word that precedes the first block of a pool of `granules`. `owned`: the pool is to be
    /// given back once it is free.
    pub(crate) fn pool(granules: usize, owned: bool) -> Self {
        Self(granules << Self::FLAG_BITS | if owned { Self::PREV_FREE } else { 0 })
    }

    /// Whether this word, which precedes the first block of a pool, says that the pool is owned.
    pub(crate) fn is_owned(self) -> bool {
        self.0 & Self::PREV_FREE != 0
    }

    /// Whether this is the end of a pool.
    #[inline(always)]
    pub(crate) fn is_end(self) -> bool {
        self.granules() == 0
    }
}

/// A block of a pool of the heap, or a pool's end, by the address of its payload.
///
/// Code that makes one from a bare address guarantees that there is one. The methods rely on that
/// and on the invariants above.
#[derive(Debug)]
pub(crate) struct Block<S> {
    payload: usize,
    shape: PhantomData<S>,
}

impl<S> Clone for Block<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Block<S> {}

impl<S> PartialEq for Block<S> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.payload == other.payload
    }
}

impl<S: Shape> Block<S> {
    /// The fewest granules that hold header, links and footer.
    pub(crate) const MIN_GRANULES: usize = (4 * S::Word::BYTES).div_ceil(1 << S::GRANULE_LOG2);

    /// The block whose payload is at `payload`.
    ///
    /// # Safety
    /// There is a block or the end of a pool, and its memory's provenance is exposed; or the memory
    /// is the heap's, and it may make one there.
    #[inline(always)]
    pub(crate) unsafe fn at(payload: usize) -> Self {
        Self { payload, shape: PhantomData }
    }

    /// The address of the payload.
    #[inline(always)]
    pub(crate) fn payload(self) -> usize {
        self.payload
    }

    /// A pointer to the payload.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut u8 {
        with_exposed_provenance_mut(self.payload)
    }

    /// How many bytes of payload a block of `granules` has.
    #[inline(always)]
    pub(crate) fn payload_bytes(granules: usize) -> usize {
        (granules << S::GRANULE_LOG2) - S::Word::BYTES
    }

    /// The block (or the end) that follows, if this one's header is `header`. One instruction
    /// shorter than `after`.
    #[inline(always)]
    pub(crate) fn behind(self, header: Header) -> Self {
        let bits = header.size_bits();
        let bytes = if S::GRANULE_LOG2 >= Header::FLAG_BITS {
            bits << (S::GRANULE_LOG2 - Header::FLAG_BITS)
        } else {
            bits >> (Header::FLAG_BITS - S::GRANULE_LOG2)
        };
        Self { payload: self.payload + bytes, shape: PhantomData }
    }

    /// The block (or the end) that follows, if this one has `granules`.
    #[inline(always)]
    pub(crate) fn after(self, granules: usize) -> Self {
        Self { payload: self.payload + (granules << S::GRANULE_LOG2), shape: PhantomData }
    }

    /// The block before this one, if that one has `granules`.
    #[inline(always)]
    pub(crate) fn before(self, granules: usize) -> Self {
        Self { payload: self.payload - (granules << S::GRANULE_LOG2), shape: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn header(self) -> Header {
        Header(self.load(-1))
    }

    #[inline(always)]
    pub(crate) fn set_header(self, header: Header) {
        self.store(-1, header.0);
    }

    /// The footer of the free block before this one, or the word that precedes the first block of a
    /// pool. By invariant 2 it is valid while `PREV_FREE` is set.
    #[inline(always)]
    pub(crate) fn footer_before(self) -> Header {
        Header(self.load(-2))
    }

    #[inline(always)]
    pub(crate) fn set_footer_before(self, footer: Header) {
        self.store(-2, footer.0);
    }

    #[inline(always)]
    pub(crate) fn next(self) -> usize {
        self.load(0)
    }

    #[inline(always)]
    pub(crate) fn set_next(self, index: usize) {
        self.store(0, index);
    }

    #[inline(always)]
    pub(crate) fn prev(self) -> usize {
        self.load(1)
    }

    #[inline(always)]
    pub(crate) fn set_prev(self, index: usize) {
        self.store(1, index);
    }

    /// The pool added before the one that begins with this block; 0 if none.
    pub(crate) fn older_pool(self) -> usize {
        self.load(-3)
    }

    pub(crate) fn set_older_pool(self, index: usize) {
        self.store(-3, index);
    }

    /// The pool added after the one that begins with this block; 0 if none.
    pub(crate) fn newer_pool(self) -> usize {
        self.load(-4)
    }

    pub(crate) fn set_newer_pool(self, index: usize) {
        self.store(-4, index);
    }

    #[inline(always)]
    fn word(self, words: isize) -> *mut S::Word {
        let address = self.payload.wrapping_add_signed(words * S::Word::BYTES as isize);
        with_exposed_provenance_mut(address)
    }

    #[inline(always)]
    fn load(self, words: isize) -> usize {
        // SAFETY: by invariants 1 and 2, header, links and footers belong to the block or to its
        // free neighbour, and other words to the pool's head; pools are exposed and aligned.
        unsafe { self.word(words).read() }.get()
    }

    #[inline(always)]
    fn store(self, words: isize, value: usize) {
        // SAFETY: as in `load`; the heap owns these words and is borrowed mutably.
        unsafe { self.word(words).write(S::Word::truncate(value)) };
    }
}
