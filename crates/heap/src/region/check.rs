//! Checks a region's invariants. For tests.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hectare_buddy::{FrameAllocator, FrameId};

use super::{FRAME_BYTES, Region, SLAB_FRAMES};
use crate::class::ClassId;

impl Region {
    /// Whether a slab begins at `frame`. Those of its frames that were given back are not in the
    /// page map.
    fn has_slab(&self, frame: usize) -> bool {
        let end = (frame + SLAB_FRAMES).min(self.frontier_frames());
        (frame..end).any(|frame| {
            // SAFETY: below the frontier, as far as the page map reaches.
            let entry = unsafe { self.page_map.start.cast::<AtomicU8>().add(frame) };
            // SAFETY: as above.
            let byte = unsafe { entry.as_ref() }.load(Relaxed);
            ![ClassId::NONE, ClassId::RUN].map(ClassId::byte).contains(&byte)
        })
    }

    /// Panics unless invariants 1 and 2 hold and the page map agrees with the bit sets. Returns
    /// how many frames are in use. For tests. O(frames below the frontier).
    pub(crate) fn validate(&self) -> usize {
        self.clean.validate().expect("the clean frames");
        self.dirty.validate();
        let mut mapped_frames = 0;
        let mut run_end = 0;
        for frame in 0..self.frontier_frames() {
            let (clean, dirty) =
                (self.clean.is_free(FrameId(frame)), self.dirty.has(FrameId(frame)));
            assert!(!(clean && dirty), "frame {frame} is both clean and dirty");
            assert!(
                !dirty || frame < self.touched_frames,
                "frame {frame} is dirty, but never touched"
            );
            // SAFETY: below the frontier, as far as the page map reaches.
            let entry = unsafe { self.page_map.start.cast::<AtomicU8>().add(frame) };
            // SAFETY: as above.
            let byte = unsafe { entry.as_ref() }.load(Relaxed);
            if byte == ClassId::RUN.byte() {
                assert!(frame >= run_end, "the run at frame {frame} begins within another");
                run_end = frame + self.run_length(self.at(FrameId(frame)));
            }
            if frame % SLAB_FRAMES == 0 && self.has_slab(frame) {
                run_end = frame + SLAB_FRAMES;
            }
            let mapped = byte != ClassId::NONE.byte() || frame < run_end;
            assert!(!mapped || !clean && !dirty, "frame {frame} is free, but of class {byte}");
            mapped_frames += usize::from(mapped);
        }
        // What is neither free nor mapped nor shut must be in a cached run or a hollow slab that
        // waits: the sum shows this.
        let free_frames = self.clean.free_frames() + self.dirty_frames();
        assert_eq!(
            free_frames + mapped_frames + self.validate_shut(),
            self.bytes / FRAME_BYTES,
            "frames are lost"
        );
        mapped_frames
    }
}
