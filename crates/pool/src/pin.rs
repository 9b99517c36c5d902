//! The handle cell: where an object lies, and a lock that keeps it there.
//!
//! ```text
//!   place | 0 ──pin──▶ place | 1 ──unpin──────────▶ place | 0
//!                          └───────move_to(new)──▶ new   | 0
//! ```
//!
//! A reader pins the cell, reads the object at its place, and unpins. Compaction pins as well,
//! copies the object, and unpins with the new place. So a reader sees either the old place, and the
//! object stays there until the reader is done; or the new place, and the copy is complete.
//!
//! Invariants
//! 1. The thread that set bit 0 owns the cell until it clears the bit; only it changes the place.
//! 2. Only the owner of a pinned cell moves or frees the object at its place.
//!
//! A thread that waits for a pin spins for a while, then gives way with each look, so that an owner
//! that was preempted can go on. Nobody sleeps: the word has no bit to spare that would tell an
//! owner to wake a thread.
//!
//! Orderings: pinning is `Acquire`, unpinning `Release`. A thread that pins after a move sees what
//! was copied before it, and a reader's reads are done before another thread moves the object.

use hectare_base::sync::{Park, atomic, hint};

use atomic::Ordering::{Acquire, Relaxed, Release};

const PINNED: u8 = 1;

/// How often a thread looks at a pinned cell before it gives way.
const SPINS: u32 = if cfg!(loom) { 0 } else { 60 };

macro_rules! pin_cell {
    ($name:ident, $atomic:ident, $word:ident) => {
        /// A handle cell; see the module. A place has one bit less than the word.
        #[derive(Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$atomic);

        #[cfg(all(test, loom))]
        impl Default for $name {
            fn default() -> Self {
                Self(atomic::$atomic::new(0))
            }
        }

        impl $name {
            /// Waits until the cell is not pinned and pins it. Returns the object's place; none if
            /// the cell was put aside, which `is_link` tells from what [`peek`](Self::peek) returns.
            #[inline]
            pub(crate) fn pin<P: Park>(&self, is_link: impl Fn($word) -> bool) -> Option<$word> {
                self.try_pin().or_else(|| self.pin_slow::<P>(is_link))
            }

            #[cold]
            fn pin_slow<P: Park>(&self, is_link: impl Fn($word) -> bool) -> Option<$word> {
                let mut spins = 0;
                loop {
                    if spins < SPINS {
                        spins += 1;
                        hint::spin_loop();
                    } else if is_link(self.peek()) {
                        return None;
                    } else {
                        #[cfg(loom)]
                        loom::thread::yield_now();
                        P::give_way();
                    }
                    if let Some(place) = self.try_pin() {
                        return Some(place);
                    }
                }
            }

            /// Pins the cell if it is not pinned.
            #[inline]
            pub(crate) fn try_pin(&self) -> Option<$word> {
                let seen = self.0.load(Relaxed);
                if seen & $word::from(PINNED) != 0 {
                    return None;
                }
                let pinned = seen | $word::from(PINNED);
                let taken = self.0.compare_exchange(seen, pinned, Acquire, Relaxed);
                taken.is_ok().then_some(seen >> 1)
            }

            /// Unpins the cell; the object stays. The caller has pinned it.
            #[inline]
            pub(crate) fn unpin(&self) {
                let pinned = self.0.load(Relaxed);
                debug_assert!(pinned & $word::from(PINNED) != 0, "a cell that nobody pinned");
                self.0.store(pinned & !$word::from(PINNED), Release);
            }

            /// Names the object's place, anew or for the first time, and unpins the cell. The
            /// caller has pinned it, or it belongs to no object yet.
            #[inline]
            pub(crate) fn move_to(&self, place: $word) {
                self.0.store(place << 1, Release);
            }

            /// Keeps `link` in a cell that belongs to no object. The cell counts as pinned, so
            /// walks over the cells skip it. A link differs from every place.
            #[inline]
            pub(crate) fn put_aside(&self, link: $word) {
                self.0.store(link << 1 | $word::from(PINNED), Release);
            }

            /// The place, or the link of a cell put aside. It may be stale at once, unless the
            /// caller keeps others from moving the object.
            #[inline]
            pub(crate) fn peek(&self) -> $word {
                self.0.load(Acquire) >> 1
            }
        }
    };
}

pin_cell!(PinCell32, AtomicU32, u32);
pin_cell!(PinCell64, AtomicU64, u64);

impl PinCell32 {
    /// [`peek`](Self::peek), if the cell is not pinned.
    #[inline]
    pub(crate) fn peek_unpinned(&self) -> Option<u32> {
        let seen = self.0.load(Acquire);
        (seen & u32::from(PINNED) == 0).then_some(seen >> 1)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use hectare_base::sync::SpinPark;
    use hectare_base::sync::cell::UnsafeCell;
    use loom::sync::{Arc, Mutex};

    /// Two places for one object: a reader must never see the place that the object has left.
    struct World {
        cell: PinCell32,
        places: [UnsafeCell<u32>; 2],
        /// The lock of the object's class, or shard, which guards whether the object is alive.
        lives: Mutex<bool>,
    }

    // SAFETY: only the cell's owner accesses the places; loom checks that.
    unsafe impl Sync for World {}
    // SAFETY: as above.
    unsafe impl Send for World {}

    /// No place.
    const LINK: u32 = 7;

    fn is_link(word: u32) -> bool {
        word == LINK
    }

    fn world() -> Arc<World> {
        let cell = PinCell32::default();
        let places = [UnsafeCell::new(42), UnsafeCell::new(0)];
        Arc::new(World { cell, places, lives: Mutex::new(true) })
    }

    /// Pins the cell of a live object.
    fn pin(world: &World) -> u32 {
        world.cell.pin::<SpinPark>(is_link).expect("a live object")
    }

    fn read(world: &World) {
        read_at(world, pin(world));
    }

    /// A reader that does not wait: if two spun, loom would have no bound to explore to.
    fn try_read(world: &World) {
        if let Some(place) = world.cell.try_pin() {
            read_at(world, place);
        }
    }

    fn read_at(world: &World, place: u32) {
        let place = place as usize;
        // SAFETY: pinned, by invariant 2 nobody writes the place.
        world.places[place].with(|value| assert_eq!(unsafe { *value }, 42));
        world.cell.unpin();
    }

    fn migrate(world: &World) {
        let Some(place) = world.cell.try_pin() else { return };
        let (from, to) = (place as usize, 1 - place as usize);
        // SAFETY: pinned: the object and the room for its copy are this thread's.
        let value = world.places[from].with_mut(|value| unsafe { value.replace(0) });
        // SAFETY: as above.
        world.places[to].with_mut(|place| unsafe { *place = value });
        world.cell.move_to(to as u32);
    }

    /// As in zs: the freeing thread pins the cell, which keeps the object from moving, before it
    /// takes the lock.
    fn free(world: &World) {
        let place = pin(world) as usize;
        let mut lives = world.lives.lock().expect("a thread panicked");
        // SAFETY: pinned: the object's place is this thread's.
        world.places[place].with_mut(|value| assert_eq!(unsafe { value.replace(0) }, 42));
        *lives = false;
        drop(lives);
        world.cell.put_aside(LINK);
    }

    /// As in zs: compaction holds the lock, and only tries to pin.
    fn compact(world: &World) {
        let lives = world.lives.lock().expect("a thread panicked");
        if *lives {
            migrate(world);
        }
    }

    #[test]
    fn who_frees_and_who_compacts_do_not_wait_for_each_other() {
        loom::model(|| {
            let world = world();
            let compacting = Arc::clone(&world);
            let thread = loom::thread::spawn(move || compact(&compacting));
            free(&world);
            thread.join().expect("the compacting thread panicked");
            compact(&world);
            assert_eq!(world.cell.peek(), LINK);
            // SAFETY: no other thread is left.
            let left = [0, 1].map(|place| world.places[place].with(|value| unsafe { *value }));
            assert_eq!(left, [0, 0]);
        });
    }

    #[test]
    fn a_reader_never_sees_a_place_that_was_left() {
        loom::model(|| {
            let world = world();
            let mover = Arc::clone(&world);
            let thread = loom::thread::spawn(move || migrate(&mover));
            read(&world);
            thread.join().expect("the mover panicked");
            read(&world);
        });
    }

    #[test]
    fn what_is_written_is_there_after_a_move() {
        loom::model(|| {
            let world = world();
            let mover = Arc::clone(&world);
            let thread = loom::thread::spawn(move || migrate(&mover));
            let place = pin(&world) as usize;
            // SAFETY: pinned: the object is this thread's.
            world.places[place].with_mut(|value| unsafe { *value = 43 });
            world.cell.unpin();
            thread.join().expect("the mover panicked");
            let place = world.cell.peek() as usize;
            // SAFETY: no other thread is left.
            world.places[place].with(|value| assert_eq!(unsafe { *value }, 43));
        });
    }

    #[test]
    fn two_readers_and_a_mover_agree() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let world = world();
            let (mover, reader) = (Arc::clone(&world), Arc::clone(&world));
            let first = loom::thread::spawn(move || migrate(&mover));
            let second = loom::thread::spawn(move || try_read(&reader));
            try_read(&world);
            first.join().expect("the mover panicked");
            second.join().expect("the reader panicked");
        });
    }

    #[test]
    fn a_cell_put_aside_is_passed_by() {
        loom::model(|| {
            let world = world();
            assert_eq!(pin(&world), 0);
            world.cell.put_aside(LINK);
            let mover = Arc::clone(&world);
            let thread = loom::thread::spawn(move || migrate(&mover));
            thread.join().expect("the mover panicked");
            assert_eq!(world.cell.peek(), LINK);
        });
    }

    #[test]
    fn nobody_waits_for_a_cell_put_aside() {
        loom::model(|| {
            let world = world();
            let freeing = Arc::clone(&world);
            let thread = loom::thread::spawn(move || free(&freeing));
            if let Some(place) = world.cell.pin::<SpinPark>(is_link) {
                read_at(&world, place);
            }
            thread.join().expect("the freeing thread panicked");
            assert_eq!(world.cell.pin::<SpinPark>(is_link), None);
        });
    }
}
