//! The watched front's slow paths: what is due becomes a guarded object, or one that the profile
//! knows.

use core::ptr::NonNull;

use hectare_pages::{Os, System};

use super::inside::Inside;
use super::{Kind, Special};
use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN};
use crate::heap::Place;
use crate::heap::move_to;
use crate::huge::Contents;
use crate::misuse::Misuse;
use crate::process::Process;
use crate::profile::{Known, MAX_FRAMES, MAX_PACKED_BYTES, PACK_BYTES};
use crate::sample::{Due, Rates, class_of, units};
use crate::seat::Seat;

/// A call of a watched front. The thread is inside as long as this lives.
pub(super) struct Watched {
    process: &'static Process,
    special: &'static Special,
    /// The thread's seat; nowhere if it has no cache, or was inside already.
    seat: Seat<'static>,
    _inside: Inside,
}

impl Watched {
    #[inline(always)]
    pub(super) fn begin(process: &'static Process, special: &'static Special) -> Self {
        let mut inside = process.enter();
        // SAFETY: this thread's cache, which its word does not name as long as it is inside.
        let seat = unsafe { Seat::of(inside.cache()) };
        Self { process, special, seat, _inside: inside }
    }

    /// An object for `bytes`. Null when out of memory.
    pub(super) fn malloc(&mut self, bytes: usize, kind: Kind) -> *mut u8 {
        let due = self.due(bytes, kind.align());
        self.get(due, bytes, kind)
    }

    /// Frees an object, which is not null.
    ///
    /// # Safety
    /// As [`free`](Process::free).
    pub(super) unsafe fn free(&mut self, object: NonNull<u8>) {
        let Self { process, special, .. } = *self;
        let address = object.addr().get();
        let (known, emptied) = if process.may_be_sampled(special, object) {
            process.profile.forget(address)
        } else {
            (Known::Nothing, None)
        };
        match known {
            Known::Packed(_) => self.free_pack(emptied),
            Known::Gone => process.heap.misuse("free", object.as_ptr(), Misuse::NotAllocated),
            Known::Nothing | Known::Alone(_) if process.guard.contains(address) => {
                let callers = &mut [0; MAX_FRAMES];
                match process.guard.put(address, captured(special, callers), &Os) {
                    Ok(()) => {}
                    Err(Some(finding)) => (special.report)(&finding),
                    Err(None) => process.heap.misuse("free", object.as_ptr(), Misuse::NotAllocated),
                }
            }
            // SAFETY: the caller's promise, passed on.
            Known::Nothing | Known::Alone(_) => unsafe {
                process.heap.free_slow(self.seat.again(), object.as_ptr());
            },
        }
    }

    /// Makes an object hold `bytes`. To the profile, the object is then a new one of its new size,
    /// allocated by this call. For a small object that stays in place nothing is drawn. If the
    /// profile does not know it, it comes here only from a given-up slab; drawn each time, it would
    /// be known too often.
    ///
    /// # Safety
    /// As [`realloc`](Process::realloc).
    pub(super) unsafe fn realloc(&mut self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let Self { process, special, .. } = *self;
        let address = object.addr().get();
        let guarded = process.guard.contains(address);
        let known = process.known(special, object);
        let class = self.class_of(object, known);
        // A guarded object has exactly as many bytes as were asked for.
        if !guarded && class.is_small() && class.keeps(bytes) {
            if matches!(known, Known::Alone(_) | Known::Packed(_)) {
                let frames = &mut [0; MAX_FRAMES];
                process.profile.record(address, bytes, class, captured(special, frames), &Os);
            }
            return object.as_ptr();
        }
        let due = self.due(bytes, MIN_ALIGN);
        let is_the_heaps = !guarded && matches!(known, Known::Nothing | Known::Alone(_));
        if !is_the_heaps || due.guard || due.profile && bytes <= MAX_SMALL_BYTES {
            let old_bytes = process.special_usable_bytes(special, object, "realloc");
            let moved = self.get(due, bytes, Kind::Plain);
            if moved.is_null() && bytes <= old_bytes {
                return object.as_ptr();
            }
            // SAFETY: the caller's promise, passed on.
            let free = |_| unsafe { self.free(object) };
            // SAFETY: both have as many bytes; one was just taken.
            return unsafe { move_to(moved, object, old_bytes.min(bytes), free) };
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.realloc_by_heap(object, bytes, known, due) }
    }

    /// As [`realloc`](Self::realloc), for an object of the heap's own, if no small object is to be
    /// sampled.
    ///
    /// # Safety
    /// As [`realloc`](Process::realloc).
    unsafe fn realloc_by_heap(
        &mut self,
        object: NonNull<u8>,
        bytes: usize,
        known: Known,
        due: Due,
    ) -> *mut u8 {
        let Self { process, special, .. } = *self;
        // Before the heap can hand its address out again (`special.rs`, invariant 1).
        if let Known::Alone(_) = known {
            process.profile.forget(object.addr().get());
        }
        // SAFETY: the caller's promise, passed on.
        let resized = unsafe { process.heap.realloc(self.seat.again(), object, bytes) };
        if let Known::Alone(sample) = known
            && resized.is_null()
        {
            process.profile.restore(sample, &Os);
        }
        if due.profile && !resized.is_null() {
            let frames = &mut [0; MAX_FRAMES];
            let frames = captured(special, frames);
            process.profile.record(resized.addr(), bytes, ClassId::RUN, frames, &Os);
        }
        resized
    }

    /// The size class of an object; if it is `known`, the class by which it was drawn. `NONE` if it
    /// has none.
    fn class_of(&self, object: NonNull<u8>, known: Known) -> ClassId {
        match known {
            Known::Alone(sample) | Known::Packed(sample) => sample.class(),
            Known::Nothing => match self.process.heap.place_of(object) {
                Ok(Place::Small { class, .. }) => class,
                _ => ClassId::NONE,
            },
            Known::Gone => ClassId::NONE,
        }
    }

    /// What is due at an allocation of `bytes` aligned to `align`. A thread without a cache takes
    /// no samples.
    #[inline(always)]
    fn due(&mut self, bytes: usize, align: usize) -> Due {
        let class = class_of(bytes, align);
        let Some(cache) = self.seat.cache() else { return Due::NOTHING };
        let seed = core::ptr::from_ref(cache).addr() as u64;
        cache.due(class, units(bytes, class), || {
            let Special { profile_mean_bytes: mean_bytes, guard_one_in, .. } = *self.special;
            (Rates { mean_bytes, guard_one_in }, seed ^ Os.secret() as u64)
        })
    }

    /// The kind of object that is `due`; if there is no memory for that, an ordinary one.
    fn get(&mut self, due: Due, bytes: usize, kind: Kind) -> *mut u8 {
        if due != Due::NOTHING
            && let Some(object) = self.sampled(due, bytes, kind)
        {
            return object.as_ptr();
        }
        self.plain(bytes, kind)
    }

    /// An ordinary object. Null when out of memory.
    fn plain(&mut self, bytes: usize, kind: Kind) -> *mut u8 {
        let (heap, seat) = (&self.process.heap, self.seat.again());
        match kind {
            Kind::Plain => heap.malloc_uncounted(seat, bytes),
            Kind::Zeroed => heap.malloc_zeroed(seat, bytes, MIN_ALIGN),
            Kind::Aligned(align) => heap.malloc_aligned(seat, bytes, align),
        }
    }

    /// A guarded object or one that the profile knows, whichever is due. `None` when there is no
    /// memory for it.
    #[cold]
    fn sampled(&mut self, due: Due, bytes: usize, kind: Kind) -> Option<NonNull<u8>> {
        let Self { process, special, .. } = *self;
        let frames = &mut [0; MAX_FRAMES];
        let frames = captured(special, frames);
        let align = kind.align();
        let guarded = if due.guard { process.guard.get(bytes, align, frames, &Os) } else { None };
        if guarded.is_none() && !due.profile {
            return None;
        }
        let class = class_of(bytes, align);
        let object = guarded.or_else(|| {
            if class.is_small() {
                self.apart(class, align, matches!(kind, Kind::Zeroed))
            } else {
                NonNull::new(self.plain(bytes, kind))
            }
        })?;
        let address = object.addr().get();
        if due.profile
            && !process.profile.record(address, bytes, class, frames, &Os)
            && let Known::Gone = process.profile.know(address)
        {
            // It lies in a pack, where only recorded objects can be freed.
            self.free_pack(process.profile.unpack(object));
            return None;
        }
        Some(object)
    }

    /// An object of a size class where the page map says that no object begins: in a pack, unless
    /// its alignment forbids that. Zeroed if `zeroed`.
    fn apart(&self, class: ClassId, align: usize, zeroed: bool) -> Option<NonNull<u8>> {
        let bytes = class.object_bytes();
        let object = if align >= PACK_BYTES {
            let pages = self.process.heap.get_large(Seat::NONE, bytes, align, Contents::Any);
            NonNull::new(pages.0)?
        } else if bytes <= MAX_PACKED_BYTES {
            self.packed(bytes, align)?
        } else {
            self.packed_alone(bytes, align)?
        };
        if zeroed {
            // SAFETY: an object just taken, of at least `bytes`.
            unsafe { object.write_bytes(0, bytes) };
        }
        Some(object)
    }

    /// An object in a pack that several objects share.
    fn packed(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let profile = &self.process.profile;
        profile.pack(bytes, align).or_else(|| {
            let (room, freed) = profile.open_pack(self.pack(PACK_BYTES)?, bytes, align, &Os);
            self.free_pack(freed);
            room
        })
    }

    /// An object in a pack of its own.
    fn packed_alone(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let pack = self.pack(bytes + align)?;
        if self.process.profile.enter_pack(pack, &Os).is_none() {
            self.free_pack(Some(pack));
            return None;
        }
        // SAFETY: the pack is longer than `align`.
        Some(unsafe { pack.add(align) })
    }

    /// An object of the heap that becomes a pack.
    fn pack(&self, bytes: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.process.heap.malloc_aligned(Seat::NONE, bytes, PACK_BYTES))
    }

    /// Gives back a pack in which no object lies any more, if there is one.
    fn free_pack(&self, emptied: Option<NonNull<u8>>) {
        if let Some(pack) = emptied {
            // SAFETY: the pack came from the heap, and nobody uses it.
            unsafe { self.process.heap.free_slow(Seat::NONE, pack.as_ptr()) };
        }
    }
}

/// The callers of this call.
fn captured<'a>(special: &Special, frames: &'a mut [usize; MAX_FRAMES]) -> &'a [usize] {
    let count = (special.capture)(frames);
    &frames[..count.min(MAX_FRAMES)]
}
