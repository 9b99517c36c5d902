//! Gives back holes: idle frames inside slabs that a few objects keep from being empty.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::{PageRange, System};

use crate::class::ClassId;
use crate::heap::Heap;
use crate::leaving::Leaving;
use crate::object::{FreeObject, Key};
use crate::region::FRAME_BYTES;

/// A look for holes, which goes on from one call to the next.
#[derive(Debug)]
pub(crate) struct Look {
    /// What was freed before the look began, and whether the slabs had emptied by then.
    freed_bytes: usize,
    has_emptied: bool,
    /// What has gone so far.
    gone_bytes: usize,
}

impl Look {
    pub(crate) const fn new() -> Self {
        Self { freed_bytes: 0, has_emptied: false, gone_bytes: 0 }
    }
}

impl<S: System> Heap<S> {
    /// Gives idle frames inside the slabs back to the system: before the heap grows, and when much
    /// has become free in slabs that a few objects, in use or cached, keep from being empty. Skips
    /// bins whose lock is held. Begins a look, or goes on with one that is under way. Stops once
    /// `most_bytes` have gone or visits have taken as long. Returns how many bytes went.
    #[cold]
    pub(crate) fn scavenge(&self, look: &mut Look, most_bytes: usize) -> usize {
        let fill = self.fill();
        if !self.pace.is_unfinished() {
            let freed_bytes = self.extremes.freed_bytes(fill);
            let has_emptied = self.has_emptied(fill);
            *look = Look { freed_bytes, has_emptied, gone_bytes: 0 };
            self.extremes.reset(fill);
        }
        if self.source().page_bytes() > FRAME_BYTES {
            // What cannot go is as good as in use: the next scavenge is as far off as after one
            // that finds nothing.
            self.end_look(look, fill.live_bytes + fill.idle_bytes);
            return 0;
        }
        let mut gone_bytes = 0;
        let mut left_bytes = most_bytes;
        for bin in &self.bins {
            while left_bytes > 0
                && let Some(mut bin) = bin.try_lock()
            {
                let mut idle = IdleFrames::new(self);
                let is_done =
                    bin.scavenge(&mut left_bytes, &mut |start, bytes| idle.add(start, bytes));
                gone_bytes += idle.finish();
                if is_done {
                    break;
                }
            }
        }
        look.gone_bytes += gone_bytes;
        self.extremes.note_idle(fill.idle_bytes.saturating_sub(gone_bytes));
        if left_bytes > 0 {
            self.end_look(look, fill.live_bytes);
        } else {
            self.pace.note_unfinished(true);
        }
        gone_bytes
    }

    /// Notes what a look has found, once it is through.
    fn end_look(&self, look: &Look, live_bytes: usize) {
        let found_much = look.freed_bytes > 0 && look.gone_bytes > 2 * look.freed_bytes;
        self.backend.note_scavenge(live_bytes, look.gone_bytes, look.has_emptied, found_much);
        self.draining.store(found_much, Relaxed);
        self.pace.note_unfinished(false);
    }
}

/// Idle frames of one bin's slabs on their way back to the system, many in a call.
struct IdleFrames<'a, S: System> {
    heap: &'a Heap<S>,
    leaving: Leaving,
    gone_bytes: usize,
}

impl<'a, S: System> IdleFrames<'a, S> {
    fn new(heap: &'a Heap<S>) -> Self {
        Self { heap, leaving: Leaving::NONE, gone_bytes: 0 }
    }

    /// Takes frames of a slab that hold no object in use. The lock of the slab's bin is held until
    /// [`finish`](Self::finish).
    fn add(&mut self, start: NonNull<u8>, bytes: usize) {
        let (address, frames) = (start.addr().get(), bytes / FRAME_BYTES);
        if let Some(view) = self.heap.backend.find(address) {
            // SAFETY: frames of a slab whose bin's lock is held.
            unsafe { view.mark(address, frames, ClassId::NONE) };
            self.heap.backend.become_bare(frames);
        }
        self.leaving.add(start, bytes);
        if self.leaving.is_full() {
            self.decommit();
        }
    }

    #[inline(never)]
    fn decommit(&mut self) {
        // SAFETY: by `add`, nothing in them is in use.
        let gone = unsafe { self.leaving.decommit(self.heap.source()) };
        if !gone.all {
            gone.ranges.iter().for_each(|range| unmark(self.heap.key(), range));
        }
        self.gone_bytes += gone.bytes;
    }

    /// Gives back the remaining frames. Returns how many bytes went in all.
    fn finish(mut self) -> usize {
        self.decommit();
        self.gone_bytes
    }
}

/// Clears the marks at the starts of frames that may not have gone. Their slab takes them for bare,
/// so it does not clear these marks itself when it is empty (`Slab::unmark_frames`).
#[cold]
fn unmark(key: Key, range: &PageRange) {
    for offset in (0..range.bytes).step_by(FRAME_BYTES) {
        // SAFETY: within the range.
        let start = unsafe { range.start.add(offset) };
        // SAFETY: committed memory that no object in use reaches into.
        unmark_start(key, unsafe { FreeObject::new(start) });
    }
}

/// A function, so that the loop is short.
#[inline(never)]
fn unmark_start(key: Key, object: FreeObject) {
    if object.is_marked(key) {
        object.unmark();
    }
}
