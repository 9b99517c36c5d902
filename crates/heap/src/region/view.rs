//! What can be read of a region without its lock: how an address leads to what it belongs to.
//!
//! Orderings: everything here is `Relaxed`. A thread looks up addresses of objects. It has each
//! address, directly or by way of other threads, from the thread that allocated the object. Before
//! that thread had the object, the region was published and committed as far, and its page map was
//! written there. Whatever passes an address from thread to thread so that it may be used orders
//! this before what the receiver reads. (An address that did not come in this way is a wild
//! pointer, for which an old answer is as good as any.)

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use super::{FRAME_BYTES, Region};
use crate::class::{ClassId, MAX_SMALL_BYTES, SLAB_BYTES};
use crate::run_cache::Near;
use crate::slab::{FarWords, FreshSlab, SlabEntry, SlabRef, has_far_words};

/// What a thread must know of a region to tell where an address belongs, readable without a lock.
/// Zeroed, it is a region of no bytes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RegionView {
    start: AtomicUsize,
    /// Up to the frontier.
    bytes: AtomicUsize,
    /// Where the page map would begin if it began with address 0. The way from an address to its
    /// entry is on the critical path of a free, and this saves a step of it.
    page_map_of_zero: AtomicPtr<AtomicU8>,
    slabs: AtomicPtr<SlabEntry>,
    far_words: AtomicPtr<FarWords>,
    run_table: AtomicPtr<RunEntry>,
    near: AtomicU64,
    bare_pages: AtomicBool,
    was_wide: AtomicBool,
}

/// What is known of a run, at its first frame: how many frames it has, and whether a thread keeps
/// it. An entry has eight bytes, so that two threads that keep runs never write to one cache line:
/// the shortest run has nine frames.
#[derive(Debug)]
#[repr(align(8))]
pub(crate) struct RunEntry(AtomicU32);

const _: () = assert!(
    (MAX_SMALL_BYTES / FRAME_BYTES + 1) * size_of::<RunEntry>() >= 64,
    "a cache line apart"
);

impl RunEntry {
    const KEPT: u32 = 1 << 31;

    /// The length in frames, whether the run is kept or not.
    pub(super) fn frames(&self) -> usize {
        self.word() & !(Self::KEPT as usize)
    }

    /// The word noted last. Of shut frames it is what `region/shut.rs` keeps there.
    #[inline(always)]
    pub(super) fn word(&self) -> usize {
        self.0.load(Relaxed) as usize
    }

    /// Notes that the run, which is the caller's, has `frames` frames and is not kept.
    #[inline(always)]
    pub(crate) fn note(&self, frames: usize) {
        self.0.store(frames as u32, Relaxed);
    }

    /// Notes that a thread keeps the run, which has `frames` frames.
    #[inline(always)]
    pub(crate) fn note_kept(&self, frames: usize) {
        self.0.store(frames as u32 | Self::KEPT, Relaxed);
    }
}

impl RegionView {
    pub(crate) const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            page_map_of_zero: AtomicPtr::new(core::ptr::null_mut()),
            slabs: AtomicPtr::new(core::ptr::null_mut()),
            far_words: AtomicPtr::new(core::ptr::null_mut()),
            run_table: AtomicPtr::new(core::ptr::null_mut()),
            near: AtomicU64::new(0),
            bare_pages: AtomicBool::new(false),
            was_wide: AtomicBool::new(false),
        }
    }

    /// Shows where a region of which nothing is committed yet begins, and where its tables begin:
    /// page map, run table, slabs, and their far words.
    pub(super) fn publish(&self, start: NonNull<u8>, tables: [NonNull<u8>; 4]) {
        let [page_map, run_table, slabs, far_words] = tables.map(NonNull::as_ptr);
        let first_frame = start.addr().get() / FRAME_BYTES;
        self.page_map_of_zero.store(page_map.cast::<AtomicU8>().wrapping_sub(first_frame), Relaxed);
        self.slabs.store(slabs.cast(), Relaxed);
        self.far_words.store(far_words.cast(), Relaxed);
        self.run_table.store(run_table.cast(), Relaxed);
        self.set_near(Near::USUAL);
        self.start.store(start.expose_provenance().get(), Relaxed);
    }

    /// Shows how far `region` and its tables are committed, and what its next runs are likely to
    /// be.
    #[cold]
    #[inline(never)]
    fn show(&self, region: &Region) {
        self.bytes.store(region.frontier_bytes, Relaxed);
        self.set_near(region.near());
        self.bare_pages.store(region.leaves_pages_bare(), Relaxed);
    }

    /// How long a cached run may be for the length that is asked for.
    #[inline(always)]
    pub(crate) fn near(&self) -> Near {
        Near(self.near.load(Relaxed))
    }

    fn set_near(&self, near: Near) {
        self.near.store(near.0, Relaxed);
        if near == Near::WIDE {
            self.was_wide.store(true, Relaxed);
        }
    }

    /// The widest that [`near`](Self::near) has ever been.
    pub(crate) fn widest_near(&self) -> Near {
        if self.was_wide.load(Relaxed) { Near::WIDE } else { Near::USUAL }
    }

    /// Whether objects that have pages of their own are likely to leave most of these untouched.
    pub(crate) fn leaves_pages_bare(&self) -> bool {
        self.bare_pages.load(Relaxed)
    }

    /// How far behind the region's start `address` lies, if it lies in the committed part.
    #[inline(always)]
    pub(crate) fn offset_of(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.start.load(Relaxed));
        (offset < self.bytes.load(Relaxed)).then_some(offset)
    }

    /// The page map's entry for the frame in which `address` lies.
    #[inline(always)]
    fn entry(&self, address: usize) -> *mut AtomicU8 {
        self.page_map_of_zero.load(Relaxed).wrapping_add(address / FRAME_BYTES)
    }

    /// What the page map says of the frame in which `address` lies.
    ///
    /// # Safety
    /// [`offset_of`](Self::offset_of) returns an offset for the address.
    #[inline(always)]
    pub(crate) unsafe fn class_of(&self, address: usize) -> ClassId {
        // SAFETY: by invariant 2 the page map is committed as far as the region; its entries are
        // only ever reached as atomics.
        let byte = unsafe { &*self.entry(address) }.load(Relaxed);
        // SAFETY: an entry is 0, or was written by `mark`.
        unsafe { ClassId::from_byte(byte) }
    }

    /// Writes `class` into the page map for `frames` frames from `address`.
    ///
    /// # Safety
    /// The frames lie in the region and are the caller's.
    pub(crate) unsafe fn mark(&self, address: usize, frames: usize, class: ClassId) {
        let first = self.entry(address);
        for frame in 0..frames {
            // SAFETY: as in `class_of`.
            unsafe { &*first.wrapping_add(frame) }.store(class.byte(), Relaxed);
        }
    }

    /// The run that begins at `address`, unless a thread keeps it: its first frame and its length
    /// in frames.
    #[inline(always)]
    pub(crate) fn run_at(&self, address: usize) -> Option<(usize, usize)> {
        let (first, frames, _) = self.run_or_kept_at(address)?;
        (frames < RunEntry::KEPT as usize).then_some((first, frames))
    }

    /// The run that begins at `address`, if one does: its first frame, its length in frames, and
    /// its entry in the run table. If a thread keeps the run, the length is more than any run has.
    #[inline(always)]
    pub(crate) fn run_or_kept_at(&self, address: usize) -> Option<(usize, usize, &RunEntry)> {
        let offset = self.offset_of(address)?;
        // SAFETY: the address lies in the region.
        let class = unsafe { self.class_of(address) };
        if class != ClassId::RUN || offset % FRAME_BYTES != 0 {
            return None;
        }
        let first = offset / FRAME_BYTES;
        // SAFETY: the address lies in the region.
        let entry = unsafe { self.run_entry(first) };
        Some((first, entry.word(), entry))
    }

    /// The entry of a run that begins at `frame`.
    ///
    /// # Safety
    /// The frame lies in the region.
    #[inline(always)]
    pub(crate) unsafe fn run_entry(&self, frame: usize) -> &RunEntry {
        // SAFETY: by invariant 2 the run table is committed as far as the region; its entries are
        // only ever reached as atomics.
        unsafe { &*self.run_table.load(Relaxed).wrapping_add(frame) }
    }

    /// The address of a frame of the region.
    #[inline(always)]
    pub(crate) fn at(&self, frame: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.start.load(Relaxed) + frame * FRAME_BYTES)
    }

    /// Writes `class` into the page map for the first frame of a run at `address`.
    ///
    /// # Safety
    /// As for [`mark`](Self::mark).
    #[inline(always)]
    pub(crate) unsafe fn mark_run(&self, address: usize, class: ClassId) {
        // SAFETY: as in `class_of`.
        unsafe { &*self.entry(address) }.store(class.byte(), Relaxed);
    }

    /// How far the region is committed.
    pub(crate) fn committed_bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The slab that is to be opened at `start`, which is a slab's place in the region. If it is
    /// `bare`, it holds no memory yet.
    pub(crate) fn fresh_slab(&self, start: NonNull<u8>, bare: bool) -> Option<FreshSlab> {
        let table = self.slab_table();
        let offset = table.offset_of(start.addr().get())?;
        // SAFETY: as `offset_of` says.
        let name = unsafe { table.slab_at(offset) };
        let far_words = NonNull::new(table.far_words_at(offset))?;
        Some(FreshSlab { name, far_words, start, bare })
    }

    /// Where the descriptors are, for callers that look up many.
    #[inline(always)]
    pub(crate) fn slab_table(&self) -> SlabTable {
        SlabTable {
            start: self.start.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            slabs: self.slabs.load(Relaxed),
            far_words: self.far_words.load(Relaxed),
        }
    }
}

impl Region {
    /// Shows threads what has changed of the region. Must be called before anybody learns of memory
    /// that was taken, and where there may be a new verdict. Writes nothing if nothing has changed,
    /// since each `free` of each thread reads what this would write to.
    #[inline]
    pub(crate) fn show(&mut self, view: &RegionView) {
        if core::mem::take(&mut self.has_news) {
            view.show(self);
        }
    }

    /// Whether `view` shows the region's state, except for news. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn is_shown_by(&self, view: &RegionView) -> bool {
        let shown = (view.committed_bytes(), view.near(), view.leaves_pages_bare());
        self.has_news || shown == (self.frontier_bytes, self.near(), self.leaves_pages_bare())
    }
}

/// A region's slabs, as of the moment when they were asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlabTable {
    start: usize,
    bytes: usize,
    slabs: *mut SlabEntry,
    far_words: *mut FarWords,
}

impl SlabTable {
    /// The slab in which `address` lies, or would lie if there were one.
    #[inline(always)]
    pub(crate) fn slab_of(self, address: usize) -> Option<SlabRef> {
        let offset = self.offset_of(address)?;
        // SAFETY: as `offset_of` says.
        Some(unsafe { self.slab_at(offset) })
    }

    /// How far behind the region's start `address` lies, if it lies below the frontier.
    #[inline(always)]
    pub(crate) fn offset_of(self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.start);
        (offset < self.bytes).then_some(offset)
    }

    /// The slab at `offset`.
    ///
    /// # Safety
    /// [`offset_of`](Self::offset_of) gave the offset.
    #[inline(always)]
    pub(crate) unsafe fn slab_at(self, offset: usize) -> SlabRef {
        // SAFETY: offset < bytes, so by invariant 2 there are descriptors, committed as far.
        let entry = unsafe { self.slabs.add(offset / SLAB_BYTES) };
        // SAFETY: as above.
        let entry = unsafe { NonNull::new_unchecked(entry) };
        // SAFETY: as above.
        unsafe { SlabRef::new(entry) }
    }

    /// Where the far words of the slab at `offset` are.
    pub(crate) fn far_words_at(self, offset: usize) -> *mut FarWords {
        self.far_words.wrapping_add(offset / SLAB_BYTES)
    }

    /// Where the words of slabs of `class` are: those of the region's first slab, and how many bytes
    /// lie from there to the next slab's.
    pub(crate) fn words_of(self, class: ClassId) -> (*const u8, usize) {
        if has_far_words(class) {
            return (self.far_words.cast(), size_of::<FarWords>());
        }
        (self.slabs.cast::<u8>().wrapping_add(SlabEntry::WORDS_AT), size_of::<SlabEntry>())
    }
}
