//! Free objects: what is written into them, and how a list links them.
//!
//! ```text
//!   free object: │ next free object │ mark = key ^ own address │ whatever was there │
//! ```
//! Invariants
//! 1. A [`FreeObject`] names an object of at least 16 bytes that no caller owns; whoever holds
//!    the value is alone in reaching the object's two words.
//! 2. An object bears its mark exactly while it is free and on a list. A pointer whose object bears
//!    its mark has been freed already; a listed object without its mark has been written to.
//!
//! A list ends with [`Link::END`], which is no object and never bears a mark. So one test on the
//! hit path of `malloc` detects both an empty list and a list whose first object was written to.
//!
//! The key is a secret of the process, and the mark depends on the address. So neither chance nor a
//! copy of a freed object's contents makes a mark (with probability 1 − 2⁻⁶⁴).

use core::ptr::NonNull;

use hectare_base::prefetch;

/// The secret of the marks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key(pub(crate) usize);

impl Key {
    #[inline(always)]
    fn mark(self, object: NonNull<Words>) -> usize {
        self.0 ^ object.addr().get()
    }
}

#[repr(C)]
struct Words {
    next: Link,
    mark: usize,
}

/// How many words a link and a mark take.
pub(crate) const LINK_WORDS: usize = size_of::<Words>() / size_of::<usize>();

/// What a list begins or continues with: an object, or the list's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Link(NonNull<Words>);

/// The two words at the end of each list. They bear no mark: their address is even, and a key is
/// odd, or zero before it is drawn. What follows the end is the end again, so lists can be walked
/// by steps of many objects.
static END: End = End(Words { next: Link::END, mark: 0 });

struct End(Words);

// SAFETY: nobody writes to it.
unsafe impl Sync for End {}

impl Link {
    pub(crate) const END: Self = Self(NonNull::from_ref(&END.0));

    /// Its address, from which [`exposed`](Self::exposed) makes the link again.
    pub(crate) fn expose(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The link that was exposed as `address`; `None` if that is 0.
    pub(crate) fn exposed(address: usize) -> Option<Self> {
        NonNull::new(core::ptr::with_exposed_provenance_mut(address)).map(Self)
    }

    /// Begins to fetch its words.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        prefetch(self.0.as_ptr().cast());
    }

    /// Its object, unless it is the end.
    #[inline(always)]
    pub(crate) fn object(self) -> Option<FreeObject> {
        (self != Self::END).then_some(FreeObject(self.0))
    }

    /// The address of its words.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// What follows it on its list: behind the end, the end.
    #[inline(always)]
    pub(crate) fn rest(self) -> Self {
        FreeObject(self.0).rest()
    }

    /// Its object, if there is one that bears its mark.
    #[inline(always)]
    pub(crate) fn marked(self, key: Key) -> Option<FreeObject> {
        let first = FreeObject(self.0);
        first.is_marked(key).then_some(first)
    }

    /// Its object, if there is one that bears the complement of the mark made with `key`.
    #[inline(always)]
    pub(crate) fn marked_in_reverse(self, key: Key) -> Option<FreeObject> {
        let first = FreeObject(self.0);
        first.is_marked_in_reverse(key).then_some(first)
    }
}

impl From<Option<FreeObject>> for Link {
    #[inline(always)]
    fn from(object: Option<FreeObject>) -> Self {
        object.map_or(Self::END, |object| Self(object.0))
    }
}

impl From<FreeObject> for Link {
    #[inline(always)]
    fn from(object: FreeObject) -> Self {
        Self(object.0)
    }
}

/// A free object that its holder owns, by invariant 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct FreeObject(NonNull<Words>);

// SAFETY: by invariant 1 the object belongs to whoever holds the value, on whatever thread.
unsafe impl Send for FreeObject {}

impl FreeObject {
    /// Takes an object over.
    ///
    /// # Safety
    /// `object` is aligned to 16, at least 16 bytes of committed memory, and the caller's.
    #[inline(always)]
    pub(crate) unsafe fn new(object: NonNull<u8>) -> Self {
        Self(object.cast())
    }

    /// The object's address.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// Marks the object as free and puts it before `next`.
    #[inline(always)]
    pub(crate) fn link(self, next: impl Into<Link>, key: Key) {
        let words = Words { next: next.into(), mark: key.mark(self.0) };
        // SAFETY: by invariant 1 the two words are this holder's to write.
        unsafe { self.0.write(words) };
    }

    /// Marks the object as free, before it is put on a list.
    #[inline(always)]
    pub(crate) fn mark(self, key: Key) {
        // SAFETY: by invariant 1 the words are this holder's to write.
        unsafe { (*self.0.as_ptr()).mark = key.mark(self.0) };
    }

    /// Marks the object as free and on no list: its first word is zero.
    pub(crate) fn mark_alone(self, key: Key) {
        // SAFETY: by invariant 1 the two words are this holder's to write.
        unsafe { self.0.cast().write([0, key.mark(self.0)]) };
    }

    /// What follows the object on its list.
    #[inline(always)]
    pub(crate) fn rest(self) -> Link {
        // SAFETY: by invariant 1 the words are this holder's, written when it was listed.
        unsafe { (*self.0.as_ptr()).next }
    }

    /// The object behind this one on its list.
    #[inline(always)]
    pub(crate) fn next(self) -> Option<FreeObject> {
        self.rest().object()
    }

    /// Whether it bears its mark, by invariant 2.
    #[inline(always)]
    pub(crate) fn is_marked(self, key: Key) -> bool {
        // SAFETY: committed memory of the heap, which nobody else reaches unless the program misuses
        // it.
        let mark = unsafe { (*self.0.as_ptr()).mark };
        mark == key.mark(self.0)
    }

    /// Whether it bears the complement of the mark made with `key`.
    #[inline(always)]
    fn is_marked_in_reverse(self, key: Key) -> bool {
        // SAFETY: within the object's two words.
        let mark = unsafe { &raw const (*self.0.as_ptr()).mark };
        // SAFETY: as in `is_marked`. Volatile, so that the compiler does not keep the mark in a register
        // between the two tests, which would cost the hit path of `malloc` an instruction.
        let mark = unsafe { mark.read_volatile() };
        !mark == key.mark(self.0)
    }

    /// Whether all of its `bytes` are zero, except the mark.
    pub(crate) fn is_zero_but_for_mark(self, bytes: usize) -> bool {
        let words = bytes / size_of::<usize>();
        // SAFETY: by invariant 1 the object is this holder's; its size is a multiple of 16.
        let words = unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast::<usize>(), words) };
        words.iter().enumerate().all(|(i, &word)| word == 0 || i == 1)
    }

    /// Clears the mark, on the object's way to a caller.
    #[inline(always)]
    pub(crate) fn unmark(self) {
        // SAFETY: by invariant 1 the words are this holder's to write.
        unsafe { (*self.0.as_ptr()).mark = 0 };
    }
}
