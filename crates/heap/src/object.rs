//! Free objects and the lists they form.
//!
//! ```text
//!   free object: │ next free object │ mark = key ^ own address │ whatever was there │
//! ```
//! Invariants
//! 1. A [`FreeObject`] names an object of at least 16 bytes that no caller owns; whoever holds
//!    the value is alone in reaching the object's two words.
//! 2. The mark stands in an object exactly while it is free and on a list. A pointer whose object
//!    bears its mark has been freed already; a listed object without it has been written to.
//!
//! A list ends with [`Link::END`], which is no object and never bears a mark. So one test on the hit path of
//! `malloc` catches both an empty list and one whose first object was written to.
//!
//! The key is a secret of the process and the mark depends on the address, so that neither chance
//! nor a copy of a freed object's contents makes one (with probability 1 − 2⁻⁶⁴).

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use hectare_base::prefetch;

use crate::class::BATCH_OBJECTS;

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

/// What a list begins or goes on with: an object, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Link(NonNull<Words>);

/// The words of the end. It bears no mark: its address is even, and a key is odd, or zero before it is drawn.
static END: [usize; 2] = [0; 2];

impl Link {
    pub(crate) const END: Self = Self(NonNull::from_ref(&END).cast());

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

    /// Its object, if there is one that bears its mark.
    #[inline(always)]
    pub(crate) fn marked(self, key: Key) -> Option<FreeObject> {
        let first = FreeObject(self.0);
        first.is_marked(key).then_some(first)
    }

    /// Its object, if there is one that bears the complement of its mark of `key`.
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

    /// What follows on its list.
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

    /// Whether it bears the complement of its mark of `key`.
    #[inline(always)]
    fn is_marked_in_reverse(self, key: Key) -> bool {
        // SAFETY: within the object's two words.
        let mark = unsafe { &raw const (*self.0.as_ptr()).mark };
        // SAFETY: as in `is_marked`. Volatile, so that the compiler does not keep the mark in a register
        // between the two tests, which would cost the hit path of `malloc` an instruction.
        let mark = unsafe { mark.read_volatile() };
        !mark == key.mark(self.0)
    }

    /// Whether all of its `bytes` are zero, but for the mark.
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

/// Moves the first `bytes` of an object to one that was just taken, and has `free` free the old one;
/// does nothing if `taken` is null. Returns `taken`.
///
/// # Safety
/// Both have at least that many bytes, and are different objects.
#[inline(always)]
pub(crate) unsafe fn move_to(
    taken: *mut u8,
    object: NonNull<u8>,
    bytes: usize,
    free: impl FnOnce(*mut u8),
) -> *mut u8 {
    if !taken.is_null() {
        // SAFETY: the caller's promise: different objects are disjoint.
        unsafe { taken.copy_from_nonoverlapping(object.as_ptr(), bytes) };
        free(object.as_ptr());
    }
    taken
}

/// How many lists of objects are read side by side when they come back: in a single list each object
/// must have come from memory before the next is known.
pub(crate) const GIVEN_AT_ONCE: usize = 4;

/// A list of free objects of one class, passed around as a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) head: FreeObject,
    pub(crate) count: usize,
}

impl Batch {
    /// `first`, and `rest` behind it.
    pub(crate) fn with(first: FreeObject, rest: Option<Self>, key: Key) -> Self {
        first.link(rest.map(|rest| rest.head), key);
        Self { head: first, count: 1 + rest.map_or(0, |rest| rest.count) }
    }

    /// Cuts the list behind its first `count` objects (at least one) and returns the rest.
    pub(crate) fn split_off(&mut self, count: usize, key: Key) -> Option<Self> {
        debug_assert!(count >= 1);
        if count >= self.count {
            return None;
        }
        let mut last = self.head;
        for _ in 1..count {
            last = last.next()?;
        }
        let rest = Self { head: last.next()?, count: self.count - count };
        last.link(Link::END, key);
        self.count = count;
        Some(rest)
    }

    /// Whether its first four objects (all, if it has fewer), each of `object_bytes`, lie in a row, up or down, as they do
    /// where a program frees in the order in which it has allocated.
    pub(crate) fn begins_in_row(&self, object_bytes: usize) -> bool {
        let mut last = self.head;
        (1..self.count.min(4)).all(|_| {
            let Some(next) = last.next() else { return true };
            let step = next.as_ptr().addr().get().abs_diff(last.as_ptr().addr().get());
            last = next;
            step == object_bytes
        })
    }

    /// Notes in its first object, behind the link and the mark, where the others lie. A program that uses a freed object
    /// may overwrite that.
    ///
    /// # Safety
    /// The first object has as many words behind those two as there are others.
    pub(crate) unsafe fn note_members(&self) {
        let mut last = self.head;
        for at in 1..self.count {
            let Some(next) = last.next() else { return };
            // SAFETY: by invariant 1 the object is this holder's, and the caller's promise.
            unsafe { self.noted(at).write(next.as_ptr().addr().get()) };
            last = next;
        }
    }

    /// Prefetches all objects, which are noted in the first.
    ///
    /// # Safety
    /// As for [`note_members`](Self::note_members), which was called.
    pub(crate) unsafe fn prefetch_members(&self) {
        for at in 1..self.count {
            // SAFETY: by invariant 1 the object is this holder's, and the caller's promise.
            let address = unsafe { self.noted(at).read() };
            // A second exit keeps the compiler from unrolling the loop eight times.
            if address == 0 {
                return;
            }
            prefetch(core::ptr::without_provenance(address));
        }
    }

    /// The word in which the object numbered `at` is noted, if at all.
    fn noted(&self, at: usize) -> *mut usize {
        let words = self.head.as_ptr().as_ptr().cast::<usize>();
        words.wrapping_add(size_of::<Words>() / size_of::<usize>() + at - 1)
    }
}

/// Batches that are read side by side when they come back: at least one, at most [`GIVEN_AT_ONCE`].
pub(crate) struct Batches {
    batches: [Batch; GIVEN_AT_ONCE],
    count: usize,
}

impl Batches {
    /// `first`, and what `more` gives while there is room.
    pub(crate) fn gather(first: Batch, mut more: impl FnMut() -> Option<Batch>) -> Self {
        let mut gathered = Self { batches: [first; GIVEN_AT_ONCE], count: 1 };
        while gathered.count < GIVEN_AT_ONCE
            && let Some(batch) = more()
        {
            gathered.batches[gathered.count] = batch;
            gathered.count += 1;
        }
        gathered
    }

    /// Whether there was no room for more.
    pub(crate) fn are_full(&self) -> bool {
        self.count == GIVEN_AT_ONCE
    }

    pub(crate) fn as_slice(&self) -> &[Batch] {
        &self.batches[..self.count]
    }
}

/// A batch, or none, in one word: its first object's address, or the end's, in the upper 48 bits, its length in the
/// lower 16. (Linux maps nothing above 2⁴⁷ for a program that does not ask for it by address.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed(usize);

impl Packed {
    pub(crate) fn new(batch: Option<Batch>) -> Self {
        let head = Link::from(batch.map(|batch| batch.head));
        let count = batch.map_or(0, |batch| batch.count);
        let address = head.0.as_ptr().expose_provenance();
        debug_assert!(address >> 48 == 0 && count < 1 << 16);
        Self(address << 16 | count)
    }

    pub(crate) const fn from_bits(bits: usize) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> usize {
        self.0
    }

    /// Prefetches its first object.
    pub(crate) fn prefetch_head(self) {
        prefetch(core::ptr::without_provenance(self.0 >> 16));
    }

    /// How many objects it lists.
    pub(crate) const fn count(self) -> usize {
        self.0 & 0xffff
    }

    /// The batch.
    ///
    /// # Safety
    /// The word was taken out of where it stood: nobody else has the batch.
    pub(crate) unsafe fn batch(self) -> Option<Batch> {
        let head = NonNull::new(core::ptr::with_exposed_provenance_mut(self.0 >> 16))?;
        Some(Batch { head: Link(head).object()?, count: self.count() })
    }
}

/// Objects taken from their slabs, on no list yet. By the time they are [listed](Self::list), which
/// writes to each of them, their lines are being fetched side by side, and the bin's lock is free.
///
/// The first `count` are there.
pub(crate) struct Gathered {
    objects: [MaybeUninit<FreeObject>; BATCH_OBJECTS],
    count: usize,
    bare: [Option<(NonNull<u8>, usize)>; BARE_RANGES],
    /// How many frames of their slabs held no memory before, and how many of those had been given back.
    pub(crate) revived_frames: usize,
    pub(crate) returned_frames: usize,
}

/// How many ranges without memory are noted; any more are faulted in by touch.
const BARE_RANGES: usize = 4;

impl Gathered {
    /// A function, since as a constant it would be cleared as a whole, 2 KiB.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            objects: [const { MaybeUninit::uninit() }; BATCH_OBJECTS],
            count: 0,
            bare: [None; BARE_RANGES],
            revived_frames: 0,
            returned_frames: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds `count` objects that lie one behind the other, `object_bytes` apart, and are about to be
    /// written. There must be room for them.
    ///
    /// # Safety
    /// Each is aligned to 16, at least 16 bytes of committed memory, and the caller's.
    #[inline(always)]
    pub(crate) unsafe fn push_row(
        &mut self,
        first: NonNull<u8>,
        object_bytes: usize,
        count: usize,
    ) {
        let places = &mut self.objects[self.count..self.count + count];
        let mut object = first;
        for place in places {
            prefetch(object.as_ptr());
            // SAFETY: the caller's promise.
            place.write(unsafe { FreeObject::new(object) });
            // SAFETY: no object lies at address 0; what is behind the last is never followed.
            object = unsafe { NonNull::new_unchecked(object.as_ptr().wrapping_add(object_bytes)) };
        }
        self.count += count;
    }

    /// Notes a range without memory in which objects lie, and the next ones will. Returns whether there
    /// was room.
    pub(crate) fn note_bare(&mut self, start: NonNull<u8>, bytes: usize) -> bool {
        let place = self.bare.iter_mut().find(|place| place.is_none());
        place.map(|place| *place = Some((start, bytes))).is_some()
    }

    /// The ranges to populate, once the bin's lock is free, before the objects are written: starts and
    /// bytes.
    pub(crate) fn bare(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        self.bare.into_iter().flatten()
    }

    /// The objects, in their order.
    #[inline(always)]
    pub(crate) fn objects(&self) -> &[FreeObject] {
        // SAFETY: the first `count` were written.
        unsafe { self.objects[..self.count].assume_init_ref() }
    }

    /// Lists them in their order.
    pub(crate) fn list(&self, key: Key) -> Option<Batch> {
        let (&head, others) = self.objects().split_first()?;
        let mut last = head;
        for &object in others {
            last.link(object, key);
            last = object;
        }
        last.link(Link::END, key);
        Some(Batch { head, count: self.count })
    }
}
