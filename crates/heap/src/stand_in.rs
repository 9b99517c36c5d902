//! What the word of a thread without a cache of its own names.
//!
//! It looks like a cache whose lists are all empty, so that the hit paths need not ask: they find
//! nothing there, and the slow paths tell by the address what it stands for. All four lie in one
//! static, each a list behind the one before. Their lists are alike, and what follows them is zero.
//! (Each in a static of its own would be 2 KiB of addresses to relocate, two pages that every
//! process writes to.)
//! own would be 2 KiB of addresses to relocate, two pages that every process writes to.)

use core::ptr::NonNull;

use crate::cache::{Cache, CacheBin};
use crate::class::{CLASSES, STATES};

/// What a thread's word can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StandIn {
    /// The thread shares the lists of its CPU. (First, since this is asked most.)
    Sharing,
    /// The thread has no cache yet. Every word begins with this.
    NotYet,
    /// The thread's cache is gone again.
    Departed,
    /// The thread is inside the heap, and `special.rs` keeps count of that.
    Inside,
}

const COUNT: usize = StandIn::Inside as usize + 1;

// The lists of all size classes of the last stand-in lie among those of the first. Its lists for
// other states of a page may be zeros, since those states have no lists.
const _: () = assert!(COUNT <= STATES - CLASSES);

/// All stand-ins, never written to.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct StandIns {
    first: Cache,
    zeros: [[usize; size_of::<CacheBin>() / size_of::<usize>()]; COUNT - 1],
}

pub(crate) static STAND_INS: StandIns = StandIns {
    first: Cache::ABSENT,
    zeros: [[0; size_of::<CacheBin>() / size_of::<usize>()]; COUNT - 1],
};

impl StandIn {
    /// What the word of such a thread names.
    #[inline(always)]
    pub(crate) fn word(self) -> NonNull<Cache> {
        let first: NonNull<Cache> = NonNull::from_ref(&STAND_INS).cast();
        // SAFETY: COUNT - 1 lists behind the first there is room for a cache.
        unsafe { first.byte_add(self.offset()) }
    }

    /// How far this stand-in lies behind the first.
    pub(crate) const fn offset(self) -> usize {
        self as usize * size_of::<CacheBin>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassId;

    #[test]
    fn all_are_without_objects() {
        for stand_in in [StandIn::NotYet, StandIn::Departed, StandIn::Inside, StandIn::Sharing] {
            // SAFETY: within the static, and a cache by its bytes.
            let cache = unsafe { stand_in.word().as_ref() };
            for class in ClassId::all() {
                let bin = &cache.bins[class.index()];
                assert!(bin.is_empty() && bin.room == 0 && bin.spare.is_none(), "{stand_in:?}");
            }
            assert!(cache.bins.iter().all(|bin| bin.reciprocal == 0), "{stand_in:?}");
            assert!(cache.next_unused.is_none() && cache.runs.is_none() && !cache.is_open);
            assert!(cache.draws.are_new() && cache.gone_frames == 0 && cache.gone_runs == 0);
        }
    }
}
