//! The shadow model that every pool is tested against: each live handle with its exact payload. And
//! the tests that every pool must pass, see [`shadow_tests`].

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::vec;
use std::vec::Vec;

use hectare_base::sync::{Park, SpinPark, atomic::AtomicU32};
use hectare_check::{Payload, Random, seed, soak_operations};
use hectare_pages::{Counted, Failing, Fixed, Os};

use crate::{Handle, NoObject, Pool, PoolError};

/// A pool that can check all it holds.
pub(crate) trait Validate: Pool {
    /// Panics if an invariant does not hold. Call it only while no other thread is inside a call.
    fn validate(&self);
}

/// How sizes are drawn in one stretch of a run (swarm testing, Groce et al., 2012: each stretch has
/// its own weights, so that rare states are reached).
#[derive(Debug, Clone, Copy)]
struct Swarm {
    alloc_of_100: usize,
    low: usize,
    high: usize,
    compact_of_1000: usize,
    newest_first: bool,
}

impl Swarm {
    fn draw(random: &mut Random, max_bytes: usize) -> Self {
        let (low, high) = match random.below(6) {
            0 => (1, 64),
            1 => (max_bytes / 2, max_bytes),
            2 => (max_bytes - 1, max_bytes),
            3 => {
                let low = 1 + random.below(max_bytes - 65);
                (low, low + 64)
            }
            _ => (1, max_bytes),
        };
        Self {
            alloc_of_100: [20, 45, 50, 55, 80][random.below(5)],
            low,
            high,
            compact_of_1000: [0, 0, 1, 20][random.below(4)],
            newest_first: random.below(4) == 0,
        }
    }
}

/// What should be in the pool.
pub(crate) struct Shadow {
    objects: Vec<(Handle, Payload, usize)>,
    names: HashSet<Handle>,
    bounce: Vec<u8>,
    next_tag: u64,
    pub(crate) live_bytes: usize,
    pub(crate) refused: usize,
}

impl Shadow {
    /// An empty shadow; no two shadows of one pool share tags.
    pub(crate) fn new(pool: &impl Pool, first_tag: u64) -> Self {
        Self {
            objects: Vec::new(),
            names: HashSet::new(),
            bounce: vec![0; pool.max_size_bytes()],
            next_tag: first_tag,
            live_bytes: 0,
            refused: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn alloc(&mut self, pool: &impl Pool, size_bytes: usize) -> Result<(), PoolError> {
        let handle = pool.alloc(size_bytes)?;
        assert!(self.names.insert(handle), "{handle:?} was handed out twice");
        let payload = Payload::new(self.next_tag);
        self.next_tag += 1;
        let content = &mut self.bounce[..size_bytes];
        // SAFETY: the buffer has as many bytes; the object was just allocated, for this shadow.
        unsafe {
            payload.write(NonNull::from(&mut *content).cast(), 0, size_bytes);
            assert_eq!(pool.size_bytes(handle), size_bytes);
            pool.write(handle, content);
        }
        self.objects.push((handle, payload, size_bytes));
        self.live_bytes += size_bytes;
        Ok(())
    }

    pub(crate) fn verify(&mut self, pool: &impl Pool, index: usize) {
        let (handle, payload, size_bytes) = self.objects[index];
        let mut calls = 0;
        let mut reader = |bytes: &[u8]| {
            calls += 1;
            assert_eq!(bytes.len(), size_bytes);
            // SAFETY: the slice's own bytes.
            let wrong =
                unsafe { payload.first_difference(NonNull::from(bytes).cast(), size_bytes) };
            assert_eq!(wrong, None, "object {} of {size_bytes} bytes", payload.tag());
        };
        // SAFETY: a live object that was written whole.
        unsafe { pool.read(handle, &mut self.bounce, &mut reader) };
        assert_eq!(calls, 1);
    }

    pub(crate) fn free(&mut self, pool: &impl Pool, index: usize) {
        self.verify(pool, index);
        let (handle, _, size_bytes) = self.objects.swap_remove(index);
        self.names.remove(&handle);
        self.live_bytes -= size_bytes;
        // SAFETY: live until now, and forgotten here.
        unsafe { pool.free(handle) };
    }

    /// Frees objects drawn at random until `count` are left.
    pub(crate) fn thin_out(&mut self, pool: &impl Pool, random: &mut Random, count: usize) {
        while self.len() > count {
            let index = random.below(self.len());
            self.free(pool, index);
        }
    }

    pub(crate) fn verify_all(&mut self, pool: &impl Pool) {
        (0..self.len()).for_each(|index| self.verify(pool, index));
    }

    pub(crate) fn drain(&mut self, pool: &impl Pool) {
        while self.len() > 0 {
            self.free(pool, self.len() - 1);
        }
    }

    /// Checks the pool's invariants, and its account against the shadow's.
    fn compare(&self, pool: &impl Validate) {
        pool.validate();
        let stats = pool.stats();
        assert_eq!((stats.objects, stats.stored_bytes), (self.len(), self.live_bytes));
        assert!(stats.footprint_bytes() >= self.live_bytes);
    }
}

/// Runs `operations` random operations with at most `live` objects, calling `check` after every
/// `check_every` of them.
fn churn(
    pool: &impl Pool,
    shadow: &mut Shadow,
    seed: u64,
    (operations, live): (u64, usize),
    (check_every, check): (u64, impl Fn(&Shadow)),
) {
    let mut random = Random::new(seed);
    let max_bytes = pool.max_size_bytes();
    let mut swarm = Swarm::draw(&mut random, max_bytes);
    for operation in 0..operations {
        if random.one_in(500) {
            swarm = Swarm::draw(&mut random, max_bytes);
        }
        if random.below(1000) < swarm.compact_of_1000 {
            if random.one_in(2) {
                pool.compact();
            } else {
                (0..random.below(8)).map_while(|_| pool.compact_some()).for_each(drop);
            }
        }
        let wants_alloc = random.below(100) < swarm.alloc_of_100;
        if shadow.len() == 0 || (wants_alloc && shadow.len() < live) {
            let size_bytes = swarm.low + random.below(swarm.high - swarm.low + 1);
            if shadow.alloc(pool, size_bytes.clamp(1, max_bytes)).is_err() {
                shadow.refused += 1;
            }
        } else {
            let last = shadow.len() - 1;
            let index = if swarm.newest_first { last } else { random.below(last + 1) };
            shadow.free(pool, index);
        }
        if operation % check_every == 0 {
            check(shadow);
        }
    }
    shadow.verify_all(pool);
}

/// Long runs: one of few objects, checked after every operation, and one of many, checked now and
/// then.
pub(crate) fn agrees_with_its_shadow<'a, P: Validate + 'a>(
    source: &'a Counted<Os>,
    make: impl Fn(&'a Counted<Os>, u64) -> P,
) {
    let first = seed(0);
    for seed in first..first + 8 {
        let pool = make(source, seed);
        let mut shadow = Shadow::new(&pool, seed << 32);
        churn(&pool, &mut shadow, seed, (2000, 60), (1, |shadow| shadow.compare(&pool)));
        let runs = (soak_operations(20_000), 2000);
        churn(&pool, &mut shadow, !seed, runs, (97, |shadow| shadow.compare(&pool)));
        // A pool that keeps its address space takes pages again without asking, and tables reserve
        // up to twice what they use.
        if pool.name() != "dense" {
            let stats = pool.stats();
            let taken_bytes = source.counts().reserved_bytes + size_of::<P>();
            let most_bytes = stats.footprint_bytes() + stats.cell_bytes + stats.descriptor_bytes;
            assert!((stats.footprint_bytes()..=most_bytes).contains(&taken_bytes), "{stats:?}");
        }
        let most_bytes = pool.max_size_bytes();
        for bytes in [0, most_bytes + 1, usize::MAX] {
            assert_eq!(pool.alloc(bytes), Err(PoolError::Size { bytes, most_bytes }));
        }
        shadow.drain(&pool);
        pool.compact();
        shadow.compare(&pool);
        assert_eq!(pool.stats().page_bytes, 0, "an empty pool holds no page");
        drop(pool);
        assert_eq!(source.counts().reserved_bytes, 0, "a dropped pool holds nothing");
    }
}

pub(crate) fn refuses_in_a_full_buffer(pool: &impl Validate) {
    let mut shadow = Shadow::new(pool, 0);
    churn(pool, &mut shadow, 5, (10_000, 2000), (97, |shadow| shadow.compare(pool)));
    assert!(shadow.refused > 0, "a megabyte is not enough");
    shadow.drain(pool);
    shadow.compare(pool);
}

/// Makes every call of a run to the source fail in turn, first that call alone and then all from it
/// on. The pool must refuse cleanly, stay sound, and work again once memory is back.
pub(crate) fn survives_every_refusal<'a, P: Validate + 'a>(
    failing: &'a Failing<Counted<Os>>,
    make: impl Fn(&'a Failing<Counted<Os>>) -> Option<P>,
) {
    let run = |pool: &P, seed| {
        let mut shadow = Shadow::new(pool, 0);
        churn(pool, &mut shadow, seed, (300, 100), (9, |shadow| shadow.compare(pool)));
        pool.compact();
        shadow.compare(pool);
        shadow
    };
    for seed in 0..3 {
        let first = failing.calls();
        run(&make(failing).expect("memory"), seed);
        let held_bytes = failing.inner().counts().reserved_bytes;
        let calls = failing.calls() - first;
        let mut refusals = 0;
        for call in 0..calls {
            for until_end in [false, true] {
                let first = failing.calls() + call;
                failing.refuse(first..if until_end { u64::MAX } else { first + 1 });
                let Some(pool) = make(failing) else {
                    refusals += 1;
                    failing.refuse_all(false);
                    continue;
                };
                let mut shadow = run(&pool, seed);
                refusals += shadow.refused;
                failing.refuse_all(false);
                shadow.alloc(&pool, pool.max_size_bytes()).expect("memory is back");
                shadow.drain(&pool);
                shadow.compare(&pool);
                drop(pool);
                assert_eq!(failing.inner().counts().reserved_bytes, held_bytes, "call {call}");
            }
        }
        assert!(refusals > 0, "no call was ever refused");
    }
}

/// Objects of every size in pages of the smallest size.
pub(crate) fn serves_from_tiny_pages(pool: &impl Validate) {
    let mut shadow = Shadow::new(pool, 0);
    for size_bytes in (1..=pool.max_size_bytes()).cycle().take(2000) {
        shadow.alloc(pool, size_bytes).expect("a megabyte has room");
        if shadow.len() > 300 {
            shadow.free(pool, 7);
        }
    }
    shadow.compare(pool);
    shadow.drain(pool);
    pool.compact();
    shadow.compare(pool);
}

/// Three threads with objects of their own, and a fourth that compacts without a pause.
pub(crate) fn threads_share_it_while_it_is_compacted(pool: &impl Validate) {
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let done = &done;
            scope.spawn(move || {
                let mut shadow = Shadow::new(pool, thread << 40);
                churn(pool, &mut shadow, !thread, (10_000, 500), (u64::MAX, |_| ()));
                shadow.drain(pool);
                done.fetch_add(1, Relaxed);
            });
        }
        while done.load(Relaxed) < 3 {
            (0..64).map_while(|_| pool.compact_some()).for_each(drop);
            pool.compact();
            std::thread::yield_now();
        }
    });
    pool.compact();
    pool.validate();
    assert_eq!((pool.stats().objects, pool.stats().page_bytes), (0, 0));
}

/// Says whether any thread has given way; `POOL` tells tests apart that run at once.
#[derive(Debug)]
pub(crate) struct Noted<const POOL: usize>;

static HAVE_GIVEN_WAY: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

impl<const POOL: usize> Park for Noted<POOL> {
    fn wait(word: &AtomicU32, expected: u32) {
        SpinPark::wait(word, expected);
    }

    fn wake_one(_word: &AtomicU32) {}

    fn give_way() {
        HAVE_GIVEN_WAY[POOL].store(true, Relaxed);
        std::thread::yield_now();
    }
}

/// A thread that only spun would keep its CPU from a preempted reader for as long as it may run.
pub(crate) fn who_waits_for_a_reader_gives_way<const POOL: usize>(pool: &impl Pool) {
    let mut shadow = Shadow::new(pool, 0);
    shadow.alloc(pool, 100).expect("memory");
    let (handle, ..) = shadow.objects[0];
    let read = |reader: &mut dyn FnMut(&[u8])| {
        let mut bounce = vec![0; pool.max_size_bytes()];
        // SAFETY: live, written whole, and written by nobody meanwhile.
        unsafe { pool.read(handle, &mut bounce, reader) };
    };
    std::thread::scope(|scope| {
        read(&mut |_| {
            scope.spawn(|| read(&mut |_| ()));
            let begun = Instant::now();
            while !HAVE_GIVEN_WAY[POOL].load(Relaxed) {
                assert!(begun.elapsed() < Duration::from_secs(30), "it only spins");
                std::thread::yield_now();
            }
        });
    });
    shadow.drain(pool);
}

/// An object that threads take turns to write, and what was last written to it.
struct Written {
    handle: Handle,
    payload: Payload,
    size_bytes: usize,
}

impl Written {
    fn write(&mut self, pool: &impl Pool, buffer: &mut [u8], tag: u64) {
        self.payload = Payload::new(tag);
        let content = &mut buffer[..self.size_bytes];
        // SAFETY: the buffer has as many bytes.
        unsafe { self.payload.write(NonNull::from(&mut *content).cast(), 0, self.size_bytes) };
        // SAFETY: live, and borrowed to this thread alone.
        unsafe { pool.write(self.handle, content) };
    }

    fn verify(&self, pool: &impl Pool, bounce: &mut [u8]) {
        let mut reader = |bytes: &[u8]| {
            assert_eq!(bytes.len(), self.size_bytes);
            // SAFETY: the slice's own bytes.
            let wrong =
                unsafe { self.payload.first_difference(NonNull::from(bytes).cast(), bytes.len()) };
            assert_eq!(wrong, None, "write {} of {} bytes", self.payload.tag(), bytes.len());
        };
        // SAFETY: live, and borrowed, so that nobody writes it.
        unsafe { pool.read(self.handle, bounce, &mut reader) };
    }
}

/// Three threads read, rewrite, free and replace the same objects; several of them read one object
/// at once. A fourth makes holes below those objects and compacts, asks for statistics, and has the
/// source refuse every call for a while. Wherever an object has moved, it must have what was last
/// written to it.
pub(crate) fn threads_share_objects_while_these_move(
    pool: &impl Validate,
    failing: &Failing<Counted<Os>>,
) {
    const ROUNDS: usize = 1000;
    let slots: Vec<RwLock<Option<Written>>> = (0..24).map(|_| RwLock::new(None)).collect();
    let is_over = AtomicBool::new(false);
    let work = |thread: u64| {
        let mut random = Random::new(thread);
        let mut buffer = vec![0; pool.max_size_bytes()];
        let mut swarm = Swarm::draw(&mut random, buffer.len());
        for operation in (0_u64..).take_while(|_| !is_over.load(Relaxed)) {
            if random.one_in(500) {
                swarm = Swarm::draw(&mut random, buffer.len());
            }
            let slot = &slots[random.below(slots.len())];
            if random.one_in(3) {
                let slot = slot.read().expect("a sound slot");
                slot.iter().for_each(|object| object.verify(pool, &mut buffer));
                continue;
            }
            let tag = thread << 40 | operation;
            let mut slot = slot.write().expect("a sound slot");
            if let Some(object) = slot.as_mut().filter(|_| !random.one_in(8)) {
                object.write(pool, &mut buffer, tag);
                object.verify(pool, &mut buffer);
                continue;
            }
            if let Some(object) = slot.take() {
                object.verify(pool, &mut buffer);
                // SAFETY: live until now, and taken out of its slot.
                unsafe { pool.free(object.handle) };
            }
            let size_bytes = swarm.low + random.below(swarm.high - swarm.low + 1);
            let size_bytes = size_bytes.clamp(1, buffer.len());
            if let Ok(handle) = pool.alloc(size_bytes) {
                let mut object = Written { handle, payload: Payload::new(tag), size_bytes };
                object.write(pool, &mut buffer, tag);
                *slot = Some(object);
            }
        }
    };
    std::thread::scope(|scope| {
        let _ends_them = OnDrop(|| is_over.store(true, Relaxed));
        let work = &work;
        (1..4).for_each(|thread| _ = scope.spawn(move || work(thread)));
        let (mut holes, mut random) = (Shadow::new(pool, 0), Random::new(0));
        for round in 0..ROUNDS {
            for _ in 0..60 {
                _ = holes.alloc(pool, 1 + random.below(pool.max_size_bytes()));
            }
            failing.refuse_all(round % 2 == 1);
            holes.thin_out(pool, &mut random, 12);
            (0..64).map_while(|_| pool.compact_some()).for_each(drop);
            pool.compact();
            let stats = pool.stats();
            assert!(stats.pages_returned <= stats.pages_taken, "{stats:?}");
            failing.refuse_all(false);
        }
        holes.drain(pool);
    });
    assert!(pool.stats().objects_moved > 0 || pool.name() == "xv", "nothing was moved");
    pool.validate();
    let mut buffer = vec![0; pool.max_size_bytes()];
    let left: Vec<_> =
        slots.into_iter().filter_map(|slot| slot.into_inner().expect("a sound slot")).collect();
    let left_bytes: usize = left.iter().map(|object| object.size_bytes).sum();
    assert_eq!((pool.stats().objects, pool.stats().stored_bytes), (left.len(), left_bytes));
    for object in left {
        object.verify(pool, &mut buffer);
        // SAFETY: live until now.
        unsafe { pool.free(object.handle) };
    }
    pool.compact();
    pool.validate();
    assert_eq!((pool.stats().objects, pool.stats().page_bytes), (0, 0));
}

/// Acts when it is dropped, even by a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// For pools whose handles name cells: an object that was freed once can be neither freed again nor
/// read, whatever became of its memory, and nothing changes.
pub(crate) fn refuses_what_was_freed(pool: &impl Validate) {
    let mut shadow = Shadow::new(pool, 0);
    for size_bytes in [1, 100, 1000, pool.max_size_bytes()].into_iter().cycle().take(200) {
        shadow.alloc(pool, size_bytes).expect("memory");
    }
    let (mut random, mut freed) = (Random::new(0), Vec::new());
    while shadow.len() > 100 {
        let index = random.below(shadow.len());
        freed.push(shadow.objects[index].0);
        shadow.free(pool, index);
        for &handle in &freed {
            // SAFETY: it is of this pool, and no object was made since it was freed.
            let again = unsafe { pool.try_free(handle) };
            assert_eq!(again, Err(NoObject { handle }));
        }
        for &handle in freed.iter().rev().take(10) {
            let mut reader = |_: &[u8]| panic!("{handle:?} was read");
            // SAFETY: as above.
            let read = unsafe { pool.try_read(handle, &mut shadow.bounce, &mut reader) };
            assert_eq!(read, Err(NoObject { handle }));
        }
        shadow.compare(pool);
    }
    shadow.verify_all(pool);
    shadow.drain(pool);
    pool.compact();
    shadow.compare(pool);
}

/// Frees an object, and then again by the call that panics if it detects that.
pub(crate) fn frees_twice(pool: &impl Pool) {
    let [handle, _keeps_the_page] = [100, 100].map(|bytes| pool.alloc(bytes).expect("memory"));
    for _ in 0..2 {
        // SAFETY: live at first; the second call is refused.
        unsafe { pool.free(handle) };
    }
}

/// Writes to an object that was freed.
pub(crate) fn writes_after_free(pool: &impl Pool) {
    let [handle, _keeps_the_page] = [100, 100].map(|bytes| pool.alloc(bytes).expect("memory"));
    // SAFETY: live until now.
    unsafe { pool.free(handle) };
    // SAFETY: refused, since no object was made since.
    unsafe { pool.write(handle, &[1]) };
}

/// A megabyte, as a source of such pages.
pub(crate) fn megabyte(buffer: &mut Vec<u8>, page_bytes: usize) -> Fixed<'_> {
    buffer.resize(1 << 20, 0);
    Fixed::new(buffer, page_bytes)
}

/// The tests that every pool must pass. `$make` is `|source, seed| pool` for any source. It gives
/// an `Option` for a pool that needs memory from the start.
macro_rules! shadow_tests {
    (|$source:ident, $seed:ident| $make:expr, buffer pages of $page_bytes:expr) => {
        #[test]
        fn agrees_with_its_shadow() {
            let source = hectare_pages::Counted::new(hectare_pages::Os);
            $crate::testing::agrees_with_its_shadow(&source, |$source, $seed| {
                $make.expect("memory")
            });
        }

        #[test]
        fn refuses_in_a_full_buffer() {
            let mut buffer = std::vec::Vec::new();
            let ($source, $seed) = ($crate::testing::megabyte(&mut buffer, $page_bytes), 0);
            $crate::testing::refuses_in_a_full_buffer(&$make.expect("memory"));
        }

        #[test]
        fn survives_every_refusal() {
            let failing =
                hectare_pages::Failing::new(hectare_pages::Counted::new(hectare_pages::Os));
            $crate::testing::survives_every_refusal(&failing, |$source| {
                let $seed = 0;
                $make
            });
        }

        #[test]
        fn threads_share_it_while_it_is_compacted() {
            let ($source, $seed) = (hectare_pages::Os, 0);
            $crate::testing::threads_share_it_while_it_is_compacted(&$make.expect("memory"));
        }

        #[test]
        fn threads_share_objects_while_these_move() {
            let failing =
                hectare_pages::Failing::new(hectare_pages::Counted::new(hectare_pages::Os));
            let ($source, $seed) = (&failing, 0);
            $crate::testing::threads_share_objects_while_these_move(
                &$make.expect("memory"),
                &failing,
            );
        }
    };
}
pub(crate) use shadow_tests;
