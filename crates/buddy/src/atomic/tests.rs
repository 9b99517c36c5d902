extern crate std;
use std::vec::Vec;

use super::*;
use crate::{FrameAllocator, Order};

fn metadata(frames: usize) -> Vec<AtomicU64> {
    (0..Atomic::metadata_words(frames)).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(not(loom))]
mod plain {
    use std::collections::HashSet;
    use std::vec;

    use super::*;
    use crate::RangeAllocator;
    use crate::shadow::{Random, Shadow, many_lives, range_step};

    #[test]
    fn one_thread_lives_as_the_shadow_says() {
        many_lives(1500, |frames, live| {
            let words = metadata(frames);
            let shared = Atomic::new(frames, &words).unwrap();
            live(&mut shared.local());
            shared.validate().unwrap();
        });
    }

    #[test]
    fn metadata_is_within_40_kib_a_gib() {
        assert!(Atomic::metadata_bytes(1 << 18) <= 40 << 10);
    }

    #[test]
    fn a_gib_is_one_block_again() {
        let frames = 1 << 18;
        let words = metadata(frames);
        let shared = Atomic::over_zeroed(frames, &words).unwrap();
        let mut local = shared.local();
        local.add_region(FrameId(0), frames).unwrap();
        let taken: Vec<FrameId> = (0..frames).map(|_| local.alloc(Order::ZERO).unwrap()).collect();
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), frames);
        assert_eq!(local.alloc(Order::ZERO), Err(Error::Exhausted));
        for &frame in &taken {
            local.free(frame, Order::ZERO).unwrap();
        }
        assert_eq!(local.free(FrameId(77), Order::ZERO), Err(Error::NotAllocated));
        assert_eq!(local.alloc(Order::new(18).unwrap()), Ok(FrameId(0)));
        shared.validate().unwrap();
    }

    #[test]
    fn ranges_agree_with_the_shadow() {
        for (seed, frames) in [(1, 65), (2, 4096), (3, 9000)] {
            let words = metadata(frames);
            let shared = Atomic::new(frames, &words).unwrap();
            let (mut local, mut random) = (shared.local(), Random(seed));
            let mut shadow = Shadow::new(frames);
            for _ in 0..3_000 {
                if random.below(4) > 0 {
                    range_step(&mut local, &mut shadow, &mut random, frames / 4);
                } else if let Ok(FrameId(frame)) = local.alloc(Order::ZERO) {
                    shadow.take(frame, 1);
                }
                shared.validate().unwrap();
                assert_eq!(local.stats(), shadow.stats());
            }
        }
    }

    #[test]
    fn what_one_handle_holds_another_cannot_free() {
        let words = metadata(4096);
        let shared = Atomic::new(4096, &words).unwrap();
        let (mut one, mut two) = (shared.local(), shared.local());
        one.add_region(FrameId(0), 4096).unwrap();
        let frame = one.alloc(Order::ZERO).unwrap();
        one.free(frame, Order::ZERO).unwrap();
        assert_eq!(two.free(frame, Order::ZERO), Err(Error::NotAllocated));
        assert_eq!(two.free(FrameId(63), Order::ZERO), Err(Error::NotAllocated));
        // Two handles, one tree: the second handle takes block by block.
        let other = two.alloc(Order::ZERO).unwrap();
        assert_ne!(other.0 / WORD, frame.0 / WORD);
        two.free(other, Order::ZERO).unwrap();
        drop((one, two));
        assert_eq!(shared.free_frames(), 4096);
        assert_eq!(shared.local().alloc(Order::new(12).unwrap()), Ok(FrameId(0)));
        shared.validate().unwrap();
    }

    #[test]
    fn the_tree_of_a_handle_that_is_dropped_can_be_reserved_again() {
        let words = metadata(4096);
        let shared = Atomic::new(4096, &words).unwrap();
        let holds_one = || shared.held_mask(0).load(Ordering::Relaxed) != 0;
        let mut one = shared.local();
        one.add_region(FrameId(0), 4096).unwrap();
        let frame = one.alloc(Order::ZERO).unwrap();
        assert!(holds_one() && shared.top_bit(Top::Reserved, 0));
        drop(one);
        assert!(!holds_one() && !shared.top_bit(Top::Reserved, 0));
        let mut two = shared.local();
        let other = two.alloc(Order::ZERO).unwrap();
        // The handle holds a word: it does not take block by block, as from another handle's tree.
        assert!(holds_one() && shared.top_bit(Top::Reserved, 0));
        two.free(frame, Order::ZERO).unwrap();
        two.free(other, Order::ZERO).unwrap();
        drop(two);
        assert_eq!(shared.free_frames(), 4096);
        shared.validate().unwrap();
    }

    /// Another thread that frees a frame while the holder of its word does so, too, may not see
    /// that it is free.
    #[test]
    fn a_frame_that_was_freed_twice_at_once_costs_no_other() {
        let words = metadata(64);
        let shared = Atomic::new(64, &words).unwrap();
        let mut one = shared.local();
        one.add_region(FrameId(0), 64).unwrap();
        assert_eq!(one.alloc(Order::ZERO), Ok(FrameId(0)));
        assert_eq!(shared.held_mask(0).load(Ordering::Relaxed), !1);
        shared.give_bits(0, 1 << 7).unwrap();
        assert!(one.drain());
        assert_eq!((shared.free_frames(), shared.validate()), (63, Ok(())));
    }

    #[test]
    fn a_word_into_which_a_handle_frees_twice_is_held() {
        let words = metadata(64);
        let shared = Atomic::new(64, &words).unwrap();
        let mut one = shared.local();
        for (frame, bits, held) in [(0, 1, 0), (1, 0, 3), (2, 0, 7)] {
            one.free(FrameId(frame), Order::ZERO).unwrap();
            let seen = [shared.bits(0), shared.held_mask(0)];
            assert_eq!(seen.map(|word| word.load(Ordering::Relaxed)), [bits, held]);
        }
        drop(one);
        assert_eq!(shared.bits(0).load(Ordering::Relaxed), 7);
        shared.validate().unwrap();
    }

    #[test]
    fn a_handle_follows_its_frees_into_another_tree_and_within_its_own() {
        let words = metadata(2 * 4096);
        let shared = Atomic::new(2 * 4096, &words).unwrap();
        let seen = |word| {
            let held = [0, 1].map(|tree| shared.held_mask(tree).load(Ordering::Relaxed));
            (shared.bits(word).load(Ordering::Relaxed), held)
        };
        let mut one = shared.local();
        one.add_region(FrameId(0), 2).unwrap();
        assert_eq!(one.alloc(Order::ZERO), Ok(FrameId(0)));
        assert_eq!(seen(0), (0, [2, 0]));
        for (frame, expected) in
            [(4096, (1, [2, 0])), (4097, (0, [0, 3])), (4160, (1, [0, 3])), (4161, (0, [0, 3]))]
        {
            one.free(FrameId(frame), Order::ZERO).unwrap();
            assert_eq!(seen(frame / WORD), expected, "{frame}");
            shared.validate().unwrap();
        }
        assert_eq!((seen(0).0, seen(64).0), (2, 3), "what was held before is free for all");
    }

    #[test]
    fn the_last_sectors_are_not_taken_for_a_block_that_they_are_too_few_for() {
        let frames = 6 * 4096;
        let words = metadata(frames);
        let shared = Atomic::new(frames, &words).unwrap();
        let mut local = shared.local();
        local.add_region(FrameId(0), frames).unwrap();
        assert_eq!(local.alloc_range(frames, 1, usize::MAX), Ok(FrameId(0)));
        local.free_range(FrameId(0), frames).unwrap();
        let order = Order::new(14).unwrap();
        assert_eq!(local.alloc(order), Ok(FrameId(0)));
        assert_eq!(local.alloc(order), Err(Error::Exhausted));
        assert_eq!(shared.free_frames(), 2 * 4096);
        shared.validate().unwrap();
    }

    /// Many threads. Each marks the frames it got in a shared map.
    fn soak(threads: usize, frames: usize, operations: usize) {
        let words = metadata(frames);
        let shared = Atomic::new(frames, &words).unwrap();
        shared.local().add_region(FrameId(0), frames).unwrap();
        let owners: Vec<AtomicU64> = (0..frames).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=threads as u64 {
                let (shared, owners) = (&shared, &owners);
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let mut local = shared.local();
                    let mut held: Vec<(usize, Order)> = Vec::new();
                    let mut own = 0;
                    let share = frames * 9 / 10 / threads;
                    let change = |frame: usize, order: Order, from: u64, to: u64| {
                        for owner in &owners[frame..frame + order.frames()] {
                            let old = owner.swap(to, Ordering::Relaxed);
                            assert_eq!(old, from, "frame {frame} of {order:?} had another owner");
                        }
                    };
                    for _ in 0..operations {
                        let is_full = own > share;
                        if !is_full && random.below(5) < 3 || held.is_empty() {
                            let largest = if random.below(50) == 0 { 10 } else { 3 };
                            let order = random.order(largest);
                            if let Ok(FrameId(frame)) = local.alloc(order) {
                                assert_eq!(frame % order.frames(), 0);
                                change(frame, order, 0, thread);
                                own += order.frames();
                                held.push((frame, order));
                            } else if order == Order::ZERO {
                                panic!("a tenth is free, but a single frame cannot be had");
                            }
                        } else {
                            let (frame, order) = held.swap_remove(random.below(held.len()));
                            change(frame, order, thread, 0);
                            own -= order.frames();
                            local.free(FrameId(frame), order).unwrap();
                        }
                    }
                    for (frame, order) in held {
                        change(frame, order, thread, 0);
                        local.free(FrameId(frame), order).unwrap();
                    }
                });
            }
        });
        shared.validate().unwrap();
        assert_eq!(shared.free_frames(), frames);
        let whole = Order::largest_at(0, frames);
        assert_eq!(shared.local().alloc(whole), Ok(FrameId(0)));
    }

    /// A thread may be preempted between its write of a summary and its look, while others free
    /// frames there.
    #[test]
    fn a_frame_that_the_summaries_hide_is_found() {
        let frames = 3 * 4096;
        let words = metadata(frames);
        let shared = Atomic::new(frames, &words).unwrap();
        let mut local = shared.local();
        local.free(FrameId(8000), Order::ZERO).unwrap();
        shared.set_top(Top::Partial, 8000 / (SECTOR_WORDS * WORD), false);
        assert_eq!(shared.next_sector(Top::Partial, 0), None);
        assert_eq!(local.alloc(Order::ZERO), Ok(FrameId(8000)));
        assert_eq!(local.alloc(Order::ZERO), Err(Error::Exhausted));
        shared.validate().unwrap();
    }

    #[test]
    fn threads_never_share_a_frame() {
        for threads in [1, 2, 8] {
            soak(threads, 3 * 4096 + 100, 100_000);
        }
    }

    /// `HECTARE_SOAK_OPS=100000000 cargo test --release -p hectare-buddy -- --ignored soak`
    #[test]
    #[ignore = "long: HECTARE_SOAK_OPS operations on 1, 2 and 8 threads"]
    fn soak_of_many_operations() {
        let operations = std::env::var("HECTARE_SOAK_OPS").ok().and_then(|text| text.parse().ok());
        let operations: usize = operations.unwrap_or(10_000_000);
        for threads in [1, 2, 8] {
            soak(threads, 1 << 16, operations / threads);
        }
    }

    #[test]
    fn validate_names_each_rule_that_is_broken() {
        let check = |damage: fn(&Atomic<'_>), expected: &str| {
            // The second tree has a full word and one of 36 frames.
            let words = metadata(4096 + 100);
            let shared = Atomic::new(4096 + 100, &words).unwrap();
            shared.local().add_region(FrameId(0), 4096 + 100).unwrap();
            shared.validate().unwrap();
            damage(&shared);
            let Err(Invalid(what)) = shared.validate() else { panic!("not seen: {expected}") };
            assert!(what.contains(expected), "{what}");
        };
        // One frame of the second tree's word is held, though nobody has reserved the tree.
        fn hold(shared: &Atomic<'_>, word: u64) {
            shared.held_word(1).store(word, Ordering::Relaxed);
            shared.held_mask(1).store(1, Ordering::Relaxed);
        }
        check(|shared| _ = shared.bits(65).fetch_or(1 << 36, Ordering::Relaxed), "past the end");
        check(|shared| hold(shared, 1), "(1)");
        check(|shared| hold(shared, 2), "(2)");
        check(|shared| shared.sector(0).store(0, Ordering::Relaxed), "a sector state");
        check(|shared| _ = shared.set_top(Top::Partial, 0, true), "a bit of top");
        check(|shared| _ = shared.set_top(Top::Partial, 2, false), "a bit of top");
        check(|shared| _ = shared.set_top(Top::Whole, 0, false), "a bit of top");
    }

    #[test]
    fn pieces_are_taken_before_a_huge_frame_is_broken() {
        // (A single word of a sector that also has huge frames stays while it is full.)
        for (order, length) in [(0, 63), (6, 64)] {
            let order = Order::new(order).unwrap();
            let words = metadata(2 * 4096);
            let shared = Atomic::new(2 * 4096, &words).unwrap();
            let mut local = shared.local();
            // Huge frames at the front, a word in the same sector, one in another tree.
            for (start, length) in [(0, 1024), (1088, length), (6016, length)] {
                local.add_region(FrameId(start), length).unwrap();
            }
            let places = [1088, 6016].map(FrameId);
            for place in places {
                assert_eq!(local.alloc(order), Ok(place));
                for _ in order.frames()..length {
                    local.alloc(order).unwrap();
                }
            }
            assert!(local.alloc(order).is_ok_and(|block| block.0 < 1024));
        }
    }

    #[test]
    fn a_handle_breaks_the_huge_frames_of_its_own_tree_first() {
        let words = metadata(2 * 4096);
        let shared = Atomic::new(2 * 4096, &words).unwrap();
        let mut local = shared.local();
        local.add_region(FrameId(4096), 4096).unwrap();
        assert_eq!(local.alloc(Order::ZERO), Ok(FrameId(4096)));
        local.add_region(FrameId(0), 4096).unwrap();
        for _ in 1..4096 {
            assert!(local.alloc(Order::ZERO).is_ok_and(|frame| frame.0 > 4096));
        }
        assert!(local.alloc(Order::ZERO).is_ok_and(|frame| frame.0 < 4096));
    }

    #[test]
    fn too_little_metadata_is_refused() {
        let words = vec![];
        assert_eq!(Atomic::new(1, &words).unwrap_err(), Error::MetadataTooSmall);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --release -p hectare-buddy --lib loom_models`
#[cfg(loom)]
mod loom_models {
    use loom::sync::Arc;

    use super::*;
    use crate::RangeAllocator;

    /// Runs two closures concurrently on fresh frames, of which those in `free` are free, in every
    /// order of their steps with at most five preemptions; then checks the summaries.
    fn race(
        frames: usize,
        free: &'static [(usize, usize)],
        one: fn(&mut Local<'_>) -> usize,
        two: fn(&mut Local<'_>) -> usize,
        check: fn(&Atomic<'_>, usize, usize),
    ) {
        race_within(5, frames, free, one, two, check);
    }

    /// As [`race`], with at most so many preemptions.
    fn race_within(
        preemptions: usize,
        frames: usize,
        free: &'static [(usize, usize)],
        one: fn(&mut Local<'_>) -> usize,
        two: fn(&mut Local<'_>) -> usize,
        check: fn(&Atomic<'_>, usize, usize),
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.max_branches = 100_000;
        model.check(move || {
            let words: &'static [AtomicU64] = metadata(frames).leak();
            let shared = Arc::new(Atomic::over_zeroed(frames, words).unwrap());
            for &(start, length) in free {
                shared.local().add_region(FrameId(start), length).unwrap();
            }
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || one(&mut other.local()));
            let two = two(&mut shared.local());
            let one = thread.join().unwrap();
            shared.validate().unwrap();
            check(&shared, one, two);
        });
    }

    fn taken(local: &mut Local<'_>, order: u8) -> usize {
        local.alloc(Order::new(order).unwrap()).map_or(usize::MAX, |frame| frame.0)
    }

    #[test]
    fn a_free_into_a_word_that_another_takes_is_not_lost() {
        race(
            64,
            &[(0, 1)],
            |local| local.free(FrameId(5), Order::ZERO).map_or(1, |()| 0),
            |local| taken(local, 0),
            |shared, one, two| {
                assert_eq!(one, 0);
                assert!(two == 0 || two == 5);
                assert_eq!(shared.free_frames(), 1);
            },
        );
    }

    #[test]
    fn two_frees_fill_a_word() {
        race(
            64,
            &[(2, 62)],
            |local| local.free(FrameId(0), Order::ZERO).map_or(1, |()| 0),
            |local| local.free(FrameId(1), Order::ZERO).map_or(1, |()| 0),
            |shared, _, _| {
                assert_eq!(shared.local().alloc(Order::new(6).unwrap()), Ok(FrameId(0)));
            },
        );
    }

    #[test]
    fn a_sector_empties_while_another_word_of_it_gets_a_frame() {
        // The summary in `top` goes from yes to no and back, written by two threads.
        race(
            128,
            &[(0, 1)],
            |local| taken(local, 0),
            |local| local.free(FrameId(70), Order::ZERO).map_or(1, |()| 0),
            |shared, one, two| {
                assert_eq!(two, 0);
                assert!(one == 0 || one == 70);
                assert_eq!(shared.free_frames(), 1);
            },
        );
    }

    #[test]
    fn one_frame_has_one_taker() {
        race(
            64,
            &[(7, 1)],
            |local| taken(local, 0),
            |local| taken(local, 0),
            |shared, one, two| {
                // Either one thread got it, or the other held it; never both.
                assert!(one == 7 || two == 7 || shared.free_frames() == 1);
                assert!(one != two || one == usize::MAX);
            },
        );
    }

    /// A frame is written and freed into a word that has others. The thread that `take`s it sees
    /// what was written.
    fn hand_over(take: fn(&mut Local<'_>) -> bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(5);
        model.max_branches = 100_000;
        model.check(move || {
            let words: &'static [AtomicU64] = metadata(64).leak();
            let shared = Arc::new(Atomic::over_zeroed(64, words).unwrap());
            shared.local().add_region(FrameId(0), 2).unwrap();
            let content = Arc::new(AtomicU64::new(0));
            let (others, written) = (Arc::clone(&shared), Arc::clone(&content));
            let taker = loom::thread::spawn(move || {
                if take(&mut others.local()) {
                    assert_eq!(written.load(Ordering::Relaxed), 7);
                }
            });
            content.store(7, Ordering::Relaxed);
            shared.local().free(FrameId(5), Order::ZERO).unwrap();
            taker.join().unwrap();
            shared.validate().unwrap();
        });
    }

    #[test]
    fn what_was_written_to_a_frame_is_seen_by_who_takes_its_word() {
        hand_over(|local| (0..3).any(|_| taken(local, 0) == 5));
    }

    #[test]
    fn what_was_written_to_a_frame_is_seen_by_who_takes_it_alone() {
        hand_over(|local| local.reserve(FrameId(5), 1).is_ok());
    }

    #[test]
    fn what_another_holds_elsewhere_refuses_no_free() {
        // The held block moves from word 0 to word 1, to the same bit that the frame has in word 0.
        race(
            128,
            &[(0, 1), (69, 1)],
            |local| local.free(FrameId(5), Order::ZERO).map_or(1, |()| 0),
            |local| usize::from([taken(local, 0), taken(local, 0)].contains(&0)),
            |_, one, two| {
                assert_eq!(one, 0, "a frame in use was taken for a free one");
                assert_eq!(two, 1);
            },
        );
    }

    #[test]
    fn what_another_held_before_refuses_no_free() {
        // The held block goes from word 0, of which frame 5 was held, to word 1.
        race(
            128,
            &[(0, 1), (5, 1), (71, 1)],
            |local| local.free(FrameId(69), Order::ZERO).map_or(1, |()| 0),
            |local| [(); 3].map(|()| taken(local, 0)).into_iter().max().unwrap_or(0),
            |_, one, two| {
                assert_eq!(one, 0, "a frame in use was taken for a free one");
                assert!(two == 71 || two == 69);
            },
        );
    }

    #[test]
    fn a_held_block_that_left_a_word_and_came_back_refuses_no_free() {
        // From word 0 to word 1, of which the bit of frame 6 is held, and to word 0 again.
        race_within(
            3,
            128,
            &[(0, 1), (69, 2)],
            |local| local.free(FrameId(6), Order::ZERO).map_or(1, |()| 0),
            |local| {
                let [first, _, _] = [(); 3].map(|()| taken(local, 0));
                local.free(FrameId(first), Order::ZERO).map_or(1, |()| taken(local, 0))
            },
            |_, one, _| assert_eq!(one, 0, "a frame in use was taken for a free one"),
        );
    }

    #[test]
    fn of_two_frees_of_one_frame_one_is_refused_and_undone() {
        race(
            128,
            &[],
            |local| local.free(FrameId(0), Order::new(7).unwrap()).map_or(1, |()| 0),
            |local| local.free(FrameId(64), Order::ZERO).map_or(1, |()| 0),
            |shared, one, two| {
                assert_eq!(one + two, 1);
                assert_eq!(shared.free_frames(), if one == 0 { 128 } else { 1 });
            },
        );
    }

    #[test]
    fn a_large_block_and_a_single_frame_do_not_overlap() {
        race(
            128,
            &[(0, 128)],
            |local| taken(local, 7),
            |local| taken(local, 0),
            |shared, one, two| {
                assert!(one == usize::MAX || two == usize::MAX);
                let left = if one == usize::MAX { 128 } else { 0 };
                let left = left - usize::from(two != usize::MAX && one == usize::MAX);
                assert_eq!(shared.free_frames(), left);
            },
        );
    }
}
