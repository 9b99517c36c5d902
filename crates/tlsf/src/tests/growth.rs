//! Growth, sources that fail, threads.

use core::alloc::GlobalAlloc;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use allocator_api2::alloc::Allocator;
use hectare_base::sync::Park;
use hectare_pages::{Counted, Failing, Fixed, PageSource};

use super::*;

/// Random operations on a heap that grows from `source`; every block's contents are checked.
fn churn<S: PageSource>(heap: &mut Growing<S>, seed: u64, ops: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut shadow = Shadow::default();
    let mut refused = 0;
    for _ in 0..ops {
        if random.below(2) == 0 {
            let (bytes, align) = (random.size(13), 1 << random.below(9));
            match heap.memalign(align, bytes) {
                Some(ptr) => shadow.insert(ptr, bytes, align),
                None => refused += 1,
            }
        } else if let Some((ptr, live)) = shadow.pick(&mut random) {
            Shadow::check(ptr, live.bytes, live.fill);
            shadow.remove(ptr);
            assert_eq!(unsafe { heap.free(ptr) }, Ok(()));
        }
    }
    assert_eq!(heap.heap().validate(), Ok(()));
    while let Some((ptr, live)) = shadow.pick(&mut random) {
        Shadow::check(ptr, live.bytes, live.fill);
        shadow.remove(ptr);
        assert_eq!(unsafe { heap.free(ptr) }, Ok(()));
    }
    assert_eq!(heap.heap().validate(), Ok(()));
    refused
}

#[test]
fn a_growing_heap_gives_everything_back() {
    let mut buffer = std::vec![0u8; 4 << 20];
    for region_bytes in [4096, 8192, 65536] {
        let source = Counted::new(Fixed::new(&mut buffer, 4096));
        let policy = GrowthPolicy { region_bytes, keep_free_bytes: 0 };
        let mut heap: Growing<_> = Growing::new(&source, policy);
        assert_eq!(churn(&mut heap, region_bytes as u64, 20_000), 0);
        let counts = heap.counts();
        assert!(counts.get_mem_calls > 0);
        assert_eq!(counts.get_mem_calls, counts.put_mem_calls, "all regions went back");
        assert_eq!(counts.region_bytes, 0);
        assert_eq!(source.counts().peak_reserved_bytes, counts.peak_region_bytes);
        assert_eq!(source.inner().free_pages(), source.inner().page_count());
    }
}

#[test]
fn by_default_one_free_region_stays() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let mut heap: Growing<_> = Growing::new(&source, GrowthPolicy::DEFAULT);
    let blocks = [(); 3].map(|()| heap.malloc(60_000).expect("the source has room"));
    assert_eq!(heap.counts().get_mem_calls, 3);
    for (block, put_mem_calls) in blocks.into_iter().zip([0, 1, 2]) {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
        assert_eq!(heap.counts().put_mem_calls, put_mem_calls);
    }
    assert_eq!(heap.counts().region_bytes, 64 << 10);
}

#[test]
fn dropping_or_trimming_gives_kept_regions_back() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let policy = GrowthPolicy { region_bytes: 8192, keep_free_bytes: usize::MAX };
    let mut heap: Growing<_> = Growing::new(&source, policy);
    churn(&mut heap, 5, 2_000);
    assert_eq!(heap.counts().put_mem_calls, 0);
    heap.trim();
    assert_eq!(source.free_pages(), source.page_count());
    // The block takes all of its region: the rest is too small to be split off.
    let live = heap.malloc(11_868).expect("the source has room");
    heap.trim();
    assert_eq!((heap.heap().stats().free_bytes, heap.counts().region_bytes), (0, 12 << 10));
    assert_eq!(unsafe { heap.free(live) }, Ok(()));
    let live = heap.malloc(100_000);
    assert!(live.is_some() && source.free_pages() < source.page_count());
    drop(heap);
    assert_eq!(source.free_pages(), source.page_count());
}

#[test]
fn a_source_that_fails_at_any_call_costs_only_that_request() {
    let mut buffer = std::vec![0u8; 4 << 20];
    let policy = GrowthPolicy { region_bytes: 8192, keep_free_bytes: 0 };
    let calls = {
        let source = Failing::new(Fixed::new(&mut buffer, 4096));
        churn(&mut Growing::<_>::new(&source, policy), 9, 500);
        source.calls()
    };
    for call in 0..calls {
        let source = Failing::new(Fixed::new(&mut buffer, 4096));
        source.refuse(call..call + 1);
        let mut heap: Growing<_> = Growing::new(&source, policy);
        assert!(churn(&mut heap, 9, 500) <= 1, "call {call}");
        drop(heap);
        assert_eq!(source.inner().free_pages(), source.inner().page_count(), "call {call}");
    }
}

#[test]
fn a_source_that_has_no_more_is_the_reason_given() {
    let mut buffer = std::vec![0u8; 64 << 10];
    let mut heap: Growing<_> = Growing::new(
        Fixed::new(&mut buffer, 4096),
        GrowthPolicy { region_bytes: 4096, keep_free_bytes: 0 },
    );
    let block = heap.malloc(1000).expect("the source has room");
    unsafe { block.write_bytes(7, 1000) };
    assert_eq!(heap.malloc(100_000), None);
    assert_eq!(heap.heap().last_failure(), Some(Failure::Source));
    assert_eq!(unsafe { heap.realloc(block, 16, 100_000) }, Ok(None));
    assert_eq!(heap.heap().last_failure(), Some(Failure::Source));
    Shadow::check(block, 1000, 7);
    assert_eq!(heap.malloc(usize::MAX), None);
    assert_eq!(heap.heap().last_failure(), Some(Failure::TooLarge));
    assert_eq!(unsafe { heap.free(block) }, Ok(()));
}

#[test]
fn the_callers_pool_is_used_first_and_never_given_to_the_source() {
    // From one vector, since a heap's pools lie within 32 GiB.
    let mut buffer = std::vec![0u8; 72 << 10];
    let (pool, rest) = buffer.split_at_mut(8192);
    let source = Fixed::new(rest, 4096);
    let policy = GrowthPolicy { region_bytes: 4096, keep_free_bytes: 0 };
    let mut heap: Growing<_> = Growing::new(&source, policy);
    unsafe { heap.heap_mut().add_pool(NonNull::from(pool).cast(), 8192) }.expect("fits");
    let own = heap.malloc(7000).expect("the pool has room");
    assert_eq!(heap.counts().get_mem_calls, 0);
    let grown = heap.malloc(7000).expect("the source has room");
    assert_eq!(heap.counts().get_mem_calls, 1);
    for block in [own, grown] {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
    assert_eq!(heap.counts().put_mem_calls, 1);
    assert_eq!(heap.heap().stats().pools, 1);
}

#[test]
fn a_region_that_the_heap_cannot_take_goes_back() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let mut heap: Growing<_, [Row<u16, 4>; 13]> = Growing::new(&source, GrowthPolicy::DEFAULT);
    let first = heap.malloc(100).expect("the source has room");
    let between = source.get(600 << 10, 4096).expect("the source has room");
    let free_pages = source.free_pages();
    // The next region lies farther from the first than the index width reaches.
    assert_eq!(heap.malloc(100_000), None);
    assert_eq!(heap.heap().last_failure(), Some(Failure::Source));
    assert_eq!(source.free_pages(), free_pages);
    assert_eq!(unsafe { heap.free(first) }, Ok(()));
    unsafe { source.release(between, 600 << 10) };
}

/// This holds also if what rounding and aligning may add does not fit the largest pool, and if that
/// pool does not end at a page boundary.
#[test]
fn a_growing_heap_serves_all_that_its_largest_block_has_room_for() {
    fn check<T: Shape, const FIRST: usize>(page_bytes: usize)
    where
        [T; FIRST]: Rows<Row = T>,
    {
        let mut buffer = std::vec![0u8; 1 << 20];
        let source = Fixed::new(&mut buffer, page_bytes);
        let largest = Tlsf::<[T; FIRST]>::new().max_block_bytes();
        let most = largest - Tlsf::<[T; FIRST]>::HEADER_BYTES;
        let sizes = (0..most).step_by(most / 61).chain(most - 40..=most);
        for (region_bytes, size) in [0, usize::MAX]
            .into_iter()
            .flat_map(|region_bytes| sizes.clone().map(move |size| (region_bytes, size)))
        {
            let policy = GrowthPolicy { region_bytes, keep_free_bytes: 0 };
            let mut heap: Growing<_, [T; FIRST]> = Growing::new(&source, policy);
            let block = heap.malloc(size).unwrap_or_else(|| panic!("{size} of {most} bytes"));
            unsafe { block.write_bytes(7, size) };
            assert_eq!(heap.heap().validate(), Ok(()));
            assert_eq!(unsafe { heap.free(block) }, Ok(()));
            assert_eq!(source.free_pages(), source.page_count(), "{size} bytes");
            assert_eq!((heap.malloc(most + 1), source.free_pages()), (None, source.page_count()));
            for align in [64, 4096] {
                let Some(block) = heap.memalign(align, size) else {
                    let failure = heap.heap().last_failure();
                    assert_eq!(failure, Some(Failure::TooLarge), "{size} bytes at {align}");
                    continue;
                };
                assert_eq!(heap.heap().validate(), Ok(()));
                assert_eq!(unsafe { heap.free(block) }, Ok(()));
            }
            let small = heap.malloc(10).expect("the source has room");
            let grown = unsafe { heap.realloc(small, 1, size) }.expect("a block of the heap");
            assert!(grown.is_some(), "to {size} bytes");
            drop(heap);
            assert_eq!(source.free_pages(), source.page_count(), "{size} bytes");
        }
    }
    check::<Row<u16, 4>, 13>(4096);
    check::<Row<u16, 16>, 11>(64);
    check::<Row<u32, 2>, 12>(4096);
    check::<Row<u32, 32, 4>, 11>(4096);
    check::<Row<usize, 32>, 9>(4096);
    check::<Row<usize, 64, 8>, 8>(16);
}

#[test]
fn a_size_that_no_heap_has_is_not_asked_of_the_source() {
    let mut buffer = std::vec![0u8; 1 << 16];
    let source = Failing::new(Fixed::new(&mut buffer, 4096));
    let mut heap: Growing<_> = Growing::new(&source, GrowthPolicy::DEFAULT);
    for bytes in [1 << 40, usize::MAX] {
        assert_eq!(heap.malloc(bytes), None);
        assert_eq!(heap.memalign(64, bytes), None);
        assert_eq!(heap.heap().last_failure(), Some(Failure::TooLarge));
    }
    assert_eq!(source.calls(), 0);
}

#[test]
fn a_region_has_room_for_what_it_was_taken_for() {
    fn check<T: Shape>()
    where
        [T; 20]: Rows<Row = T>,
    {
        let mut buffer = std::vec![0u8; 64 << 10];
        // Regions are rounded up to little more than a granule.
        let source = Fixed::new(&mut buffer, 16);
        let policy = GrowthPolicy { region_bytes: 16, keep_free_bytes: 0 };
        for align in [1, 8, 16, 32, 512] {
            for bytes in 0..3000 {
                let mut heap: Growing<_, [T; 20]> = Growing::new(&source, policy);
                assert!(heap.memalign(align, bytes).is_some(), "{bytes} bytes at {align}");
            }
        }
    }
    check::<Row<u32, 2>>();
    check::<Row<usize, 32>>();
    // Heaps whose smallest blocks have more granules than the size needs.
    check::<Row<u32, 32, 4>>();
    check::<Row<usize, 2, 8>>();
}

#[test]
fn a_block_that_moves_gives_its_region_back() {
    let mut buffer = std::vec![0u8; 64 << 10];
    let source = Fixed::new(&mut buffer, 4096);
    let policy = GrowthPolicy { region_bytes: 4096, keep_free_bytes: 0 };
    let mut heap: Growing<_> = Growing::new(&source, policy);
    let block = heap.malloc(3000).expect("a region");
    let moved = unsafe { heap.realloc(block, 16, 10_000) }.expect("a block of the heap");
    assert!(moved.is_some_and(|moved| moved != block));
    let counts = heap.counts();
    assert_eq!((counts.get_mem_calls, counts.put_mem_calls, counts.region_bytes), (2, 1, 12 << 10));
}

/// The head of a pool takes more than a page of such a source, and so may a granule.
#[test]
fn regions_of_tiny_pages_go_back_whole() {
    fn check<T: Shape>()
    where
        [T; 20]: Rows<Row = T>,
    {
        let mut buffer = std::vec![0u8; 64 << 10];
        let source = Fixed::new(&mut buffer, 16);
        for bytes in (0..2000).step_by(8) {
            let policy = GrowthPolicy { region_bytes: 512, keep_free_bytes: 0 };
            let mut heap: Growing<_, [T; 20]> = Growing::new(&source, policy);
            let blocks = [100, bytes].map(|bytes| heap.malloc(bytes).expect("a region"));
            assert_eq!(unsafe { heap.free(blocks[1]) }, Ok(()));
            drop(heap);
            assert_eq!(source.free_pages(), source.page_count(), "{bytes} bytes");
        }
    }
    check::<Row<usize, 32>>();
    check::<Row<u32, 2, 64>>();
}

#[test]
fn chunks_that_no_source_can_reserve_are_refused() {
    let mut buffer = std::vec![0u8; 64 << 10];
    let source = Fixed::new(&mut buffer, 4096);
    let too_many = ChunkSet::<_, 2>::new(&source, 1 << (usize::BITS - 1));
    assert_eq!(too_many.err(), Some(hectare_pages::SourceError::Exhausted));
    // With chunks of half a page nothing would be reserved; chunks of three pages are not aligned.
    for bytes in [2048, 3 * 4096] {
        let wrong = std::panic::AssertUnwindSafe(|| ChunkSet::<_, 1>::new(&source, bytes).is_ok());
        let refused = std::panic::catch_unwind(wrong).expect_err("chunks that are refused");
        let told = refused.downcast_ref::<String>().expect("a message");
        assert!(told.ends_with("a power of two, of a page (4096 bytes) or more"), "{told}");
    }
    assert!(ChunkSet::<_, 1>::new(&source, 4096).is_ok(), "chunks of one page");
}

#[test]
fn each_cpu_has_a_shard_and_the_reservation_goes_back() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    {
        let set = ChunkSet::<_, 4>::new(&source, 64 << 10).expect("256 KiB fit");
        let heaps: Sharded<'_, _, 3, 4> = Sharded::new(&set, 0);
        let blocks = [0, 1, 2, 4].map(|cpu| heaps.memalign(cpu, 16, 1000).expect("room"));
        let mut used_bytes = Vec::new();
        heaps.for_each(|heap| used_bytes.push(heap.stats().used_bytes));
        // Four modulo three is one.
        assert_eq!(used_bytes, [1008, 2016, 1008]);
        for block in blocks {
            assert_eq!(unsafe { heaps.free(block) }, Ok(()));
        }
    }
    assert_eq!(source.free_pages(), source.page_count());
}

/// In separate processes, since each case ends its own.
#[test]
fn misuse_of_an_allocator_ends_the_program_and_does_not_unwind() {
    const NAME: &str = "misuse_of_an_allocator_ends_the_program_and_does_not_unwind";
    const CALL: &str = "HECTARE_TEST_MISUSED_CALL";
    static HEAP: Locked<Tlsf> = Locked::new(Tlsf::new());
    if let Ok(call) = std::env::var(CALL) {
        let mut arena = Arena::new(1 << 16);
        unsafe { HEAP.lock_mut().add_pool(arena.start(), 1 << 16) }.expect("fits");
        // A panic message allocates, as it does if the heap is the program's.
        std::panic::set_hook(std::boxed::Box::new(|panic| {
            assert!(HEAP.memalign(8, 100).is_some());
            std::eprintln!("{panic}");
        }));
        let layout = Layout::new::<[u8; 100]>();
        let _ = std::panic::catch_unwind(|| unsafe {
            let ptr = HEAP.alloc(layout);
            HEAP.dealloc(ptr, layout);
            let block = NonNull::new(ptr).expect("64 KiB have room");
            match call.as_str() {
                "dealloc" => HEAP.dealloc(ptr, layout),
                "realloc" => drop(GlobalAlloc::realloc(&HEAP, ptr, layout, 200)),
                "deallocate" => (&HEAP).deallocate(block, layout),
                "grow" => drop((&HEAP).grow(block, layout, Layout::new::<[u8; 200]>())),
                _ => drop((&HEAP).shrink(block, layout, Layout::new::<[u8; 50]>())),
            }
        });
        std::process::exit(0);
    }
    let program = std::env::current_exe().expect("the path of this test");
    for call in ["dealloc", "realloc", "deallocate", "grow", "shrink"] {
        let output = std::process::Command::new(&program)
            .args(["--nocapture", "--exact", &std::format!("tests::growth::{NAME}")])
            .env(CALL, call)
            .output()
            .expect("this test again");
        let stderr = std::string::String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{call} went on: {stderr}");
        assert!(stderr.contains(&std::format!("{call}(0x")), "{stderr}");
    }
}

#[test]
fn threads_share_a_locked_heap() {
    static HEAP: Locked<Tlsf> = Locked::new(Tlsf::new());
    let mut arena = Arena::new(1 << 20);
    unsafe { HEAP.lock_mut().add_pool(arena.start(), 1 << 20) }.expect("fits");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for round in 1..2_000usize {
                    let layout = Layout::from_size_align(round % 700 + 1, 1 << (round % 7))
                        .expect("a valid layout");
                    let ptr = unsafe { HEAP.alloc(layout) };
                    assert!(!ptr.is_null());
                    unsafe { ptr.write_bytes(thread, layout.size()) };
                    let ptr =
                        unsafe { GlobalAlloc::realloc(&HEAP, ptr, layout, 2 * layout.size()) };
                    assert!(!ptr.is_null() && ptr.addr() % layout.align() == 0);
                    let bytes = unsafe { core::slice::from_raw_parts(ptr, layout.size()) };
                    assert!(bytes.iter().all(|&byte| byte == thread));
                    unsafe { HEAP.dealloc(ptr, layout) };
                }
            });
        }
    });
    assert_eq!(HEAP.lock().validate(), Ok(()));
    assert_eq!(HEAP.lock().stats().used_bytes, 0);
}

#[test]
fn a_locked_heap_resizes_its_blocks_and_gives_their_sizes() {
    let mut arena = Arena::new(4096);
    let heap: Locked<Tlsf> = Locked::new(Tlsf::new());
    unsafe { heap.lock_mut().add_pool(arena.start(), 4096) }.expect("fits");
    let [block, behind] = [100, 100].map(|bytes| heap.memalign(64, bytes).expect("room"));
    unsafe { block.write_bytes(7, 100) };
    assert_eq!(unsafe { heap.realloc(block, 64, 5000) }, Ok(None));
    let moved = unsafe { heap.realloc(block, 64, 1000) }.expect("a block").expect("room");
    assert!(moved != block && moved.addr().get() % 64 == 0);
    assert!(unsafe { heap.usable_size(moved) }.is_ok_and(|bytes| (1000..1100).contains(&bytes)));
    Shadow::check(moved, 100, 7);
    assert_eq!(unsafe { heap.realloc(block, 64, 10) }, Err(Misuse::DoubleFree));
    assert_eq!(unsafe { heap.usable_size(block) }, Err(Misuse::DoubleFree));
    for block in [moved, behind] {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
    let heap = heap.lock();
    assert_eq!((heap.validate(), heap.stats().used_bytes), (Ok(()), 0));
}

/// A heap that notes which of its methods are called under its lock.
struct Noted {
    heap: Tlsf,
    calls: Vec<&'static str>,
    /// Whether `memalign` goes on only once another thread waits for the lock, and marks the block.
    awaits_another: bool,
}

impl Noted {
    const fn new() -> Self {
        Self { heap: Tlsf::new(), calls: Vec::new(), awaits_another: false }
    }
}

// SAFETY: every call is passed on.
unsafe impl Heap for Noted {
    fn memalign(&mut self, align: usize, size: usize) -> Option<NonNull<u8>> {
        self.calls.push("memalign");
        let block = self.heap.memalign(align, size)?;
        if self.awaits_another {
            let begun = Instant::now();
            while !ANOTHER_WAITS.load(Relaxed) {
                assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits");
                std::thread::yield_now();
            }
            unsafe { block.write(MARK) };
            MARKED.set(Some(block));
        }
        Some(block)
    }

    unsafe fn free(&mut self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        self.calls.push("free");
        unsafe { self.heap.free(ptr) }
    }

    unsafe fn realloc(
        &mut self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        self.calls.push("realloc");
        unsafe { self.heap.realloc(ptr, align, size) }
    }

    unsafe fn resize_in_place(&mut self, ptr: NonNull<u8>, size: usize) -> Result<bool, Misuse> {
        self.calls.push("resize_in_place");
        unsafe { self.heap.resize_in_place(ptr, size) }
    }

    unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
        unsafe { self.heap.usable_size(ptr) }
    }
}

/// Of the calls under the lock only `realloc` copies.
#[test]
fn others_wait_for_no_copy_where_another_block_has_room() {
    let mut arena = Arena::new(40_000);
    let heap = Locked::<Noted>::new(Noted::new());
    unsafe { heap.lock_mut().heap.add_pool(arena.start(), 40_000) }.expect("fits");
    let [first, mut mine] = [15_000, 5_000].map(|bytes| heap.memalign(16, bytes).expect("room"));
    let behind = heap.memalign(16, 100).expect("room");
    unsafe { mine.write_bytes(3, 5_000) };
    let layout = Layout::from_size_align(5_000, 16).expect("a valid layout");
    let mut resize = |size, is_moved, calls: &[&str]| {
        unsafe { heap.lock_mut() }.calls.clear();
        let now = unsafe { GlobalAlloc::realloc(&heap, mine.as_ptr(), layout, size) };
        let now = NonNull::new(now).expect("room");
        assert_eq!((now != mine, &heap.lock().calls[..]), (is_moved, calls), "{size} bytes");
        mine = now;
        Shadow::check(mine, 4_000, 3);
    };
    resize(4_000, false, &["resize_in_place"]);
    resize(5_000, false, &["resize_in_place"]);
    resize(15_000, true, &["resize_in_place", "memalign", "free"]);
    for block in [first, behind] {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
    // More than lies before or behind the block, so it takes part of both.
    resize(30_000, true, &["resize_in_place", "memalign", "realloc"]);
    assert_eq!(heap.lock().heap.validate(), Ok(()));
}

const MARK: u8 = 0xEE;
static ANOTHER_WAITS: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    /// The block that this thread has marked.
    static MARKED: Cell<Option<NonNull<u8>>> = const { Cell::new(None) };
    /// The first byte of that block when this thread freed the lock.
    static AS_FREED: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Looks at the marked block when the lock is freed, by the thread that frees it.
struct Watched;

impl Park for Watched {
    fn wait(word: &AtomicU32, expected: u32) {
        ANOTHER_WAITS.store(true, Relaxed);
        while word.load(Relaxed) == expected {
            std::thread::yield_now();
        }
    }

    fn wake_one(_word: &AtomicU32) {
        if let Some(block) = MARKED.take() {
            AS_FREED.set(Some(unsafe { block.read() }));
        }
    }

    fn give_way() {
        std::thread::yield_now();
    }
}

#[test]
fn the_lock_is_free_before_a_block_is_copied() {
    let mut arena = Arena::new(40_000);
    let heap = Locked::<Noted, Watched>::new(Noted::new());
    unsafe { heap.lock_mut().heap.add_pool(arena.start(), 40_000) }.expect("fits");
    let [mine, _behind] = [5_000, 100].map(|bytes| heap.memalign(16, bytes).expect("room"));
    unsafe { mine.write_bytes(3, 5_000) };
    unsafe { heap.lock_mut() }.awaits_another = true;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ANOTHER_WAITS.load(Relaxed) {
                drop(heap.lock());
            }
        });
        let layout = Layout::from_size_align(5_000, 16).expect("a valid layout");
        let now = unsafe { GlobalAlloc::realloc(&heap, mine.as_ptr(), layout, 15_000) };
        let now = NonNull::new(now).expect("room");
        assert_ne!(now, mine);
        Shadow::check(now, 5_000, 3);
    });
    assert_eq!(AS_FREED.get(), Some(MARK));
}

#[test]
fn shards_share_one_set_and_free_each_others_blocks() {
    let mut buffer = std::vec![0u8; 5 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let set = ChunkSet::<_, 64>::new(&source, 64 << 10).expect("4 MiB fit");
    let heaps: Sharded<'_, _, 4, 64> = Sharded::new(&set, 0);
    let (send, receive) = std::sync::mpsc::channel::<usize>();
    std::thread::scope(|scope| {
        for cpu in 0..3usize {
            let (heaps, send) = (&heaps, send.clone());
            scope.spawn(move || {
                let mut random = Random::new(cpu as u64 + 1);
                for _ in 0..3_000 {
                    let bytes = random.size(11) + 1;
                    let Some(ptr) = heaps.memalign(cpu, 16, bytes) else { continue };
                    unsafe { ptr.write_bytes(cpu as u8, bytes) };
                    let size = random.size(12) + 1;
                    let resized = unsafe { heaps.realloc(ptr, 16, size) }.expect("a used block");
                    let (ptr, kept) = resized.map_or((ptr, bytes), |new| (new, bytes.min(size)));
                    Shadow::check(ptr, kept, cpu as u8);
                    assert!(unsafe { heaps.usable_size(ptr) }.expect("a used block") >= kept);
                    if random.below(3) == 0 {
                        send.send(ptr.addr().get()).expect("the receiver lives");
                    } else {
                        assert_eq!(unsafe { heaps.free(ptr) }, Ok(()));
                    }
                }
            });
        }
        drop(send);
        for address in receive {
            let ptr = NonNull::new(core::ptr::with_exposed_provenance_mut(address));
            assert_eq!(unsafe { heaps.free(ptr.expect("sent by a thread")) }, Ok(()));
        }
    });
    heaps.for_each(|heap| assert_eq!(heap.validate(), Ok(())));
    heaps.for_each(|heap| assert_eq!(heap.stats().used_bytes, 0));
    assert_eq!(set.free_chunks(), 64, "every chunk went back to the set");
    let mut foreign = 0u128;
    let foreign = NonNull::from(&mut foreign).cast();
    assert_eq!(unsafe { heaps.free(foreign) }, Err(Misuse::Foreign));
    assert_eq!(unsafe { heaps.realloc(foreign, 16, 1) }, Err(Misuse::Foreign));
    assert_eq!(unsafe { heaps.usable_size(foreign) }, Err(Misuse::Foreign));
}

#[test]
fn a_region_is_no_larger_than_the_heap_can_hold() {
    let mut buffer = std::vec![0u8; 1 << 20];
    for region_bytes in [256 << 10, 512 << 10, usize::MAX] {
        let policy = GrowthPolicy { region_bytes, keep_free_bytes: 0 };
        let mut heap: Growing<_, [Row<u16, 4>; 13]> =
            Growing::new(Fixed::new(&mut buffer, 4096), policy);
        let block = heap.malloc(100).expect("256 KiB of the source's MiB");
        assert_eq!(heap.counts().region_bytes, 256 << 10);
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
}

#[test]
fn a_shard_borrows_from_another_when_the_set_is_spent() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let set = ChunkSet::<_, 2>::new(&source, 64 << 10).expect("128 KiB fit");
    let heaps: Sharded<'_, _, 2, 2> = Sharded::new(&set, 0);
    let blocks: Vec<_> = core::iter::from_fn(|| heaps.memalign(0, 16, 10_000)).collect();
    assert!(blocks.len() >= 12, "{} blocks", blocks.len());
    assert!(heaps.memalign(1, 16, 100).is_some(), "what is left belongs to shard 0");
    for block in blocks {
        assert_eq!(unsafe { heaps.free(block) }, Ok(()));
    }
}

#[test]
fn a_block_that_grows_moves_to_another_shard_when_its_own_has_no_room() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let set = ChunkSet::<_, 2>::new(&source, 64 << 10).expect("128 KiB fit");
    let heaps: Sharded<'_, _, 2, 2> = Sharded::new(&set, 0);
    let [mine, neighbour] =
        [30_000, 30_000].map(|bytes| heaps.memalign(0, 16, bytes).expect("room"));
    let other = heaps.memalign(1, 16, 20_000).expect("a chunk of its own");
    unsafe { mine.write_bytes(5, 30_000) };
    assert_eq!(unsafe { heaps.realloc(mine, 16, 50_000) }, Ok(None), "neither has so much");
    Shadow::check(mine, 30_000, 5);
    let moved = unsafe { heaps.realloc(mine, 16, 40_000) };
    let moved = moved.expect("a used block").expect("the other shard has room");
    assert!(moved > other, "behind the other shard's block");
    Shadow::check(moved, 30_000, 5);
    let again = heaps.memalign(0, 16, 30_000);
    assert_eq!(again, Some(mine), "the block that it left is free");
    for block in [mine, neighbour, other, moved] {
        assert_eq!(unsafe { heaps.free(block) }, Ok(()));
    }
    assert_eq!(set.free_chunks(), 2);
}

#[test]
fn a_block_that_moves_to_another_shard_stays_aligned() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let set = ChunkSet::<_, 2>::new(&source, 64 << 10).expect("128 KiB fit");
    let heaps: Sharded<'_, _, 2, 2> = Sharded::new(&set, 0);
    let mine = heaps.memalign(0, 4096, 20_000).expect("room");
    let neighbour = heaps.memalign(0, 16, 20_000).expect("room");
    let other = heaps.memalign(1, 16, 100).expect("a chunk of its own");
    let moved = unsafe { heaps.realloc(mine, 4096, 50_000) };
    let moved = moved.expect("a used block").expect("the other shard has room");
    assert_eq!((moved > other, moved.addr().get() % 4096), (true, 0));
    for block in [moved, neighbour, other] {
        assert_eq!(unsafe { heaps.free(block) }, Ok(()));
    }
}

#[test]
fn chunks_that_cannot_be_committed_are_not_decommitted() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Failing::new(Counted::new(Fixed::new(&mut buffer, 4096)));
    let set = ChunkSet::<_, 4>::new(&source, 64 << 10).expect("256 KiB fit");
    let heaps: Sharded<'_, _, 1, 4> = Sharded::new(&set, 0);
    source.refuse(source.calls()..source.calls() + 1);
    assert_eq!(heaps.memalign(0, 16, 100), None);
    assert_eq!((set.free_chunks(), source.inner().counts().decommit_calls), (4, 0));
    let block = heaps.memalign(0, 16, 100).expect("memory is back");
    assert_eq!(unsafe { heaps.free(block) }, Ok(()));
    assert_eq!((set.free_chunks(), source.inner().counts().decommit_calls), (4, 1));
}

#[test]
fn a_region_of_several_chunks_is_one_piece_and_goes_back_to_the_source() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let source = Counted::new(Fixed::new(&mut buffer, 4096));
    let set = ChunkSet::<_, 4>::new(&source, 64 << 10).expect("256 KiB fit");
    let heaps: Sharded<'_, _, 1, 4> = Sharded::new(&set, 0);
    let [first, kept, third] =
        [(); 3].map(|()| heaps.memalign(0, 16, 60_000).expect("a chunk of its own"));
    unsafe { kept.write_bytes(7, 60_000) };
    for block in [first, third] {
        assert_eq!(unsafe { heaps.free(block) }, Ok(()));
    }
    assert_eq!((set.free_chunks(), source.counts().decommitted_bytes_total), (3, 128 << 10));
    let long = heaps.memalign(0, 16, 100_000).expect("the last two chunks");
    assert!(long > kept && set.free_chunks() == 1);
    unsafe { long.write_bytes(9, 100_000) };
    Shadow::check(kept, 60_000, 7);
    for block in [kept, long] {
        assert_eq!(unsafe { heaps.free(block) }, Ok(()));
    }
    assert_eq!(set.free_chunks(), 4);
}
