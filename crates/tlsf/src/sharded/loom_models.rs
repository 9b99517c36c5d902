//! Models of the chunks' owners and the shards' locks, over all interleavings of two threads with
//! at most three preemptions:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p hectare-tlsf --lib loom`

extern crate std;

use core::ptr::{NonNull, with_exposed_provenance_mut};
use std::boxed::Box;
use std::mem::ManuallyDrop;

use hectare_base::sync::atomic::{AtomicUsize, Ordering};
use hectare_base::sync::cell::UnsafeCell;
use hectare_pages::Fixed;
use loom::sync::Arc;

use super::*;

const CHUNK_BYTES: usize = 512;

/// A source whose memory-changing calls loom can see.
struct Watched {
    inner: Fixed<'static>,
    changes: AtomicUsize,
    /// Stands for the memory of each chunk: loom takes two unordered calls on one chunk for a race.
    chunks: [UnsafeCell<()>; 2],
}

impl Watched {
    fn change(&self, start: NonNull<u8>) {
        self.chunks[start.addr().get() / CHUNK_BYTES % 2].with_mut(|_| ());
    }
}

// SAFETY: every call is passed on unchanged to a source that meets the contract.
unsafe impl PageSource for Watched {
    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        self.inner.reserve(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.change(start);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.change(start);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.decommit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.release(start, bytes) }
    }
}

/// Two shards over `CHUNKS` chunks, and what the shards borrow, which must be dropped after them.
struct World<const CHUNKS: usize> {
    heaps: ManuallyDrop<Sharded<'static, Watched, 2, CHUNKS>>,
    set: *mut ChunkSet<Watched, CHUNKS>,
    buffer: *mut [u8],
}

// SAFETY: the pointers are for `drop` alone; the set and the heaps may be shared.
unsafe impl<const CHUNKS: usize> Send for World<CHUNKS> {}
// SAFETY: as above.
unsafe impl<const CHUNKS: usize> Sync for World<CHUNKS> {}

impl<const CHUNKS: usize> World<CHUNKS> {
    fn new() -> Arc<Self> {
        let bytes = (CHUNKS + 4) * CHUNK_BYTES;
        let buffer = Box::into_raw(std::vec![0; bytes].into_boxed_slice());
        // SAFETY: ours alone until `drop`.
        let inner = Fixed::new(unsafe { &mut *buffer }, CHUNK_BYTES);
        let chunks = [(); 2].map(UnsafeCell::new);
        let source = Watched { inner, changes: AtomicUsize::new(0), chunks };
        let set = ChunkSet::new(source, CHUNK_BYTES).expect("room for the chunks");
        let set = Box::into_raw(Box::new(set));
        // SAFETY: as above.
        let heaps = Sharded::new(unsafe { &*set }, 0);
        Arc::new(Self { heaps: ManuallyDrop::new(heaps), set, buffer })
    }

    /// Allocates a block, fills it, and returns its address.
    fn alloc(&self, cpu: usize, fill: u8) -> Option<usize> {
        let block = self.heaps.memalign(cpu, 16, 200)?;
        // SAFETY: the block is as large as asked for, and this thread's.
        unsafe { block.write_bytes(fill, 200) };
        // Memory may change hands between the write and the check.
        // SAFETY: lives until `drop`.
        unsafe { &*self.set }.source.changes.load(Ordering::Relaxed);
        Some(block.as_ptr().expose_provenance())
    }

    /// Checks that nobody else wrote to the block, and frees it.
    fn free(&self, address: usize, fill: u8) {
        let block = NonNull::new(with_exposed_provenance_mut::<u8>(address)).expect("an address");
        for byte in 0..200 {
            // SAFETY: the block has so many bytes, and is this thread's.
            assert_eq!(unsafe { block.add(byte).read() }, fill);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { self.heaps.free(block) }, Ok(()));
    }

    fn is_whole(&self) {
        self.heaps.for_each(|heap| assert_eq!(heap.validate(), Ok(())));
        // SAFETY: lives until `drop`.
        assert_eq!(unsafe { &*self.set }.free_chunks(), CHUNKS, "every chunk went back");
    }
}

impl<const CHUNKS: usize> Drop for World<CHUNKS> {
    fn drop(&mut self) {
        // SAFETY: dropped once, and before what the heaps borrow.
        unsafe { ManuallyDrop::drop(&mut self.heaps) };
        // SAFETY: made by `new`; nobody borrows it any more.
        drop(unsafe { Box::from_raw(self.set) });
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.buffer) });
    }
}

fn model(body: impl Fn() + Copy + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || spawn(body).join().expect("the body of the model"));
}

/// A thread whose stack has room for heaps, which the model's own stack has not.
fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(1 << 16);
    builder.spawn(body).expect("a thread of the model")
}

/// Two threads want the one chunk. It has one owner at a time, and no two blocks are at one place
/// at a time.
#[test]
fn loom_two_shards_never_own_the_same_chunk() {
    model(|| {
        let world = World::<1>::new();
        let other = Arc::clone(&world);
        let work = |world: &World<1>, cpu: usize| {
            let fill = cpu as u8 + 1;
            if let Some(block) = world.alloc(cpu, fill) {
                world.free(block, fill);
            }
        };
        let thread = spawn(move || work(&other, 1));
        work(&world, 0);
        thread.join().expect("the other thread");
        world.is_whole();
    });
}

/// A block changes hands: the thread that frees it finds its owner while that owner keeps
/// allocating.
#[test]
fn loom_a_block_is_freed_by_another_thread() {
    model(|| {
        let world = World::<2>::new();
        let handed = Arc::new(AtomicUsize::new(0));
        let (other, taken) = (Arc::clone(&world), Arc::clone(&handed));
        let thread = spawn(move || {
            let block = taken.load(Ordering::Acquire);
            if block != 0 {
                other.free(block, 1);
            }
            block != 0
        });
        let first = world.alloc(0, 1).expect("a chunk is free");
        handed.store(first, Ordering::Release);
        let second = world.alloc(0, 2).expect("room");
        world.free(second, 2);
        if !thread.join().expect("the other thread") {
            world.free(first, 1);
        }
        world.is_whole();
    });
}
