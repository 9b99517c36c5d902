//! Frames of a slab that no object in use reaches into, and the marks that must not be left in
//! frames that go to others.

use core::ptr::NonNull;

use super::Slab;
use super::frames::stretches;
use crate::class::RECIPROCALS;
use crate::object::FreeObject;
use crate::region::FRAME_BYTES;

impl Slab {
    /// Whether a look has to visit the slab: it is more than half free or given up (others will be
    /// used first), and a quarter of the objects in use has gone since the last visit. So a slab
    /// that empties object by object is visited some twenty times, however often the heap looks.
    pub(crate) fn is_ripe(&self) -> bool {
        self.may_ripen() && self.used() * 4 <= usize::from(self.most_used) * 3
    }

    fn may_ripen(&self) -> bool {
        self.free() * 2 > self.objects() || self.is_given_up()
    }

    /// The number of free objects at which the slab becomes ripe, if it can without changing its
    /// group.
    pub(super) fn ripens_at(&self) -> usize {
        if self.is_ripe() || !self.may_ripen() {
            return usize::MAX;
        }
        self.objects() - usize::from(self.most_used) * 3 / 4
    }

    /// Calls `decommit` for each stretch of frames that hold memory but no object in use. Their
    /// memory must go, and so must their entries in the page map: the marks of their free objects
    /// are lost, and a double free must still be detected.
    pub(crate) fn scavenge(&mut self, decommit: &mut impl FnMut(NonNull<u8>, usize)) {
        if self.frames.are_coming() {
            return;
        }
        self.most_used = self.used() as u16;
        let idle = self.idle_frames();
        self.frames.go(idle);
        for (first, length) in stretches(idle) {
            // SAFETY: a slab has as many frames as these bits.
            let start = unsafe { self.start().add(first * FRAME_BYTES) };
            decommit(start, length * FRAME_BYTES);
        }
    }

    /// Clears the marks of objects at the starts of frames of an empty slab. A run that begins
    /// there must not bear a mark: the program might copy the mark along with the run's contents,
    /// and one day it would come back in an object in use. Done here, not where runs are taken,
    /// since for most runs that would touch memory that nobody has touched.
    pub(crate) fn unmark_frames(&self) {
        let mut held = self.frames.held();
        while held != 0 {
            let offset = held.trailing_zeros() as usize * FRAME_BYTES;
            held &= held - 1;
            if offset.is_multiple_of(self.object_bytes()) {
                // SAFETY: a frame of the slab.
                let start = unsafe { self.start().add(offset) };
                // SAFETY: it holds memory, and all of the slab is the heap's.
                unsafe { FreeObject::new(start) }.unmark();
            }
        }
    }

    /// The frames, a bit each, that hold memory but no part of an object in use.
    fn idle_frames(&self) -> u16 {
        let mut idle = 0;
        let mut held = self.frames.held();
        while held != 0 {
            let frame = held.trailing_zeros() as usize;
            held &= held - 1;
            idle |= u16::from(self.is_idle(frame)) << frame;
        }
        idle
    }

    /// Whether all objects that reach into a frame are free.
    fn is_idle(&self, frame: usize) -> bool {
        let first = self.index_at(frame * FRAME_BYTES);
        let last = self.index_at(frame * FRAME_BYTES + FRAME_BYTES - 1).min(self.objects() - 1);
        if last < first {
            return true;
        }
        if last - first < 64 {
            // Their bits lie in two words at most, as in most classes. So this is what a look
            // costs.
            let low = u128::from(self.word(first / 64));
            let high = u128::from(self.word(last / 64));
            let wanted = u64::MAX >> (63 - (last - first));
            return ((high << 64 | low) >> (first % 64)) as u64 & wanted == wanted;
        }
        (first / 64..=last / 64).all(|word| {
            let from = u64::MAX << first.saturating_sub(word * 64);
            let to = u64::MAX >> 63_usize.saturating_sub(last - word * 64);
            let wanted = from & to;
            self.word(word) & wanted == wanted
        })
    }

    /// The number of the object that the byte at `offset` belongs to.
    fn index_at(&self, offset: usize) -> usize {
        let reciprocal = RECIPROCALS[self.class().index()];
        ((offset as u64 * u64::from(reciprocal)) >> 32) as usize
    }
}
