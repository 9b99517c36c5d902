//! A slab: a run of [`SLAB_BYTES`](crate::class::SLAB_BYTES) cut into objects of one size class.
//!
//! ```text
//!   descriptor (here):  links │ start │ class │ free count │ summary ──┐ one bit a word
//!                       words: 11110000… 00000000… 11111111… ◀─────────┘ one bit an object, 1 = free
//!   slab (elsewhere):   │ object 0 │ object 1 │ … │ object n-1 │ unused tail │
//! ```
//! The descriptor lies apart from the slab, so that a slab's pages hold nothing but objects,
//! an untouched page of it costs nothing, and no overflow reaches the heap's own state.
//!
//! Invariants
//! 1. A bit is set exactly while its object is free and on no list; `free` counts the bits.
//! 2. A summary bit is set exactly while its word is not 0. Words behind the last object's may
//!    hold anything: what an earlier class of the slab left there.
//! 3. All fields are guarded by the lock of the class's bin while the slab is in use, by the
//!    backend's lock otherwise.
//!
//! Objects are taken lowest first, so that a slab is touched page by page.

use core::ptr::NonNull;

use crate::class::{ClassId, MIN_ALIGN, SLAB_BYTES};
use crate::object::{Batch, FreeObject, Key};
use crate::region::{FRAME_BYTES, SLAB_FRAMES};

const WORDS: usize = SLAB_BYTES / MIN_ALIGN / 64;
const _: () = assert!(WORDS <= 64, "one summary word has to do");

const _: () = assert!(SLAB_FRAMES == 16, "one bit a frame in a u16");
const ALL_FRAMES: u16 = u16::MAX;

/// The bits of the frames `first` to `last`.
fn frames(first: usize, last: usize) -> u16 {
    (ALL_FRAMES >> (SLAB_FRAMES - 1 - last)) & (ALL_FRAMES << first)
}

/// A slab's descriptor. Zeroed memory is a valid one that is not in use.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slab {
    pub(crate) next: Option<SlabRef>,
    pub(crate) previous: Option<SlabRef>,
    start: usize,
    reciprocal: u32,
    object_bytes: u32,
    free: u16,
    objects: u16,
    /// One bit a frame: it reads as zero and holds no memory.
    clean: u16,
    /// One bit a frame: it was scavenged, and the page map says that nothing is allocated there.
    hidden: u16,
    pub(crate) group: u8,
    class: u8,
    summary: u64,
    words: [u64; WORDS],
}

/// What returning an object to its slab found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returned {
    Ok,
    /// The object is free already, or is no object's start.
    Corrupt,
}

impl Slab {
    /// Makes it the descriptor of an empty slab at `start`.
    pub(crate) fn open(&mut self, start: NonNull<u8>, class: ClassId, clean: bool) {
        let objects = class.objects();
        self.next = None;
        self.previous = None;
        self.start = start.as_ptr().expose_provenance();
        self.reciprocal = class.reciprocal();
        self.object_bytes = class.object_bytes() as u32;
        self.free = objects as u16;
        self.objects = objects as u16;
        self.class = class.byte();
        self.group = 0;
        self.clean = if clean { ALL_FRAMES } else { 0 };
        self.hidden = 0;
        let whole = objects / 64;
        self.words[..whole].fill(u64::MAX);
        if !objects.is_multiple_of(64) {
            self.words[whole] = (1 << (objects % 64)) - 1;
        }
        self.summary = u64::MAX >> (64 - objects.div_ceil(64));
    }

    /// The slab's first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // An open slab's start is not null; the value for one that never was open is never used.
        NonNull::new(core::ptr::with_exposed_provenance_mut(self.start))
            .unwrap_or(NonNull::dangling())
    }

    /// How many of its objects are free.
    pub(crate) fn free(&self) -> usize {
        usize::from(self.free)
    }

    /// How many objects it has.
    pub(crate) fn objects(&self) -> usize {
        usize::from(self.objects)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free == self.objects
    }

    /// Takes up to `count` objects, the lowest first, and lists them before `tail`. O(count).
    pub(crate) fn take(&mut self, count: usize, tail: Option<Batch>, key: Key) -> Option<Batch> {
        let start = self.start();
        let mut batch = tail;
        let mut left = count.min(self.free());
        self.free -= left as u16;
        while left > 0 && self.summary != 0 {
            let word = self.summary.trailing_zeros() as usize;
            let bits = &mut self.words[word % WORDS];
            while left > 0 && *bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                left -= 1;
                let offset = (word * 64 + bit) * self.object_bytes as usize;
                let last = offset + self.object_bytes as usize - 1;
                self.clean &= !frames(offset / FRAME_BYTES, last / FRAME_BYTES);
                // SAFETY: by invariant 1 the object is free; offset < objects × object bytes.
                let object = unsafe { start.add(offset) };
                // SAFETY: as above, and clearing its bit made it the caller's.
                let object = unsafe { FreeObject::new(object) };
                object.link(batch.map(|b| b.head), key);
                batch = Some(Batch { head: object, count: batch.map_or(0, |b| b.count) + 1 });
            }
            if *bits == 0 {
                self.summary &= self.summary - 1;
            }
        }
        batch
    }

    /// Takes an object back.
    pub(crate) fn give(&mut self, object: FreeObject) -> Returned {
        let offset = object.as_ptr().addr().get() % SLAB_BYTES;
        let index = ((offset as u64 * u64::from(self.reciprocal)) >> 32) as usize;
        let (word, bit) = (index / 64, 1 << (index % 64));
        let bits = &mut self.words[word % WORDS];
        let whole =
            index * self.object_bytes as usize == offset && index < usize::from(self.objects);
        if !whole || *bits & bit != 0 {
            return Returned::Corrupt;
        }
        *bits |= bit;
        self.summary |= 1 << word;
        self.free += 1;
        Returned::Ok
    }

    /// The frames that hold objects again since they were scavenged, a bit each: they must be
    /// entered into the page map.
    pub(crate) fn reappeared(&mut self) -> u16 {
        let reappeared = self.hidden & !self.clean;
        self.hidden &= self.clean;
        reappeared
    }

    /// Calls `decommit` for each stretch of frames that hold memory but no object in use, and
    /// notes those for which it says that the memory is gone, and that it has taken them off the
    /// page map: the marks of their free objects are gone too, so a double free is seen by that.
    /// Returns how many bytes went.
    pub(crate) fn scavenge(
        &mut self,
        decommit: &mut impl FnMut(NonNull<u8>, usize) -> bool,
    ) -> usize {
        let mut gone = 0;
        let mut frame = 0;
        while frame < SLAB_FRAMES {
            let length = (frame..SLAB_FRAMES).take_while(|&f| self.is_idle(f)).count();
            if length > 0 {
                // SAFETY: the slab has SLAB_FRAMES frames.
                let start = unsafe { self.start().add(frame * FRAME_BYTES) };
                if decommit(start, length * FRAME_BYTES) {
                    self.clean |= frames(frame, frame + length - 1);
                    self.hidden |= frames(frame, frame + length - 1);
                    gone += length * FRAME_BYTES;
                }
            }
            frame += length + 1;
        }
        gone
    }

    /// Whether a frame holds memory, but no part of an object that is not free.
    fn is_idle(&self, frame: usize) -> bool {
        if self.clean & frames(frame, frame) != 0 {
            return false;
        }
        let first = frame * FRAME_BYTES / self.object_bytes as usize;
        let last = (frame * FRAME_BYTES + FRAME_BYTES - 1) / self.object_bytes as usize;
        (first..=last.min(self.objects() - 1))
            .all(|index| self.words[index / 64 % WORDS] >> (index % 64) & 1 == 1)
    }

    /// Panics unless invariants 1 and 2 hold. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) {
        let words = &self.words[..self.objects().div_ceil(64)];
        let bits: u32 = words.iter().map(|w| w.count_ones()).sum();
        assert_eq!(bits as usize, self.free(), "free bits of a slab of class {}", self.class);
        for (i, word) in words.iter().enumerate() {
            assert_eq!(self.summary >> i & 1 == 1, *word != 0, "summary bit {i}");
        }
        assert!(self.summary.checked_shr(words.len() as u32).unwrap_or(0) == 0, "summary's end");
        assert!(self.free <= self.objects);
    }
}

/// A slab's descriptor in the heap's metadata, which is never given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct SlabRef(NonNull<Slab>);

// SAFETY: a mere address; `get` states who may follow it.
unsafe impl Send for SlabRef {}

impl SlabRef {
    /// Names a descriptor.
    ///
    /// # Safety
    /// `slab` is a descriptor in committed metadata of the heap.
    pub(crate) const unsafe fn new(slab: NonNull<Slab>) -> Self {
        Self(slab)
    }

    /// The descriptor.
    ///
    /// # Safety
    /// The caller holds the lock that guards it (invariant 3), and no other reference to it.
    pub(crate) unsafe fn get<'a>(self) -> &'a mut Slab {
        // SAFETY: descriptors are never given back, and the caller is alone.
        unsafe { &mut *self.0.as_ptr() }
    }
}
