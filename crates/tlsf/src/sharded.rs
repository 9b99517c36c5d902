//! One heap a CPU over one set of memory: threads on different CPUs do not wait for one another.
//!
//! ```text
//!   Sharded   │ lock, heap │ lock, heap │ … one a CPU; each grows by chunks of the set
//!   ChunkSet  │ 0 │ 0 │ 1 │ - │ 0 │ 2 │ 2 │ - │ …   owner of each chunk of one reservation
//! ```
//!
//! Invariants
//! 1. A chunk's owner changes only under the set's lock, from nobody to the shard that takes it
//!    and back; a chunk with a used block in it has an owner.
//! 2. A block is freed by the shard that owns its chunk, whoever allocated it.
//!
//! Orderings: an owner is read `Relaxed`. A thread that frees a block got it, directly or not, from
//! the thread that allocated it, and so also sees the earlier store of the owner.

use core::ptr::NonNull;

use hectare_base::sync::atomic::{AtomicU8, Ordering};
use hectare_base::sync::{Lock, Padded, Park, SpinPark};
use hectare_pages::{PageSource, SourceError};

use crate::error::Misuse;
use crate::growing::{Growing, GrowthPolicy};
use crate::locked::realloc_behind;

#[cfg(all(test, loom))]
mod loom_models;

/// One reservation of a page source, handed out to the shards in chunks; at most `CHUNKS` of them.
#[derive(Debug)]
pub struct ChunkSet<S: PageSource, const CHUNKS: usize> {
    source: S,
    start: NonNull<u8>,
    chunk_bytes: usize,
    /// 0: free; else the number of the shard that owns the chunk, plus one.
    owners: [AtomicU8; CHUNKS],
    changing: Lock<()>,
}

// SAFETY: `start` is only an address range of the source; by invariant 1 a chunk has one user.
unsafe impl<S: PageSource + Send, const CHUNKS: usize> Send for ChunkSet<S, CHUNKS> {}
// SAFETY: as above; owners are atomic and changed under the lock.
unsafe impl<S: PageSource + Sync, const CHUNKS: usize> Sync for ChunkSet<S, CHUNKS> {}

impl<S: PageSource, const CHUNKS: usize> ChunkSet<S, CHUNKS> {
    /// Reserves address space for `CHUNKS` chunks of `chunk_bytes`, a power of two and a multiple
    /// of the source's pages.
    ///
    /// # Errors
    /// The source's; [`SourceError::Exhausted`] also for more chunks than there are addresses.
    ///
    /// # Panics
    /// If `chunk_bytes` is not both.
    pub fn new(source: S, chunk_bytes: usize) -> Result<Self, SourceError> {
        assert!(
            chunk_bytes.is_power_of_two() && chunk_bytes >= source.page_bytes(),
            "chunks of {chunk_bytes} bytes: they are a power of two, of a page ({} bytes) or more",
            source.page_bytes()
        );
        let bytes = CHUNKS.checked_mul(chunk_bytes).ok_or(SourceError::Exhausted)?;
        let start = source.reserve(bytes, chunk_bytes)?;
        let owners = core::array::from_fn(|_| AtomicU8::new(0));
        Ok(Self { source, start, chunk_bytes, owners, changing: Lock::new(()) })
    }

    /// How many chunks no shard owns.
    pub fn free_chunks(&self) -> usize {
        self.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) == 0).count()
    }

    /// The shard that owns the chunk in which `address` lies.
    #[inline]
    fn owner(&self, address: usize) -> Option<usize> {
        let chunk = address.wrapping_sub(self.start.addr().get()) / self.chunk_bytes;
        let owner = self.owners.get(chunk)?.load(Ordering::Relaxed);
        usize::from(owner).checked_sub(1)
    }

    fn chunks_from(&self, start: NonNull<u8>, bytes: usize) -> &[AtomicU8] {
        let first = (start.addr().get() - self.start.addr().get()) / self.chunk_bytes;
        &self.owners[first..first + bytes / self.chunk_bytes]
    }
}

impl<S: PageSource, const CHUNKS: usize> Drop for ChunkSet<S, CHUNKS> {
    fn drop(&mut self) {
        // SAFETY: the whole reservation; the shards that used it borrowed the set.
        unsafe { self.source.release(self.start, CHUNKS * self.chunk_bytes) };
    }
}

/// A shard's access to the set: a page source whose pages are chunks.
#[derive(Debug)]
struct Member<'a, S: PageSource, const CHUNKS: usize> {
    set: &'a ChunkSet<S, CHUNKS>,
    mark: u8,
}

impl<S: PageSource, const CHUNKS: usize> Member<'_, S, CHUNKS> {
    /// Gives chunks back to the set without decommitting them.
    fn disown(&self, start: NonNull<u8>, bytes: usize) {
        let _changing = self.set.changing.lock();
        for owner in self.set.chunks_from(start, bytes) {
            owner.store(0, Ordering::Relaxed);
        }
    }
}

// SAFETY: by invariant 1 a chunk is handed out to one shard at a time; it lies in a reservation
// of the source, is committed before it is used, and zero again after `decommit`.
unsafe impl<S: PageSource, const CHUNKS: usize> PageSource for Member<'_, S, CHUNKS> {
    fn page_bytes(&self) -> usize {
        self.set.chunk_bytes
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        if align > self.set.chunk_bytes {
            return Err(SourceError::Unsupported);
        }
        let wanted = bytes / self.set.chunk_bytes;
        let _changing = self.set.changing.lock();
        let mut run = 0;
        for (chunk, owner) in self.set.owners.iter().enumerate() {
            run = if owner.load(Ordering::Relaxed) == 0 { run + 1 } else { 0 };
            if run == wanted {
                let first = chunk + 1 - wanted;
                for owner in &self.set.owners[first..=chunk] {
                    owner.store(self.mark, Ordering::Relaxed);
                }
                // SAFETY: the chunk lies in the reservation.
                return Ok(unsafe { self.set.start.add(first * self.set.chunk_bytes) });
            }
        }
        Err(SourceError::Exhausted)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.set.source.commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.set.source.decommit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on. If the source keeps the memory, only that memory
        // is lost: heaps do not rely on zeroed regions.
        let _kept = unsafe { self.set.source.decommit(start, bytes) };
        self.disown(start, bytes);
    }

    fn get(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        let start = self.reserve(bytes, align)?;
        // SAFETY: the chunks just reserved.
        let committed = unsafe { self.commit(start, bytes) };
        if committed.is_err() {
            // `release` would decommit chunks that are not committed.
            self.disown(start, bytes);
        }
        committed.map(|()| start)
    }
}

type Shard<'a, S, P, const CHUNKS: usize> = Padded<Lock<Growing<Member<'a, S, CHUNKS>>, P>>;

/// `SHARDS` heaps (at most 255) over one set of chunks. A call takes constant time, apart from
/// waiting, unless it takes chunks from the set (it looks at each chunk in turn, under the set's
/// lock) or gives them back.
///
/// It is no `GlobalAlloc`: it exists only once a set has been reserved, which no `static` can begin
/// with, and it cannot ask which CPU a call is made on. Collections use it by `Sharded::on`
/// (feature `allocator-api2`).
#[derive(Debug)]
pub struct Sharded<'a, S: PageSource, const SHARDS: usize, const CHUNKS: usize, P: Park = SpinPark>
{
    set: &'a ChunkSet<S, CHUNKS>,
    shards: [Shard<'a, S, P, CHUNKS>; SHARDS],
}

impl<'a, S: PageSource, const SHARDS: usize, const CHUNKS: usize, P: Park>
    Sharded<'a, S, SHARDS, CHUNKS, P>
{
    /// Heaps that hold nothing yet. Each gives a free chunk back only if at least `keep_free_bytes`
    /// stay free in it.
    pub fn new(set: &'a ChunkSet<S, CHUNKS>, keep_free_bytes: usize) -> Self {
        const { assert!(SHARDS >= 1 && SHARDS <= 255) };
        let policy = GrowthPolicy { region_bytes: set.chunk_bytes, keep_free_bytes };
        let shard = |number: usize| {
            let member = Member { set, mark: number as u8 + 1 };
            Padded::new(Lock::new(Growing::new(member, policy)))
        };
        Self { set, shards: core::array::from_fn(shard) }
    }

    /// As [`Tlsf::memalign`](crate::Tlsf::memalign), from the shard of `cpu` (any number: a hint),
    /// or from another if that shard has no room and the set has no chunk left.
    #[inline]
    pub fn memalign(&self, cpu: usize, align: usize, size: usize) -> Option<NonNull<u8>> {
        let first = cpu % SHARDS;
        (first..SHARDS)
            .chain(0..first)
            .find_map(|shard| self.shards[shard].lock().memalign(align, size))
    }

    /// As [`Tlsf::realloc`](crate::Tlsf::realloc), from any thread. The block stays with its shard.
    /// It is copied to another only if its own has no room and the set has no chunk left. Other
    /// threads wait for no copy ([`Locked`](crate::Locked)).
    ///
    /// # Errors
    /// [`Misuse`], if the chunk or the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::realloc`](crate::Tlsf::realloc).
    pub unsafe fn realloc(
        &self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        let shard = self.shard_of(ptr)?;
        // SAFETY: the caller's promise, passed on; by invariant 2 this shard's heap has the block.
        if let Some(new) = unsafe { realloc_behind(&self.shards[shard], ptr, align, size) }? {
            return Ok(Some(new));
        }
        // SAFETY: as above; the refused call left the block as it was.
        let old_bytes = unsafe { self.usable_size(ptr) }?;
        let Some(new) = self.memalign(shard, align, size) else { return Ok(None) };
        // SAFETY: two blocks, each of at least so many bytes; nobody else uses either.
        unsafe { new.copy_from_nonoverlapping(ptr, old_bytes.min(size)) };
        // SAFETY: the caller's promise: the caller may give up the block.
        unsafe { self.free(ptr) }?;
        Ok(Some(new))
    }

    /// As [`Tlsf::usable_size`](crate::Tlsf::usable_size), from any thread.
    ///
    /// # Errors
    /// [`Misuse`], if the chunk or the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::usable_size`](crate::Tlsf::usable_size).
    pub unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
        let shard = self.shard_of(ptr)?;
        // SAFETY: the caller's promise, passed on; by invariant 2 this shard's heap has the block.
        unsafe { self.shards[shard].lock().usable_size(ptr) }
    }

    /// As [`Tlsf::free`](crate::Tlsf::free), from any thread.
    ///
    /// # Errors
    /// [`Misuse`], if the chunk or the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::free`](crate::Tlsf::free).
    #[inline]
    pub unsafe fn free(&self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        let shard = self.shard_of(ptr)?;
        // SAFETY: the caller's promise, passed on; by invariant 2 this shard's heap has the block.
        unsafe { self.shards[shard].lock().free(ptr) }
    }

    /// The number of the shard that has the block at `ptr`.
    #[inline]
    fn shard_of(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
        self.set.owner(ptr.addr().get()).ok_or(Misuse::Foreign)
    }

    /// Calls `visit` with the heap of every shard, one after the other, each under its lock.
    /// `visit` must not use these heaps in any other way, or it deadlocks.
    pub fn for_each(&self, mut visit: impl FnMut(&crate::Tlsf)) {
        for shard in &self.shards {
            visit(shard.lock().heap());
        }
    }
}
