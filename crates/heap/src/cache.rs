//! A thread's cache: for each size class a list of free objects that the thread takes from and
//! gives to without any atomic operation.
//!
//! ```text
//!   bin:  head ─▶ object ─▶ object ─▶ …   at most `limit` (room = limit − length)
//!         spare ─▶ a full batch, or none
//! ```
//! Objects have no owner: a free puts the object on the list of the thread that frees it. A list
//! that is full becomes the spare and the next one begins empty; a second full list goes to the
//! pool of the CPU as it is, in O(1): never is a list walked. The limit begins small and doubles
//! each time the list proves too short, up to the class's batch: a thread that does little holds
//! little. (The two lists: Bonwick and Adams, "Magazines and Vmem", 2001.)
//!
//! Invariants
//! 1. `head` lists `limit − room` objects, `spare` lists `spare_count`; all bear their mark.
//! 2. A cache is used by one thread at a time.
//! 3. In [`Cache::ABSENT`] every list is empty and every reciprocal 0, so that the fast paths of
//!    a thread without a cache fail their ordinary tests and never write to it.

use core::ptr::NonNull;

use crate::class::{ClassId, STATES};
use crate::object::{Batch, FreeObject, Key};

/// What a thread keeps of one size class. 32 bytes: two share a line.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct CacheBin {
    pub(crate) head: Option<FreeObject>,
    pub(crate) room: u32,
    /// The class's reciprocal, here because a free needs it beside `head`.
    pub(crate) reciprocal: u32,
    pub(crate) spare: Option<FreeObject>,
    spare_count: u16,
    limit: u16,
    most: u16,
}

/// A thread's cache.
#[derive(Debug)]
#[repr(C)]
pub struct Cache {
    pub(crate) bins: [CacheBin; STATES],
    /// The next in the heap's list of unused caches, while this one is there.
    pub(crate) next_unused: Option<NonNull<Cache>>,
}

// SAFETY: an absent cache is never written to, and one in use is reached by one thread.
unsafe impl Sync for Cache {}

impl Cache {
    /// What a thread has before it has a cache.
    pub const ABSENT: Self = Self {
        bins: [const {
            CacheBin {
                head: None,
                room: 0,
                reciprocal: 0,
                spare: None,
                spare_count: 0,
                limit: 0,
                most: 0,
            }
        }; STATES],
        next_unused: None,
    };

    /// Makes this an empty cache that may be used.
    pub(crate) fn open(&mut self) {
        for class in ClassId::all() {
            let bin = &mut self.bins[class.index()];
            let most = class.batch() as u16;
            let limit = most.min(FIRST_LIMIT);
            *bin = CacheBin {
                head: None,
                room: u32::from(limit),
                reciprocal: class.reciprocal(),
                spare: None,
                spare_count: 0,
                limit,
                most,
            };
        }
        self.next_unused = None;
    }

    /// How many objects it holds of `class`.
    pub fn objects(&self, class: ClassId) -> usize {
        let bin = &self.bins[class.index()];
        bin.count() + usize::from(bin.spare_count)
    }
}

/// How long a new cache lets a list become at first.
const FIRST_LIMIT: u16 = 4;

impl CacheBin {
    fn count(&self) -> usize {
        usize::from(self.limit) - self.room as usize
    }

    /// Makes the spare the list, if there is one. The list must be empty.
    pub(crate) fn use_spare(&mut self) -> bool {
        debug_assert!(self.head.is_none());
        self.head = self.spare.take();
        self.room = u32::from(self.limit - self.spare_count);
        self.spare_count = 0;
        self.head.is_some()
    }

    /// How many objects to ask for when all are gone: more than the last time.
    pub(crate) fn grow(&mut self) -> usize {
        debug_assert!(self.head.is_none() && self.spare.is_none());
        self.limit = (self.limit * 2).min(self.most);
        self.room = u32::from(self.limit);
        usize::from(self.limit)
    }

    /// Makes `batch` the list, which must be empty.
    pub(crate) fn fill(&mut self, batch: Batch) {
        debug_assert!(self.head.is_none());
        self.limit = self.limit.max(batch.count as u16);
        self.head = Some(batch.head);
        self.room = u32::from(self.limit) - batch.count as u32;
    }

    /// Makes room for one more at least. The batch that comes back must go to a pool.
    pub(crate) fn make_room(&mut self) -> Option<Batch> {
        if self.room > 0 {
            return None;
        }
        if self.limit < self.most {
            let growth = self.limit.min(self.most - self.limit);
            self.limit += growth;
            self.room = u32::from(growth);
            return None;
        }
        let full = self.spare.take().map(|head| Batch { head, count: self.spare_count.into() });
        self.spare = self.head.take();
        self.spare_count = self.limit;
        self.room = u32::from(self.limit);
        full
    }

    /// Puts an object on the list, which must have room.
    #[inline(always)]
    pub(crate) fn push(&mut self, object: FreeObject, key: Key) {
        object.link(self.head, key);
        self.head = Some(object);
        self.room -= 1;
    }

    /// Takes all objects out, a batch at a time.
    pub(crate) fn drain(&mut self) -> Option<Batch> {
        if let Some(head) = self.head {
            let count = self.count();
            self.head = None;
            self.room = u32::from(self.limit);
            return Some(Batch { head, count });
        }
        let head = self.spare.take()?;
        Some(Batch { head, count: core::mem::take(&mut self.spare_count).into() })
    }
}
