//! Heaps over one piece of memory, behind one trait: ours, and peers from crates.io, all built into
//! this program with the same settings; and any C TLSF given as a library.

mod arena;
mod library;
mod peers;

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use anyhow::Context;
use hectare_tlsf::{Growing, GrowthPolicy, Heap, Rows, Tlsf, WideTlsf};

pub(crate) use arena::Arena;
pub(crate) use library::Library;
use peers::{Buddy, Dl, LinkedList, OneArena, Rlsf, Talc};

/// The alignment that every subject gives.
const ALIGN: usize = 16;

/// A heap under measurement. Calls are generic, not virtual, so each subject's are inlined.
pub(crate) trait Subject {
    /// Allocates. Null on failure.
    fn alloc(&mut self, bytes: usize) -> *mut u8;
    /// Frees.
    ///
    /// # Safety
    /// `ptr` came from `alloc(bytes)` of this subject and is no longer used.
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize);
}

/// Work for one subject. It is generic, so that the subject's calls are inlined.
pub(crate) trait Work {
    /// The result of the work.
    type Result;
    /// Does the work on a fresh heap.
    fn on<S: Subject>(&mut self, subject: &mut S) -> Self::Result;
}

/// The heaps that can be measured.
#[derive(Clone)]
pub(crate) enum Who {
    /// Ours, 32-bit indices.
    Hectare,
    /// Ours, pools anywhere.
    HectareWide,
    /// Ours, growing by regions from the system.
    HectareGrowing,
    /// rlsf.
    Rlsf,
    /// talc.
    Talc,
    /// linked_list_allocator.
    LinkedList,
    /// buddy-alloc.
    BuddyAlloc,
    /// dlmalloc.
    Dlmalloc,
    /// A C library with mattconte's names.
    Library(Arc<Library>),
}

impl Who {
    /// All heaps that are built in.
    pub(crate) const BUILT_IN: [Self; 8] = [
        Self::Hectare,
        Self::HectareWide,
        Self::HectareGrowing,
        Self::Rlsf,
        Self::Talc,
        Self::LinkedList,
        Self::BuddyAlloc,
        Self::Dlmalloc,
    ];

    /// The name in tables.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hectare => "hectare-tlsf",
            Self::HectareWide => "hectare-tlsf wide",
            Self::HectareGrowing => "hectare-tlsf grown",
            Self::Rlsf => "rlsf",
            Self::Talc => "talc",
            Self::LinkedList => "linked_list_allocator",
            Self::BuddyAlloc => "buddy-alloc",
            Self::Dlmalloc => "dlmalloc",
            Self::Library(library) => library.name(),
        }
    }

    /// Whether it is one of ours.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Hectare | Self::HectareWide | Self::HectareGrowing)
    }

    /// Whether it uses only the memory it is given.
    pub(crate) fn uses_arena(&self) -> bool {
        !matches!(self, Self::HectareGrowing)
    }

    /// Whether it hands out its arena from the low end up, so that the highest address handed out
    /// shows how much of the arena it needs.
    pub(crate) fn fills_from_below(&self) -> bool {
        !matches!(self, Self::BuddyAlloc)
    }

    /// Does `work` on a fresh heap over `arena`.
    ///
    /// # Errors
    /// When the heap cannot be made over that arena.
    pub(crate) fn with<W: Work>(
        &self,
        arena: &mut Arena,
        work: &mut W,
    ) -> anyhow::Result<W::Result> {
        let (start, bytes) = (arena.start, arena.bytes);
        Ok(match self {
            Self::Hectare => work.on(&mut ours(<Tlsf>::new(), arena)?),
            Self::HectareWide => work.on(&mut ours(WideTlsf::new(), arena)?),
            Self::HectareGrowing => {
                let policy = GrowthPolicy { region_bytes: 64 << 10, keep_free_bytes: 1 << 20 };
                work.on(&mut Ours(Box::new(<Growing<_>>::new(hectare_pages::Os, policy))))
            }
            Self::Rlsf => {
                let mut heap = Box::new(rlsf::Tlsf::new());
                // SAFETY: the arena is exclusive and outlives the heap, both made for this work.
                unsafe { heap.insert_free_block_ptr(NonNull::slice_from_raw_parts(start, bytes)) }
                    .context("rlsf does not take the arena")?;
                work.on(&mut Rlsf(heap))
            }
            Self::Talc => {
                let mut heap = talc::TalcCell::new(talc::source::Manual);
                // SAFETY: as above.
                unsafe { heap.get_mut().claim(start.as_ptr(), bytes) }
                    .context("talc does not take the arena")?;
                work.on(&mut Talc(heap))
            }
            Self::LinkedList => {
                // SAFETY: as above.
                work.on(&mut LinkedList(unsafe {
                    linked_list_allocator::Heap::new(start.as_ptr(), bytes)
                }))
            }
            Self::BuddyAlloc => {
                let parameters = buddy_alloc::BuddyAllocParam::new(start.as_ptr(), bytes, 16);
                // SAFETY: as above.
                work.on(&mut Buddy(unsafe {
                    buddy_alloc::buddy_alloc::BuddyAlloc::new(parameters)
                }))
            }
            Self::Dlmalloc => {
                let source = OneArena::new(start, bytes);
                work.on(&mut Dl(dlmalloc::Dlmalloc::new_with_allocator(source)))
            }
            Self::Library(library) => work.on(&mut library.heap(start, bytes)?),
        })
    }
}

/// One of our heaps.
struct Ours<H>(Box<H>);

fn ours<R: Rows>(heap: Tlsf<R>, arena: &Arena) -> anyhow::Result<Ours<Tlsf<R>>> {
    let mut heap = Box::new(heap);
    // SAFETY: the arena is exclusive and outlives the heap.
    unsafe { heap.add_pool(arena.start, arena.bytes) }?;
    Ok(Ours(heap))
}

impl<H: Heap> Subject for Ours<H> {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // The alignment is the granule, so this is `malloc`.
        self.0.memalign(ALIGN, bytes).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: as above.
        unsafe { self.0.free(block) }.expect("a block of this heap");
    }
}
