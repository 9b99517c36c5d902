//! A slab: a run of [`SLAB_BYTES`] cut into objects of one size class.
//!
//! ```text
//!   descriptor (here):  links │ start │ class │ free count │ summary ──┐ one bit a word
//!   words:              11110000… 00000000… 11111111… ◀────────────────┘ one bit an object, 1 = free
//!   slab (elsewhere):   │ object 0 │ object 1 │ … │ object n-1 │ unused tail │
//! ```
//! The descriptor lies apart from the slab. So a slab's pages hold nothing but objects, an
//! untouched page costs nothing, and no overflow reaches the heap's own state. The words of up to
//! 1024 objects lie right behind the descriptor. Those of slabs of objects shorter than 64 bytes lie
//! in a table of their own, so they cost other slabs nothing.
//!
//! Invariants
//! 1. A bit is set exactly while its object is free and on no list; `free` counts the bits.
//! 2. A summary bit is set exactly while its word is not 0. Words behind the last object's may hold
//!    anything that an earlier class of the slab left there.
//! 3. All fields are guarded by the lock of the class's bin while the slab is in use, and by the
//!    backend's lock otherwise. On the way from the bin to the backend they belong to whoever gives
//!    the slab back (`slab/emptied.rs`).
//! 4. The `words` of a slab that was opened are as many as its objects need, and belong to it alone.
//!
//! Objects are taken lowest first, so that a slab is touched page by page.

pub(crate) mod emptied;
mod frames;
mod idle;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hectare_base::prefetch;

use crate::class::{ClassId, MIN_ALIGN, SLAB_BYTES};
use crate::gathered::Gathered;
use crate::homes::{GROUPS, Home, ListName};
use crate::object::FreeObject;
use crate::region::{FRAME_BYTES, SLAB_FRAMES};

use frames::Frames;

const WORDS: usize = SLAB_BYTES / MIN_ALIGN / 64;
const _: () = assert!(WORDS <= 64, "one summary word has to do");

/// How many words have room behind the descriptor: as many as a slab of 64-byte objects has.
const NEAR_WORDS: usize = 16;

/// The words of a slab of more objects.
pub(crate) type FarWords = [u64; WORDS];

/// Whether the words of slabs of `class` lie apart from their descriptors.
pub(crate) const fn has_far_words(class: ClassId) -> bool {
    class.objects() > NEAR_WORDS * 64
}

/// What a region has for each slab: one line, and two of words.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SlabEntry {
    slab: Slab,
    words: [u64; NEAR_WORDS],
}

impl SlabEntry {
    /// How far behind the entry's start the words lie.
    pub(crate) const WORDS_AT: usize = core::mem::offset_of!(Self, words);
}

/// A slab's descriptor. Zeroed memory is a valid descriptor that is not in use.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// The slab's neighbours while it is on a list. In `Emptied`, `next` is the next empty slab.
    pub(crate) next: Option<SlabRef>,
    pub(crate) previous: Option<SlabRef>,
    start: usize,
    words: *mut u64,
    /// The number of free objects at which the slab belongs to an emptier group, is ripe, is no
    /// longer full, or is empty.
    moves_at: u32,
    /// How many fewer are free now. (The counters have 32 bits, though 16 would do. The compiler
    /// loads a narrower one together with its neighbour, and a load wider than the last store must
    /// wait until that store has completed.)
    left: u32,
    objects: u32,
    frames: Frames,
    list: ListName,
    /// Atomic, because whoever frees an object of a given-up slab reads it without a lock. It does
    /// not change while there is such an object.
    class: AtomicU8,
    /// The most objects in use since the last look for idle frames.
    most_used: u16,
    summary: u64,
}

const _: () = assert!(size_of::<Slab>() == 64, "one line");

/// The outcome of returning an object to its slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returned {
    Ok,
    /// The slab belongs elsewhere now.
    Moves,
    /// The object is free already, or is no object's start.
    Corrupt,
}

impl Slab {
    /// Makes this the descriptor of an empty slab at `start`. If the slab is `bare`, its frames
    /// hold no memory yet, and get it one by one.
    ///
    /// # Safety
    /// `words` are as many as objects of `class` need, exist as long as the slab, and are this
    /// slab's alone.
    unsafe fn open(&mut self, start: NonNull<u8>, words: NonNull<u64>, class: ClassId, bare: bool) {
        let objects = class.objects();
        self.start = start.as_ptr().expose_provenance();
        self.words = words.as_ptr();
        self.objects = objects as u32;
        *self.class.get_mut() = class.byte();
        self.list = ListName::FIRST;
        self.set_free(objects, objects);
        self.frames = Frames::new(bare);
        self.most_used = 0;
        let whole = objects / 64;
        // SAFETY: the caller's promise.
        unsafe { self.words.write_bytes(0xFF, whole) };
        if !objects.is_multiple_of(64) {
            *self.word_mut(whole) = (1 << (objects % 64)) - 1;
        }
        self.summary = u64::MAX >> (64 - objects.div_ceil(64));
    }

    /// Ensures that no object of a slab just opened reaches into its last frame. Returns where this
    /// frame begins.
    pub(crate) fn withhold_last_frame(&mut self) -> NonNull<u8> {
        let bytes = SLAB_BYTES - FRAME_BYTES;
        let objects = bytes / self.object_bytes();
        for index in objects..self.objects() {
            *self.word_mut(index / 64) &= !(1 << (index % 64));
        }
        let words = objects.div_ceil(64);
        self.summary &= u64::MAX.checked_shr(64 - words as u32).unwrap_or(0);
        self.objects = objects as u32;
        self.set_free(objects, objects);
        self.frames.go(frames::bits(SLAB_FRAMES - 1, SLAB_FRAMES - 1));
        // SAFETY: within the slab.
        unsafe { self.start().add(bytes) }
    }

    /// Whether `object` is one of the slab's and not free in it.
    pub(crate) fn is_taken(&self, object: FreeObject) -> bool {
        let offset = object.as_ptr().addr().get() % SLAB_BYTES;
        let index = offset / self.object_bytes();
        index < self.objects() && self.word(index / 64) >> (index % 64) & 1 == 0
    }

    /// The bits of the objects numbered `at` × 64 and up.
    pub(crate) fn word(&self, at: usize) -> u64 {
        // SAFETY: by invariant 4, since the word is an object's.
        unsafe { self.words.wrapping_add(at).read() }
    }

    /// As [`word`](Self::word), mutable.
    #[inline(always)]
    fn word_mut(&mut self, at: usize) -> &mut u64 {
        // SAFETY: as above.
        unsafe { &mut *self.words.wrapping_add(at) }
    }

    /// Where the object numbered `index` is, or would be.
    #[cfg(test)]
    pub(crate) fn address_of(&self, index: u32) -> *mut u8 {
        self.start().as_ptr().wrapping_add(index as usize * self.object_bytes())
    }

    /// The slab's first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // An open slab's start is not null. The value for a slab that was never opened is never
        // used.
        NonNull::new(core::ptr::with_exposed_provenance_mut(self.start))
            .unwrap_or(NonNull::dangling())
    }

    fn used(&self) -> usize {
        self.objects() - self.free()
    }

    /// How many of its objects are free.
    pub(crate) fn free(&self) -> usize {
        (self.moves_at - self.left) as usize
    }

    /// Notes that `free` of its objects are free, and that it moves once `moves_at` are.
    fn set_free(&mut self, free: usize, moves_at: usize) {
        self.moves_at = moves_at as u32;
        self.left = (moves_at - free) as u32;
    }

    fn object_bytes(&self) -> usize {
        self.class().object_bytes()
    }

    /// How many objects it has.
    pub(crate) fn objects(&self) -> usize {
        self.objects as usize
    }

    fn class(&self) -> ClassId {
        // SAFETY: written by `open`; or 0, if the slab never was open.
        unsafe { ClassId::from_byte(self.class.load(Relaxed)) }
    }

    /// Which group of its bin it belongs to: 0 for the fullest slabs.
    fn fullness_group(&self) -> usize {
        self.free() * GROUPS / (self.objects() + 1)
    }

    /// The list of its bin on which it belongs, by its home, its fullness and whether it is ripe.
    pub(crate) fn list(&self) -> ListName {
        self.list
    }

    /// Makes it a slab of `home`. It must be on no list.
    pub(crate) fn move_to(&mut self, home: Home) {
        self.list = self.list.with_home(home);
    }

    /// Assigns it to the list where it belongs, until [`give`](Self::give) says that it
    /// [moves](Returned::Moves).
    #[inline(never)]
    pub(crate) fn choose_list(&mut self) {
        let group = self.fullness_group();
        self.list = self.list.with_group(group, self.is_ripe());
        let next = (group + 1) * (self.objects() + 1);
        let next = next.div_ceil(GROUPS).min(self.objects());
        self.set_free(self.free(), next.min(self.ripens_at()));
    }

    /// How many of its frames hold no memory.
    pub(crate) fn bare_frames(&self) -> usize {
        self.frames.bare_count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free() == self.objects()
    }

    /// Whether memory has to come for the next object that [`take`](Self::take) would take. The
    /// slab has a free object.
    pub(crate) fn needs_memory(&self) -> bool {
        let word = self.summary.trailing_zeros() as usize;
        let first = word * 64 + self.word(word).trailing_zeros() as usize;
        self.frames.are_away(frames_of(first * self.object_bytes(), self.object_bytes()))
    }

    /// Takes objects, the lowest first, until `gathered` has `count` or none is left. At an object
    /// in a frame without memory, `gathered` notes this frame and the next such ones, at most
    /// `stretch` in all. O(count).
    pub(crate) fn take(&mut self, count: usize, gathered: &mut Gathered, stretch: usize) {
        self.frames.resume();
        let start = self.start();
        let object_bytes = self.object_bytes();
        let taken = (count - gathered.count()).min(self.free());
        let mut left = taken;
        while left > 0 && self.summary != 0 {
            let word = self.summary.trailing_zeros() as usize;
            let mut bits = *self.word_mut(word);
            while left > 0 && bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                let row = ((bits >> bit).trailing_ones() as usize).min(left);
                bits &= !((u64::MAX >> (64 - row)) << bit);
                left -= row;
                let offset = (word * 64 + bit) * object_bytes;
                let touched = frames_of(offset, row * object_bytes);
                if self.frames.are_away(touched) {
                    let (_, end) = frames_of(0, self.objects() * object_bytes);
                    self.frames.come(touched, end, stretch, start, gathered);
                }
                // SAFETY: by invariant 1 the object is free; offset < objects × object bytes.
                let object = unsafe { start.add(offset) };
                // SAFETY: as above, and clearing their bits makes them the caller's.
                unsafe { gathered.push_row(object, object_bytes, row) };
            }
            *self.word_mut(word) = bits;
            if bits == 0 {
                self.summary &= self.summary - 1;
            }
        }
        self.left += taken as u32;
        self.most_used = self.most_used.max(self.used() as u16);
        if self.free() == 0 {
            self.set_free(0, 1);
        }
    }

    /// Takes the object numbered `index` back.
    #[inline(always)]
    pub(crate) fn give(&mut self, index: u32) -> Returned {
        if index >= self.objects {
            return Returned::Corrupt;
        }
        let at = (index / 64) as usize;
        let word = self.word_mut(at);
        let before = *word;
        let after = before | 1 << (index % 64);
        if after == before {
            return Returned::Corrupt;
        }
        *word = after;
        if before == 0 {
            self.summary |= 1_u64.wrapping_shl(at as u32);
        }
        self.left -= 1;
        if self.has_to_move() { Returned::Moves } else { Returned::Ok }
    }

    /// Takes back the objects whose numbers `next` returns, until it returns none, or an object
    /// that is free already. Returns how many came back, and whether none was free already. The
    /// objects are counted together, so the caller asks whether the slab
    /// [has to move](Self::has_to_move).
    #[inline(always)]
    pub(crate) fn give_row(&mut self, mut next: impl FnMut() -> Option<u32>) -> (usize, bool) {
        let (mut count, mut is_sound) = (0, true);
        let mut words = 0;
        let mut at = 0;
        let mut word = self.word_mut(at);
        // Kept apart from its word while the word is the same. Otherwise each object would wait
        // until the one before it is stored.
        let mut bits = *word;
        while let Some(index) = next() {
            if (index / 64) as usize != at {
                *word = bits;
                at = (index / 64) as usize;
                word = self.word_mut(at);
                bits = *word;
            }
            let bit = 1 << (index % 64);
            if bits & bit != 0 {
                is_sound = false;
                break;
            }
            bits |= bit;
            words |= 1_u64.wrapping_shl(at as u32);
            count += 1;
        }
        *word = bits;
        self.summary |= words;
        let free = self.free() + count;
        self.set_free(free, free.max(self.moves_at as usize));
        (count, is_sound)
    }

    /// Whether enough objects are free that the slab belongs elsewhere.
    pub(crate) fn has_to_move(&self) -> bool {
        self.left == 0
    }

    /// Notes that the memory of a range that [`take`](Self::take) has noted has come.
    pub(crate) fn has_come(&mut self) {
        self.frames.have_come();
    }

    /// The frames, a bit each, that must be entered into the page map after [`take`](Self::take):
    /// hidden frames in which it took objects, and if the slab had been given up, all that are not
    /// hidden.
    pub(crate) fn reappeared(&mut self) -> u16 {
        self.frames.take_to_show()
    }

    /// Whether it is given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.frames.is_given_up()
    }

    /// Gives the slab up until objects are taken from it. Returns the frames, a bit each, of which
    /// the page map must say so: none if the slab had been given up before.
    pub(crate) fn give_up(&mut self) -> u16 {
        self.frames.give_up()
    }

    /// Panics unless invariants 1 and 2 hold. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) {
        let count = self.objects().div_ceil(64);
        let bits: u32 = (0..count).map(|at| self.word(at).count_ones()).sum();
        assert_eq!(bits as usize, self.free(), "free bits of a slab of class {:?}", self.class);
        for at in 0..count {
            assert_eq!(self.summary >> at & 1 == 1, self.word(at) != 0, "summary bit {at}");
        }
        assert!(self.summary.checked_shr(count as u32).unwrap_or(0) == 0, "summary's end");
        assert!(self.free() <= self.objects());
        let list = self.list.with_group(self.fullness_group(), self.is_ripe());
        assert!(self.free() == 0 || self.list == list, "a slab is on the wrong list");
    }
}

/// The first and the last frame of the `bytes` bytes from `offset` on.
#[inline(always)]
fn frames_of(offset: usize, bytes: usize) -> (usize, usize) {
    (offset / FRAME_BYTES, (offset + bytes - 1) / FRAME_BYTES)
}

/// The memory of a slab that is yet to be opened. A free of an object that the page map says lies
/// there may reach the descriptor at any time. So the descriptor is written under the lock of the
/// class's bin.
#[derive(Debug)]
pub(crate) struct FreshSlab {
    pub(crate) name: SlabRef,
    pub(crate) far_words: NonNull<FarWords>,
    pub(crate) start: NonNull<u8>,
    /// Its frames hold no memory yet.
    pub(crate) bare: bool,
}

impl FreshSlab {
    /// Opens it for `class`, whose bin's lock the caller holds.
    pub(crate) fn open(self, class: ClassId) -> SlabRef {
        // SAFETY: its memory was free until now, so whoever reaches the descriptor holds that lock.
        let slab = unsafe { self.name.get() };
        let words =
            if has_far_words(class) { self.far_words.cast() } else { self.name.near_words() };
        // SAFETY: words of its place in the region.
        unsafe { slab.open(self.start, words, class, self.bare) };
        self.name
    }
}

/// Names a slab's descriptor in the heap's metadata. The descriptor is committed, and zeroed at
/// worst, whatever state the slab is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct SlabRef(NonNull<Slab>);

// SAFETY: a mere address; `get` states who may follow it.
unsafe impl Send for SlabRef {}

impl SlabRef {
    /// Names no descriptor. Must never be followed.
    pub(crate) const NONE: Self = Self(NonNull::dangling());

    /// Names a descriptor.
    ///
    /// # Safety
    /// `entry` is one in committed metadata of the heap.
    pub(crate) const unsafe fn new(entry: NonNull<SlabEntry>) -> Self {
        Self(entry.cast())
    }

    /// The words right behind the descriptor.
    fn near_words(self) -> NonNull<u64> {
        // SAFETY: within the entry.
        unsafe { self.0.byte_add(SlabEntry::WORDS_AT) }.cast()
    }

    /// Prefetches the descriptor's first line.
    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch(self.0.as_ptr().cast());
    }

    /// The slab's class. The caller has an object of the slab, so the slab is in use and stays so.
    pub(crate) fn class(self) -> ClassId {
        // SAFETY: descriptors stay committed; of this field there are only atomic accesses
        // while the slab is in use.
        let class = unsafe { &(*self.0.as_ptr()).class };
        // SAFETY: written by `open`; or 0, if the slab never was open.
        unsafe { ClassId::from_byte(class.load(Relaxed)) }
    }

    /// The descriptor.
    ///
    /// # Safety
    /// The caller holds the lock that guards it (invariant 3), and no other reference to it.
    pub(crate) unsafe fn get<'a>(self) -> &'a mut Slab {
        // SAFETY: descriptors stay committed, and the caller is alone.
        unsafe { &mut *self.0.as_ptr() }
    }
}
