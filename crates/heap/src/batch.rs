//! Lists of free objects that change hands as a unit: batches.

use hectare_base::prefetch;

use crate::misuse::{Misuse, Misused};
use crate::object::{FreeObject, Key, LINK_WORDS, Link};

/// How many lists of objects are read side by side when they come back. In a single list each
/// object must have come from memory before the next is known.
pub(crate) const GIVEN_AT_ONCE: usize = 4;

/// A list of free objects of one class, passed around as a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) head: FreeObject,
    pub(crate) count: usize,
}

impl Batch {
    /// A batch of `first`, with `rest` behind it.
    pub(crate) fn with(first: FreeObject, rest: Option<Self>, key: Key) -> Self {
        first.link(rest.map(|rest| rest.head), key);
        Self { head: first, count: 1 + rest.map_or(0, |rest| rest.count) }
    }

    /// Cuts the list behind its first `count` objects (at least one) and returns the rest.
    ///
    /// # Errors
    /// [`Misuse::FreeListCorrupted`], with the object whose link leads elsewhere.
    pub(crate) fn split_off(&mut self, count: usize, key: Key) -> Result<Option<Self>, Misused> {
        debug_assert!(count >= 1);
        if count >= self.count {
            return Ok(None);
        }
        let behind = |object: FreeObject| {
            let next = object.next().filter(|next| next.is_marked(key));
            next.ok_or(Misuse::FreeListCorrupted.at(object.as_ptr()))
        };
        let mut last = self.head;
        for _ in 1..count {
            last = behind(last)?;
        }
        let rest = Self { head: behind(last)?, count: self.count - count };
        last.link(Link::END, key);
        self.count = count;
        Ok(Some(rest))
    }

    /// Whether its first four objects (all, if it has fewer), each of `object_bytes`, lie in a row,
    /// up or down. They do if a program frees in the order in which it has allocated.
    pub(crate) fn begins_in_row(&self, object_bytes: usize) -> bool {
        let mut last = self.head;
        (1..self.count.min(4)).all(|_| {
            let Some(next) = last.next() else { return true };
            let step = next.as_ptr().addr().get().abs_diff(last.as_ptr().addr().get());
            last = next;
            step == object_bytes
        })
    }

    /// Notes in the first object, behind its link and mark, where the others lie. A program that
    /// uses a freed object may overwrite these notes.
    ///
    /// # Safety
    /// The first object has as many words behind its link and mark as there are other objects.
    pub(crate) unsafe fn note_members(&self) {
        let mut last = self.head;
        for at in 1..self.count {
            let Some(next) = last.next() else { return };
            // SAFETY: by invariant 1 the object is this holder's, and the caller's promise.
            unsafe { self.noted(at).write(next.as_ptr().addr().get()) };
            last = next;
        }
    }

    /// Prefetches the other objects, which are noted in the first.
    ///
    /// # Safety
    /// As for [`note_members`](Self::note_members), which has been called.
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

    /// The word that notes where the object numbered `at` lies.
    fn noted(&self, at: usize) -> *mut usize {
        let words = self.head.as_ptr().as_ptr().cast::<usize>();
        words.wrapping_add(LINK_WORDS + at - 1)
    }
}

/// Batches that are read side by side when they come back: at least one, at most [`GIVEN_AT_ONCE`].
pub(crate) struct Batches {
    batches: [Batch; GIVEN_AT_ONCE],
    count: usize,
}

impl Batches {
    /// `first`, and the batches that `more` returns while there is room.
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

    /// Whether there is no room for more.
    pub(crate) fn are_full(&self) -> bool {
        self.count == GIVEN_AT_ONCE
    }

    pub(crate) fn as_slice(&self) -> &[Batch] {
        &self.batches[..self.count]
    }
}

/// A batch, or none, in one word: the address of its first object, or of the list's end, in the
/// upper 48 bits; its length in the lower 16. (Linux maps nothing above 2⁴⁷ for a program that does
/// not ask for it by address.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed(usize);

impl Packed {
    pub(crate) fn new(batch: Option<Batch>) -> Self {
        let head = Link::from(batch.map(|batch| batch.head));
        let count = batch.map_or(0, |batch| batch.count);
        let address = head.expose();
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
    /// The word was taken out of its place, so nobody else has the batch.
    pub(crate) unsafe fn batch(self) -> Option<Batch> {
        let head = Link::exposed(self.0 >> 16)?.object()?;
        Some(Batch { head, count: self.count() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::ptr::NonNull;

    use super::*;

    #[test]
    fn a_list_that_leads_elsewhere_is_not_cut() {
        const KEY: Key = Key(1);
        let mut memory = [[0_u64; 4]; 5];
        // SAFETY: each is long and aligned enough, and used as nothing else.
        let [a, b, c, d, live] =
            memory.each_mut().map(|words| unsafe { FreeObject::new(NonNull::from(words).cast()) });
        let list = || {
            let list = Batch::with(c, Some(Batch::with(d, None, KEY)), KEY);
            Batch::with(a, Some(Batch::with(b, Some(list), KEY)), KEY)
        };
        let mut whole = list();
        let rest = whole.split_off(2, KEY).expect("a sound list").expect("two more");
        assert_eq!((rest.head, rest.count, whole.count, b.next()), (c, 2, 2, None));
        for at in [a, b] {
            let mut broken = list();
            at.link(live, KEY);
            let wrong = broken.split_off(2, KEY).expect_err("a live object");
            assert_eq!(
                (wrong.what, wrong.object),
                (Misuse::FreeListCorrupted, at.as_ptr().as_ptr())
            );
            assert!(!live.is_marked(KEY) && broken.count == 4);
        }
    }
}
