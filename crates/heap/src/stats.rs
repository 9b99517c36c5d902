//! What a heap holds, in numbers.

use crate::cache::Cache;
use crate::class::{ClassId, STATES};

/// A heap at one moment; exact if no other thread uses it meanwhile. Sizes are in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Stats {
    /// Small objects in use, and those in other threads' caches.
    pub small_bytes: usize,
    /// Small objects in the CPUs' pools and lists, in the calling thread's cache, and in left
    /// caches.
    pub pooled_bytes: usize,
    /// Slabs as a whole.
    pub slab_bytes: usize,
    /// Large objects in the regions, in whole pages.
    pub run_bytes: usize,
    /// Huge objects, in whole pages.
    pub huge_bytes: usize,
    /// Huge objects.
    pub huge_objects: usize,
    /// Guarded objects, as they were asked for.
    pub guarded_bytes: usize,
    /// Free memory, of the regions and of huge objects, that has not been given back.
    pub dirty_bytes: usize,
    /// Memory of the regions that could be touched.
    pub committed_bytes: usize,
    /// Threads' caches, CPUs' pools and lists; the regions' own tables come on top, at about 1 % of what is used.
    pub metadata_bytes: usize,
    /// Regions reserved.
    pub regions: usize,
    /// Threads of the process that have a cache of their own.
    pub caches: usize,
    /// CPUs that have lists for threads without a cache.
    pub cpu_lists: usize,
    /// By class, in the order of their sizes. Entries with no object size are no classes.
    pub classes: [ClassStats; STATES],
}

/// One size class.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClassStats {
    /// The size of an object.
    pub object_bytes: usize,
    /// Slabs of the class.
    pub slabs: usize,
    /// Objects that these slabs have room for.
    pub objects: usize,
    /// Objects in use or in another thread's cache.
    pub used_objects: usize,
    /// Objects in the pools or on lists of CPUs, in the calling thread's cache, or in a left cache.
    pub pooled_objects: usize,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            small_bytes: 0,
            pooled_bytes: 0,
            slab_bytes: 0,
            run_bytes: 0,
            huge_bytes: 0,
            huge_objects: 0,
            guarded_bytes: 0,
            dirty_bytes: 0,
            committed_bytes: 0,
            metadata_bytes: 0,
            regions: 0,
            caches: 0,
            cpu_lists: 0,
            classes: [ClassStats::default(); STATES],
        }
    }
}

impl Stats {
    /// Counts the objects of `cache` as pooled and its runs as dirty. Both were counted as used.
    pub(crate) fn count_as_pooled(&mut self, cache: &Cache) {
        for class in ClassId::all() {
            let entry = &mut self.classes[class.index()];
            let objects = cache.objects(class).min(entry.used_objects);
            entry.used_objects -= objects;
            entry.pooled_objects += objects;
            self.small_bytes -= objects * class.object_bytes();
            self.pooled_bytes += objects * class.object_bytes();
        }
        self.run_bytes -= cache.run_bytes().min(self.run_bytes);
        self.dirty_bytes += cache.run_bytes();
    }

    /// Everything in use, including what other threads' caches hold.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.small_bytes + self.run_bytes + self.huge_bytes + self.guarded_bytes
    }
}
