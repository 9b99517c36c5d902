//! What the store holds and has done.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::slot::{Content, Packed};

/// The counts that change with every page. They agree with the slots whenever no call is under way.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) pages: AtomicUsize,
    pub(crate) same_filled: AtomicUsize,
    pub(crate) raw: AtomicUsize,
    /// Pages that have an object, and how many objects there are.
    pub(crate) packed: AtomicUsize,
    pub(crate) objects: AtomicUsize,
    pub(crate) plain: AtomicUsize,
    pub(crate) compressed_bytes: AtomicUsize,
    pub(crate) raw_ever: AtomicU64,
    pub(crate) recompressed: AtomicU64,
    pub(crate) written_back: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) compacted_bytes: AtomicU64,
    pub(crate) most_memory_bytes: AtomicUsize,
}

impl Counters {
    /// Counts a slot's change of content. Called under the slot's lock, so that a page is never
    /// counted out before it was counted in. Objects are counted where they begin and end.
    pub(crate) fn change(&self, old: &Content, new: &Content) {
        let count = |counter: &AtomicUsize, is: fn(&Content) -> bool| match (is(old), is(new)) {
            (false, true) => drop(counter.fetch_add(1, Relaxed)),
            (true, false) => drop(counter.fetch_sub(1, Relaxed)),
            // Nothing changes: leave the counter's cache line alone.
            _ => {}
        };
        count(&self.pages, |content| !matches!(content, Content::Absent));
        count(&self.same_filled, |content| matches!(content, Content::Filled(_)));
        count(&self.packed, |content| content.packed().is_some());
        count(&self.plain, |content| matches!(content, Content::Plain(_)));
        count(&self.raw, Content::is_raw);
        if new.is_raw() {
            self.raw_ever.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn pages_in_memory(&self) -> usize {
        self.packed.load(Relaxed) + self.plain.load(Relaxed)
    }

    pub(crate) fn object_begins(&self, packed: &Packed) {
        self.objects.fetch_add(1, Relaxed);
        self.compressed_bytes.fetch_add(packed.bytes as usize, Relaxed);
    }

    pub(crate) fn object_ends(&self, packed: &Packed) {
        self.objects.fetch_sub(1, Relaxed);
        self.compressed_bytes.fetch_sub(packed.bytes as usize, Relaxed);
    }
}

/// The account of a [`Store`](crate::Store): see [`Store::stats`](crate::Store::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that are stored, wherever they are.
    pub pages: usize,
    /// Pages times the size of a page: `orig_data_size`.
    pub original_bytes: usize,
    /// The objects in the pool, by their lengths, and raw pages: `compr_data_size`.
    pub compressed_bytes: usize,
    /// The pool's footprint with everything it counts, plus the raw pages that it could not hold:
    /// `mem_used_total`.
    pub pool_bytes: usize,
    /// The slots, and the index of contents that pages have in common.
    pub table_bytes: usize,
    /// `mem_limit`; 0 is none.
    pub limit_bytes: usize,
    /// The largest `pool_bytes` seen. The store looks with every 16th put or more often.
    pub most_pool_bytes: usize,
    /// Pages that one word fills: `same_pages`.
    pub same_filled_pages: usize,
    /// Pages that use another page's object: how many more pages the pool has than objects.
    pub sharing_pages: usize,
    /// Pages kept as they are: `huge_pages`.
    pub raw_pages: usize,
    /// Pages ever kept as they are: `huge_pages_since`.
    pub raw_pages_ever: u64,
    /// Pages given back by compaction that the store asked for: `pages_compacted`.
    pub compacted_pages: u64,
    /// Pages ever compressed anew by a stronger codec.
    pub recompressed_pages: u64,
    /// Pages ever written back.
    pub written_back_pages: u64,
    /// Pages ever taken over by [`Evict`](crate::Evict).
    pub evicted_pages: u64,
    /// Pages in the file now.
    pub file_pages: u64,
    /// Pages read from the file.
    pub file_reads: u64,
    /// Reads of the file that failed.
    pub failed_reads: u64,
    /// Writes to the file that failed.
    pub failed_writes: u64,
}

impl Stats {
    /// Memory used, the table included, for each byte stored; 0 if nothing is stored.
    #[must_use]
    pub fn density(&self) -> f64 {
        let used_bytes = self.pool_bytes + self.table_bytes;
        if self.original_bytes == 0 { 0.0 } else { used_bytes as f64 / self.original_bytes as f64 }
    }

    /// The line of the kernel's `mm_stat`: orig_data_size, compr_data_size, mem_used_total,
    /// mem_limit, mem_used_max, same_pages, pages_compacted, huge_pages, huge_pages_since.
    #[must_use]
    pub fn mm_stat(&self) -> String {
        columns(&[
            self.original_bytes as u64,
            self.compressed_bytes as u64,
            self.pool_bytes as u64,
            self.limit_bytes as u64,
            self.most_pool_bytes as u64,
            self.same_filled_pages as u64,
            self.compacted_pages,
            self.raw_pages as u64,
            self.raw_pages_ever,
        ])
    }

    /// The line of the kernel's `io_stat`: failed_reads, failed_writes, invalid_io (requests that
    /// are not a whole page: the store returns an error instead, so 0), notify_free (the kernel's
    /// hint that a swap slot is free: a program calls `remove` instead, so 0).
    #[must_use]
    pub fn io_stat(&self) -> String {
        columns(&[self.failed_reads, self.failed_writes, 0, 0])
    }

    /// The line of the kernel's `bd_stat`, in pages: held by the file, read from it, written to it.
    #[must_use]
    pub fn bd_stat(&self) -> String {
        columns(&[self.file_pages, self.file_reads, self.written_back_pages])
    }
}

fn columns(numbers: &[u64]) -> String {
    let mut line = String::new();
    for (at, number) in numbers.iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        // Writing to a `String` cannot fail.
        let _ = write!(line, "{space}{number:8}");
    }
    line
}
