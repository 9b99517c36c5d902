//! Every allocator behind one trait.
//!
//! The trait is static: a job is compiled once for each allocator, so no indirect call is measured.

mod peers;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use hectare_buddy::{
    Atomic, BitmapTree, Bitset, Checked, Extents, FrameAllocator, FrameId, ListLinked, ListVec,
    Order, TreeLinked, TreeVec,
};

use peers::{Memory, OfBuddyAlloc, SystemFrames, SystemHeap};

/// Bytes of a frame.
pub(super) const FRAME_BYTES: usize = 4096;

/// A measured allocator: takes and gives back blocks, named by their first frame.
pub(super) trait Subject {
    /// Takes a block.
    fn alloc(&mut self, order: Order) -> Option<usize>;
    /// Gives a block back. It was taken with the same order.
    fn free(&mut self, frame: usize, order: Order);
    /// Takes as many blocks as `out` has room for. Returns how many were taken.
    fn alloc_many(&mut self, order: Order, out: &mut [FrameId]) -> usize {
        let mut taken = 0;
        for slot in out {
            let Some(frame) = self.alloc(order) else { break };
            *slot = FrameId(frame);
            taken += 1;
        }
        taken
    }
    /// Gives blocks back.
    fn free_many(&mut self, order: Order, blocks: &[FrameId]) {
        for block in blocks {
            self.free(block.0, order);
        }
    }
}

/// A job for any subject.
pub(super) trait Job: Sized {
    /// What the job finds out.
    type Output;
    /// Does the job with one subject.
    fn run<S: Subject>(self, subject: S) -> Self::Output;
    /// Does the job with a handle for each of several threads, all of which lead to the same frames.
    fn run_shared<S: Subject + Send>(self, _subjects: Vec<S>) -> Self::Output {
        unreachable!("a job of one thread")
    }
}

/// How the time for n blocks grows, as known from the design.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// n².
    Quadratic,
    /// n log n or n.
    Linear,
}

/// A line of the table of allocators.
pub(super) struct Listed {
    pub(super) name: &'static str,
    /// A description in a few words.
    pub(super) about: &'static str,
    /// The number of blocks in the demo, if all of them would take too long.
    pub(super) default_blocks: usize,
    pub(super) growth: Growth,
    /// The number of frames in the fragmentation experiment, if all of them would take too long.
    pub(super) fragment_frames: usize,
    pub(super) is_peer: bool,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    ListVec,
    ListLinked,
    TreeVec,
    TreeLinked,
    BitmapTree,
    Bitset,
    Atomic,
    CheckedBitset,
    CheckedAtomic,
    /// One `Atomic` per thread.
    Control,
    SystemFrames,
    SystemHeap,
    BuddyAlloc,
}

const fn ours(name: &'static str, kind: Kind, about: &'static str) -> Listed {
    Listed {
        name,
        about,
        default_blocks: usize::MAX,
        growth: Growth::Linear,
        fragment_frames: usize::MAX,
        is_peer: false,
        kind,
    }
}

const fn peer(name: &'static str, kind: Kind, about: &'static str) -> Listed {
    Listed { is_peer: true, ..ours(name, kind, about) }
}

/// All allocators, the naive ones first.
pub(super) const ALL: [Listed; 12] = [
    Listed {
        default_blocks: 20_000,
        fragment_frames: 2048,
        growth: Growth::Quadratic,
        ..ours("list-vec", Kind::ListVec, "a vector of all blocks for each order")
    },
    Listed {
        default_blocks: 5_000,
        fragment_frames: 2048,
        growth: Growth::Quadratic,
        ..ours("list-linked", Kind::ListLinked, "the same with doubly linked lists")
    },
    Listed {
        fragment_frames: 16_384,
        ..ours("tree-vec", Kind::TreeVec, "red-black tree of all blocks, free lists as vectors")
    },
    Listed {
        fragment_frames: 16_384,
        ..ours("tree-linked", Kind::TreeLinked, "the same with singly linked free lists")
    },
    ours("bitmap-tree", Kind::BitmapTree, "flattened tree of the largest free orders"),
    ours("bitset", Kind::Bitset, "64 frames a word, summarised"),
    ours("atomic", Kind::Atomic, "lock-free, a reserved subtree for each thread"),
    ours("bitset-checked", Kind::CheckedBitset, "the same, and frees only what was allocated"),
    ours("atomic-checked", Kind::CheckedAtomic, "the same, and frees only what was allocated"),
    peer(
        "buddy_system_allocator-frames",
        Kind::SystemFrames,
        "buddy_system_allocator 0.13, FrameAllocator: B-tree sets",
    ),
    Listed {
        // Its search for the buddy walks the free list.
        fragment_frames: 16_384,
        ..peer(
            "buddy_system_allocator-heap",
            Kind::SystemHeap,
            "buddy_system_allocator 0.13, Heap: lists inside the free memory",
        )
    },
    peer("buddy-alloc", Kind::BuddyAlloc, "buddy-alloc 0.6: lists inside the free memory"),
];

/// Measured beside the others when there are several numbers of threads. It shows what the machine
/// itself costs two threads that have nothing in common.
pub(super) const CONTROL: Listed =
    ours("control", Kind::Control, "an `atomic` for each thread: nothing is shared");

/// Peers that write into free blocks are left out above this much memory, bytes.
const LARGEST_REAL_BYTES: usize = 4 << 30;

impl Listed {
    /// Whether it writes into the frames, so that they must be real memory.
    const fn needs_memory(&self) -> bool {
        matches!(self.kind, Kind::SystemHeap | Kind::BuddyAlloc)
    }

    /// Whether its blocks come from more than one allocator.
    pub(super) const fn is_control(&self) -> bool {
        matches!(self.kind, Kind::Control)
    }

    /// Whether it is one of our allocators with a map of its allocations.
    pub(super) const fn is_checked(&self) -> bool {
        matches!(self.kind, Kind::CheckedBitset | Kind::CheckedAtomic)
    }

    /// Why it cannot manage `frames` frames, if it cannot.
    pub(super) fn refuses(&self, frames: usize) -> Option<String> {
        let bytes = frames * FRAME_BYTES;
        (self.needs_memory() && bytes > LARGEST_REAL_BYTES).then(|| {
            format!(
                "left out: it keeps its lists in the frames, and {} GiB of real memory are too much",
                bytes >> 30
            )
        })
    }

    /// Does `job` with a fresh allocator of `frames` frames, all free, for `threads` threads.
    pub(super) fn with<J: Job>(&self, frames: usize, threads: usize, job: J) -> J::Output {
        match self.kind {
            Kind::ListVec => give(ListVec::new(frames), threads, job),
            Kind::ListLinked => give(ListLinked::new(frames), threads, job),
            Kind::TreeVec => give(TreeVec::new(frames), threads, job),
            Kind::TreeLinked => give(TreeLinked::new(frames), threads, job),
            Kind::BitmapTree => {
                let mut metadata = vec![0; BitmapTree::metadata_bytes(frames)];
                let tree = BitmapTree::new(frames, &mut metadata);
                give(tree.expect("the metadata has the size asked for"), threads, job)
            }
            Kind::Bitset => {
                let mut metadata = vec![0; Bitset::metadata_words(frames)];
                let bitset = Bitset::new(frames, &mut metadata);
                give(bitset.expect("the metadata has the size asked for"), threads, job)
            }
            Kind::CheckedBitset => {
                let mut metadata = vec![0; Bitset::metadata_words(frames)];
                let bitset = Bitset::new(frames, &mut metadata);
                let map = Words::new(Extents::metadata_words(frames));
                let extents = Extents::new(frames, map.lines());
                let extents = extents.expect("the metadata has the size asked for");
                let bitset = bitset.expect("the metadata has the size asked for");
                give(Checked::new(bitset, &extents), threads, job)
            }
            Kind::Atomic | Kind::CheckedAtomic => {
                // Two more trees for each thread: once the last tree is reserved, threads take
                // single frames from each other's trees, which must not be measured.
                let frames = if threads == 1 { frames } else { frames + 2 * TREE_FRAMES * threads };
                let words = Words::new(Atomic::metadata_words(frames));
                let shared = Atomic::new(frames, words.lines());
                let shared = shared.expect("the metadata has the size asked for");
                let map = Words::new(Extents::metadata_words(frames));
                let extents = Extents::new(frames, map.lines());
                let extents = extents.expect("the metadata has the size asked for");
                if let Kind::Atomic = self.kind {
                    hand_each((0..threads).map(|_| shared.local()), job)
                } else {
                    hand_each((0..threads).map(|_| Checked::new(shared.local(), &extents)), job)
                }
            }
            Kind::Control => {
                let share = frames.div_ceil(threads);
                let words = || Words::new(Atomic::metadata_words(share));
                let words: Vec<Words> = (0..threads).map(|_| words()).collect();
                let atomic = |words| Atomic::new(share, Words::lines(words));
                let atomics = words.iter().map(atomic).collect::<Result<Vec<Atomic<'_>>, _>>();
                let atomics = atomics.expect("the metadata has the size asked for");
                for atomic in atomics.iter().skip(1) {
                    let given = atomic.local().add_region(FrameId(0), share);
                    given.expect("a new allocator has no free frames");
                }
                hand_each(atomics.iter().map(Atomic::local), job)
            }
            Kind::SystemFrames => {
                let mut allocator = buddy_system_allocator::FrameAllocator::<33>::new();
                allocator.add_frame(0, frames);
                hand_out(SystemFrames(allocator), threads, job)
            }
            Kind::SystemHeap => {
                let memory = Memory::new(frames);
                let mut heap = buddy_system_allocator::Heap::<48>::empty();
                // SAFETY: the memory is this function's own and outlives the heap.
                unsafe { heap.init(memory.base(), frames * FRAME_BYTES) };
                hand_out(SystemHeap { heap, base: memory.base() }, threads, job)
            }
            Kind::BuddyAlloc => {
                // Its own lists and bit fields are in the same memory.
                let memory = Memory::new(frames + frames / 256 + 64);
                let bytes = memory.frames * FRAME_BYTES;
                let base = memory.bytes.as_ptr().cast_const();
                let param =
                    buddy_alloc::buddy_alloc::BuddyAllocParam::new(base, bytes, FRAME_BYTES);
                // SAFETY: the memory is this function's own and outlives the allocator.
                let allocator = unsafe { buddy_alloc::buddy_alloc::BuddyAlloc::new(param) };
                // Blocks are aligned relative to their beginning, behind the allocator's own data.
                let base = memory.base() + bytes - allocator.available_bytes();
                hand_out(OfBuddyAlloc { allocator, base }, threads, job)
            }
        }
    }
}

/// Frames of a tree of `Atomic`, the unit that a thread reserves.
const TREE_FRAMES: usize = 4096;

/// Words of a cache line, to which the metadata of `Atomic` is aligned.
const WORDS_IN_LINE: usize = 8;

/// Frees all frames of one of our allocators and does the job.
fn give<A: FrameAllocator, J: Job>(mut allocator: A, threads: usize, job: J) -> J::Output {
    let frames = allocator.frames();
    allocator.add_region(FrameId(0), frames).expect("a new allocator has no free frames");
    hand_out(Ours(allocator), threads, job)
}

/// Frees all frames of an allocator through its first handle, and does the job with a handle for
/// each thread.
fn hand_each<A: FrameAllocator + Send, J: Job>(
    handles: impl Iterator<Item = A>,
    job: J,
) -> J::Output {
    let mut handles: Vec<Ours<A>> = handles.map(Ours).collect();
    let first = &mut handles[0].0;
    let frames = first.frames();
    first.add_region(FrameId(0), frames).expect("a new allocator has no free frames");
    match handles.pop() {
        Some(only) if handles.is_empty() => job.run(only),
        last => job.run_shared(handles.into_iter().chain(last).collect()),
    }
}

/// Zeroed words, starting at a cache line.
pub(super) struct Words(Vec<AtomicU64>);

impl Words {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count + WORDS_IN_LINE).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn lines(&self) -> &[AtomicU64] {
        &self.0[self.0.as_ptr().align_offset(WORDS_IN_LINE * size_of::<u64>())..]
    }
}

/// Does the job with the subject itself, or with a lock around the subject if there are several
/// threads.
fn hand_out<S: Subject, J: Job>(subject: S, threads: usize, job: J) -> J::Output {
    if threads == 1 {
        return job.run(subject);
    }
    let lock = Mutex::new(Owned(subject));
    job.run_shared((0..threads).map(|_| Locked(&lock)).collect())
}

/// One of our allocators.
struct Ours<A>(A);

impl<A: FrameAllocator> Subject for Ours<A> {
    #[inline]
    fn alloc(&mut self, order: Order) -> Option<usize> {
        self.0.alloc(order).ok().map(|frame| frame.0)
    }

    #[inline]
    fn free(&mut self, frame: usize, order: Order) {
        self.0.free(FrameId(frame), order).expect("the block was allocated");
    }

    fn alloc_many(&mut self, order: Order, out: &mut [FrameId]) -> usize {
        self.0.alloc_many(order, out)
    }

    fn free_many(&mut self, order: Order, blocks: &[FrameId]) {
        self.0.free_many(order, blocks).expect("the blocks were allocated");
    }
}

/// A subject that one thread at a time uses, no matter which.
struct Owned<S>(S);

// SAFETY: every subject here and in `peers` owns what it points to, or points to `Memory`; none of
// it is bound to a thread.
unsafe impl<S> Send for Owned<S> {}

/// One thread's handle to a subject behind a lock.
struct Locked<'a, S>(&'a Mutex<Owned<S>>);

impl<S: Subject> Subject for Locked<'_, S> {
    fn alloc(&mut self, order: Order) -> Option<usize> {
        self.0.lock().expect("no holder panics").0.alloc(order)
    }

    fn free(&mut self, frame: usize, order: Order) {
        self.0.lock().expect("no holder panics").0.free(frame, order);
    }
}
