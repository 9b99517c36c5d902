//! What a pool keeps of a class, and what it counts as its stock.

extern crate std;

use super::*;
use crate::object::{FreeObject, Key};
use std::alloc::{Layout, alloc_zeroed};
use std::vec::Vec;

const SMALL: usize = 64;

/// Slots of a class, and the count of their stock.
struct Pool {
    slots: Slots,
    class: ClassId,
    told_bytes: AtomicUsize,
    /// The first of four objects, of which each batch is made.
    head: FreeObject,
}

impl Pool {
    /// A pool of objects that lie in a row.
    fn new(bytes: usize) -> Self {
        Self::with_places(bytes, [0, 1, 2, 3])
    }

    /// A pool of objects that lie, in the order of their list, at the places with these numbers.
    fn with_places(bytes: usize, places: [usize; 4]) -> Self {
        let class = ClassId::for_bytes(bytes);
        let start = memory(16 * class.object_bytes()).expect("memory");
        let mut next = None;
        for at in places.into_iter().rev() {
            // SAFETY: within the memory, which is the pool's.
            let object = unsafe { FreeObject::new(start.add(at * class.object_bytes())) };
            object.link(next, Key(1));
            next = Some(object);
        }
        let head = next.expect("four objects");
        Self { slots: Slots::EMPTY, class, told_bytes: AtomicUsize::new(0), head }
    }

    /// Puts `count` whole batches. Returns how many stay.
    fn put(&mut self, count: usize, memory: fn(usize) -> Option<NonNull<u8>>) -> usize {
        self.put_short(count, self.class.batch(), memory)
    }

    /// Puts `count` batches of `objects` objects each. Returns how many stay.
    fn put_short(
        &mut self,
        count: usize,
        objects: usize,
        memory: fn(usize) -> Option<NonNull<u8>>,
    ) -> usize {
        let mut stay = 0;
        for _ in 0..count {
            let batch = Batch { head: self.head, count: objects };
            stay += usize::from(self.slots.put(self.class, batch, memory).is_none());
            self.slots.tell(self.class, &self.told_bytes);
        }
        stay
    }

    /// Asks for `count` batches. Returns how many come.
    fn take(&mut self, count: usize) -> usize {
        self.empty(count, Slots::take)
    }

    /// Takes out at most `most` batches by `take`. Returns how many come.
    fn empty(&mut self, most: usize, take: fn(&mut Slots, ClassId) -> Option<Batch>) -> usize {
        let mut count = 0;
        for _ in 0..most {
            count += usize::from(take(&mut self.slots, self.class).is_some());
            self.slots.tell(self.class, &self.told_bytes);
        }
        count
    }

    /// Lets a demand of `count` batches come and go until all of it is kept, or for `rounds`.
    fn swing(&mut self, count: usize, rounds: usize) -> usize {
        let mut stay = 0;
        for _ in 0..rounds {
            stay = self.put(count, memory);
            self.take(count);
        }
        stay
    }

    /// Panics unless the count of the stock is right, to within some batches.
    fn check_told(&self) {
        let stocked = self.slots.stocked(self.class) as usize * self.class.object_bytes();
        let told = self.told_bytes.load(Relaxed);
        assert!(
            told.abs_diff(stocked) < TOLD_AT_ONCE && (stocked > 0 || told == 0),
            "{told} {stocked}"
        );
    }
}

#[allow(clippy::unnecessary_wraps, reason = "as a heap's memory")]
fn memory(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: of a size that is not 0. It is never given back, as a heap's own.
    NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 128).expect("a layout")) })
}

#[test]
fn zeros_are_empty_slots() {
    // SAFETY: what this test is about: each field may be zero.
    let zeros: Slots = unsafe { core::mem::zeroed() };
    assert_eq!(std::format!("{zeros:?}"), std::format!("{:?}", Slots::EMPTY));
}

#[test]
fn the_limit_follows_a_swing() {
    let mut pool = Pool::new(SMALL);
    assert_eq!(pool.swing(400, 1), usize::from(FIRST_LIMIT));
    assert_eq!(pool.swing(400, 15), 400);
    pool.check_told();
    assert_eq!(pool.swing(5000, 20), PLACES + STOCK, "no more than there are places");
    pool.check_told();
}

#[test]
fn who_only_frees_has_no_stock() {
    let mut pool = Pool::new(SMALL);
    assert_eq!(pool.put(1000, |_| None), usize::from(FIRST_LIMIT));
    assert_eq!(pool.empty(2000, |slots, _| slots.pop()), usize::from(FIRST_LIMIT));
    assert_eq!(pool.put(1000, |_| None), usize::from(FIRST_LIMIT));
}

#[test]
fn of_long_batches_as_many_bytes_are_kept() {
    for bytes in [2000, 6000, 10_000, 30_000] {
        let mut pool = Pool::new(bytes);
        let share = pool.class.batch_bytes().div_ceil(BATCH_BYTES);
        assert!(share > 1);
        let first = usize::from(FIRST_LIMIT) / share;
        assert_eq!(pool.swing(400, 1), first, "{bytes} bytes");
        assert_eq!(pool.swing(3000, 20), (PLACES + STOCK) / share, "{bytes} bytes");
        pool.put(3000, memory);
        let kept = (PLACES + STOCK) / share;
        assert_eq!(pool.empty(3000, Slots::drain_stock), kept - first, "all but the first");
        assert_eq!(pool.told_bytes.load(Relaxed), 0);
    }
}

#[test]
fn without_memory_there_is_none() {
    let mut pool = Pool::new(SMALL);
    for _ in 0..20 {
        pool.put(400, |_| None);
        pool.take(400);
    }
    assert_eq!(pool.put(400, |_| None), PLACES);
    assert_eq!(pool.take(400), PLACES);
    assert_eq!(pool.swing(400, 15), 400, "once there is");
}

#[test]
fn what_nobody_needed_goes() {
    let mut pool = Pool::new(SMALL);
    pool.swing(400, 15);
    pool.put(400, memory);
    let idle = |pool: &mut Pool| pool.empty(1000, Slots::drain_idle);
    // One of the thousand asks begins the next look.
    let look = |pool: &mut Pool| {
        let mut gone = 0;
        while pool.slots.drain_idle(pool.class).is_some() {
            gone += 1;
            pool.slots.tell(pool.class, &pool.told_bytes);
        }
        pool.check_told();
        gone
    };
    assert_eq!(look(&mut pool), 0, "all were needed");
    pool.take(150);
    pool.put(150, memory);
    assert_eq!(look(&mut pool), 250);
    assert_eq!(look(&mut pool), 150);
    assert_eq!(idle(&mut pool), 0);
    assert_eq!(pool.told_bytes.load(Relaxed), 0);
}

#[test]
fn what_is_needed_stays_where_a_stock_ends() {
    let mut pool = Pool::new(SMALL);
    assert_eq!(pool.swing(40, 15), 40);
    pool.put(40, memory);
    assert_eq!(pool.empty(1, Slots::drain_idle), 0, "all were needed");
    pool.take(10);
    pool.put(10, memory);
    // The last ask ends the look.
    assert_eq!(pool.empty(31, Slots::drain_idle), 30, "what nobody needed");
    assert_eq!(pool.take(40), 10);
    assert_eq!(pool.put(100, memory), PLACES, "it has no stock any more");
}

#[test]
fn short_batches_count_as_what_they_hold() {
    let mut pool = Pool::new(SMALL);
    assert_eq!(pool.swing(900, 30), 900);
    let told = |pool: &Pool| pool.told_bytes.load(Relaxed);
    assert_eq!(pool.put_short(900, 1, memory), 900);
    assert!(told(&pool) <= 900 * SMALL, "{} told of {}", told(&pool), 900 * SMALL);
    assert_eq!((pool.take(900), told(&pool), pool.slots.objects()), (900, 0, 0));
    let half = pool.class.batch() / 2;
    pool.put_short(900, half, memory);
    let unstocked = PLACES * pool.class.batch();
    assert!(told(&pool) + TOLD_AT_ONCE > (900 * half - unstocked) * SMALL, "{}", told(&pool));
    pool.check_told();
}

#[test]
fn what_is_emptied_is_told() {
    let mut pool = Pool::new(SMALL);
    pool.swing(400, 15);
    pool.put(400, memory);
    assert_eq!(pool.empty(1000, Slots::drain_stock), 400 - PLACES);
    assert_eq!(pool.told_bytes.load(Relaxed), 0);
    assert_eq!(pool.slots.objects(), PLACES * pool.class.batch());
    assert_eq!(pool.empty(1000, |slots, _| slots.drain()), PLACES);
    assert_eq!(pool.put(400, memory), usize::from(FIRST_LIMIT), "it begins anew");
}

#[test]
fn little_is_lent_of_what_swings() {
    let mut pool = Pool::new(SMALL);
    pool.swing(400, 15);
    pool.put(400, memory);
    let lend = |slots: &mut Slots, _| slots.lend();
    assert_eq!(pool.empty(1, lend), 0, "its own CPU is at work");
    // Each further ask in vain lowers what is kept by one.
    assert_eq!(pool.empty(100, lend), 50);
    assert_eq!(pool.empty(1000, lend), 350, "what nobody needs any more");
}

#[test]
fn nothing_is_lent_of_what_its_own_cpu_goes_on_using() {
    let mut pool = Pool::new(SMALL);
    pool.swing(400, 15);
    pool.put(300, memory);
    let lend = |slots: &mut Slots, _| slots.lend();
    for _ in 0..1000 {
        assert_eq!(pool.put(1, memory), 1);
        assert_eq!(pool.empty(1, lend), 0, "freed by its CPU since the last ask");
        assert_eq!(pool.take(1), 1);
        assert_eq!(pool.empty(1, lend), 0, "taken by its CPU since the last ask");
    }
}

#[test]
fn what_is_asked_for_in_vain_is_kept_up_to_a_bound() {
    let mut pool = Pool::new(SMALL);
    let lend = |slots: &mut Slots, _| slots.lend();
    assert_eq!(pool.take(1000), 0);
    let stay = pool.put(1000, memory);
    assert_eq!(stay, usize::from(FIRST_LIMIT));
    assert_eq!(pool.empty(1, lend), 0, "its own CPU is at work");
    // At first as many are kept as there are places. After that, each second ask is in vain.
    assert_eq!(pool.empty(PLACES - stay, lend), 0);
    assert_eq!(pool.empty(2 * stay, lend), stay);
}

#[test]
fn what_is_left_of_a_stock_that_went_is_lent() {
    let mut pool = Pool::new(SMALL);
    pool.swing(400, 15);
    pool.put(400, memory);
    assert_eq!(pool.empty(1000, Slots::drain_stock), 400 - PLACES);
    let lend = |slots: &mut Slots, _| slots.lend();
    assert_eq!(pool.empty(1 + 2 * PLACES, lend), PLACES, "all but the first and each second ask");
}

#[test]
fn of_small_objects_that_lie_here_and_there_few_are_stocked() {
    for places in [[0, 2, 4, 6], [0, 1, 2, 5], [3, 2, 1, 4]] {
        for bytes in [16, SMALL, 256] {
            let mut pool = Pool::with_places(bytes, places);
            let near = NEAR_BYTES.div_ceil(pool.class.batch_bytes());
            assert_eq!(pool.swing(near, 15), near, "{bytes}, {places:?}");
            assert_eq!(pool.swing(near + 100, 2), PLACES, "{bytes}, {places:?}: slabs sort them");
            assert_eq!(pool.told_bytes.load(Relaxed), 0);
        }
    }
    for places in [[0, 1, 2, 3], [9, 8, 7, 6]] {
        assert_eq!(Pool::with_places(SMALL, places).swing(400, 15), 400, "{places:?}");
    }
    assert_eq!(
        Pool::with_places(1000, [0, 2, 4, 6]).swing(400, 15),
        400,
        "these note where they lie"
    );
}

#[test]
fn of_what_is_stocked_the_first_notes_the_others() {
    let mut pool = Pool::with_places(1000, [7, 2, 4, 11]);
    pool.swing(400, 15);
    pool.put(400, memory);
    let places: Vec<_> = core::iter::successors(Some(pool.head), |object| object.next()).collect();
    let words = pool.head.as_ptr().cast::<usize>();
    for (at, object) in places.iter().enumerate().skip(1) {
        // SAFETY: within the first object, which is the pool's.
        let noted = unsafe { words.add(1 + at).read() };
        assert_eq!(noted, object.as_ptr().addr().get());
    }
    assert_eq!(places.len(), 4, "its list is as it was");
    assert!(pool.head.is_marked(Key(1)), "and so is its mark");
}
