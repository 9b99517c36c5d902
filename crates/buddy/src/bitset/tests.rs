extern crate std;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::shadow::{Random, Shadow, range_step};

#[test]
fn a_random_life_agrees_with_a_map_of_frames() {
    for (seed, frames) in [(1, 1), (2, 63), (3, 64), (4, 65), (5, 4096), (6, 4161), (7, 20_000)] {
        let (mut random, mut asked) = (Random(seed), Random(!seed));
        let mut metadata = vec![!0; Bitset::metadata_words(frames)];
        let mut bitset = Bitset::new(frames, &mut metadata).unwrap();
        let mut shadow = Shadow::new(frames);
        for step in 0..3_000 {
            let order = Order::new((random.next() % 14).min(random.next() % 14) as u8).unwrap();
            match random.below(7) {
                0 => {
                    let expected = shadow.lowest(order).ok_or(Error::Exhausted);
                    assert_eq!(bitset.alloc(order).map(|f| f.0), expected);
                    if let Ok(at) = expected {
                        shadow.take(at, order.frames());
                    }
                }
                1 | 2 => {
                    let frame = random.below(frames + 2) & !(order.frames() - 1);
                    let expected = shadow.free(frame, order);
                    assert_eq!(bitset.free(FrameId(frame), order), expected);
                }
                _ => {
                    let most = if step % 7 == 0 { frames } else { 100.min(frames) };
                    range_step(&mut bitset, &mut shadow, &mut random, most);
                }
            }
            bitset.validate().unwrap();
            assert_eq!(bitset.stats(), shadow.stats(), "step {step}");
            let largest = Order::all().rev().find(|&o| shadow.lowest(o).is_some());
            assert_eq!(bitset.largest_free_order(), largest);
            let mut down = Vec::new();
            let mut before = FrameId(frames);
            while let Some((start, length)) = bitset.previous_free_run(before) {
                down.push((start, length));
                before = start;
            }
            let mut up = Vec::new();
            let mut from = FrameId(0);
            while let Some((start, length)) = bitset.next_free_run(from) {
                up.push((start, length));
                from = FrameId(start.0 + length);
            }
            down.reverse();
            assert_eq!(up, down);
            let around = FrameId(random.below(frames));
            let holds = |&&(start, length): &&(FrameId, usize)| {
                (start.0..start.0 + length).contains(&around.0)
            };
            assert_eq!(bitset.free_run_around(around), up.iter().find(holds).copied());
            let order = Order::new(asked.below(14) as u8).unwrap();
            let long = up.iter().find_map(|&(start, length)| {
                let (from, end) = (start.0.max(around.0), start.0 + length);
                let fits = from.next_multiple_of(order.frames()) + order.frames() <= end;
                fits.then(|| (FrameId(from), end - from))
            });
            assert_eq!(bitset.next_free_run_with(around, order), long, "{around:?}, {order:?}");
        }
    }
}

#[test]
fn sixteen_million_frames_are_a_word_of_the_top_level() {
    let frames = 1 << 24;
    let mut metadata = vec![0; Bitset::metadata_words(frames)];
    let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), frames).unwrap();
    bitset.validate().unwrap();
    assert_eq!(bitset.largest_free_order(), Order::new(18));
    let touched = metadata.iter().filter(|&&word| word != 0).count();
    assert!(touched <= 7, "{touched} words touched");
}

#[test]
fn ranges_are_longer_than_the_largest_block() {
    let frames = 1 << 22;
    let mut metadata = vec![0; Bitset::metadata_words(frames)];
    let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    bitset.add_region(FrameId(7), frames - 7).unwrap();
    assert_eq!(bitset.alloc_range(3 << 20, 1 << 19, usize::MAX), Ok(FrameId(1 << 19)));
    assert_eq!(bitset.alloc_range(1 << 20, 1, usize::MAX), Err(Error::Exhausted));
    assert_eq!(bitset.alloc_range((1 << 19) - 7, 1, usize::MAX), Ok(FrameId(7)));
    assert_eq!(bitset.alloc_range(1 << 19, 1 << 19, frames), Ok(FrameId(7 << 19)));
    assert_eq!(bitset.free_frames(), 0);
    bitset.free_range(FrameId(7), frames - 7).unwrap();
    bitset.validate().unwrap();
}

#[cfg(target_pointer_width = "64")]
#[test]
fn there_are_at_most_two_to_the_36_frames() {
    assert_eq!(Bitset::new(1 << 36, &mut []).unwrap_err(), Error::MetadataTooSmall);
    assert_eq!(Bitset::new((1 << 36) + 1, &mut []).unwrap_err(), Error::TooManyFrames);
}

/// Enough frames to need every tier of the summaries.
#[cfg(target_pointer_width = "64")]
#[test]
fn one_frame_is_found_among_two_thousand_million() {
    let frames = 1 << 31;
    let mut metadata = vec![0; Bitset::metadata_words(frames)];
    let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    let last = FrameId(frames - 1);
    bitset.add_region(last, 1).unwrap();
    assert_eq!(bitset.next_free_run(FrameId(0)), Some((last, 1)));
    assert_eq!(bitset.alloc(Order::ZERO), Ok(last));
    bitset.free(FrameId(0), Order::ZERO).unwrap();
    assert_eq!(bitset.previous_free_run(last), Some((FrameId(0), 1)));
}

/// Behind the summaries of level 1 lie its words, which must not be read as further summaries.
#[test]
fn nothing_is_found_past_the_last_word_of_a_level() {
    // The words of level 1 fill one group of the summaries.
    const FRAMES: usize = 1 << 18;
    let mut metadata = vec![0; Bitset::metadata_words(FRAMES)];
    let mut bitset = Bitset::over_zeroed(FRAMES, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), 4032).unwrap();
    for from in [FRAMES - 4096, FRAMES - 64, FRAMES - 1, FRAMES, usize::MAX] {
        assert_eq!(bitset.next_free_run(FrameId(from)), None, "{from}");
        assert_eq!(bitset.next_free_run_with(FrameId(from), Order::ZERO), None, "{from}");
    }
    assert_eq!(bitset.previous_free_run(FrameId(usize::MAX)), Some((FrameId(0), 4032)));
}

#[test]
fn a_block_is_taken_where_it_is_asked_for() {
    let mut metadata = vec![0; Bitset::metadata_words(64)];
    let mut bitset = Bitset::over_zeroed(64, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), 64).unwrap();
    let order = Order::new(2).unwrap();
    assert_eq!(bitset.alloc_at(FrameId(6), order), Err(Error::Misaligned));
    assert_eq!(bitset.alloc_at(FrameId(64), order), Err(Error::OutOfRange));
    assert_eq!(bitset.alloc_at(FrameId(8), order), Ok(()));
    assert_eq!(bitset.alloc_at(FrameId(8), order), Err(Error::Exhausted));
    assert_eq!(bitset.free_run_around(FrameId(12)), Some((FrameId(12), 52)));
}

#[test]
fn metadata_is_within_40_kib_a_gib() {
    assert!(Bitset::metadata_bytes(1 << 18) <= 40 << 10);
    assert!(Bitset::metadata_bytes(1 << 24) <= 64 * (40 << 10));
    assert_eq!(Bitset::metadata_bytes(1 << 18), 8 * Bitset::metadata_words(1 << 18));
}

#[test]
fn a_run_can_be_entered_in_its_middle() {
    let mut metadata = vec![0; Bitset::metadata_words(200)];
    let mut bitset = Bitset::over_zeroed(200, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), 192).unwrap();
    assert_eq!(bitset.next_free_run(FrameId(70)), Some((FrameId(70), 122)));
    assert_eq!(bitset.previous_free_run(FrameId(70)), Some((FrameId(0), 70)));
    assert_eq!(bitset.free_run_around(FrameId(70)), Some((FrameId(0), 192)));
}

#[test]
fn batches_of_larger_blocks_are_not_runs_of_frames() {
    let mut metadata = vec![0; Bitset::metadata_words(128)];
    let mut bitset = Bitset::over_zeroed(128, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), 128).unwrap();
    let mut out = [FrameId(usize::MAX); 32];
    assert_eq!(bitset.alloc_many(Order::new(2).unwrap(), &mut out), 32);
    assert_eq!(out.map(|block| block.0), core::array::from_fn(|at| 4 * at));
    let frames: [_; 16] = core::array::from_fn(FrameId);
    let order = Order::new(1).unwrap();
    assert_eq!(bitset.free_many(order, &frames), Err((1, Error::Misaligned)));
    assert_eq!(bitset.free_frames(), 2);
    bitset.validate().unwrap();
}

#[test]
fn one_by_one_and_back() {
    let frames = 1 << 18;
    let mut metadata = vec![0; Bitset::metadata_words(frames)];
    let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), frames).unwrap();
    for frame in 0..frames {
        assert_eq!(bitset.alloc(Order::ZERO), Ok(FrameId(frame)));
    }
    assert_eq!(bitset.alloc(Order::ZERO), Err(Error::Exhausted));
    for frame in 0..frames {
        assert_eq!(bitset.free(FrameId(frame), Order::ZERO), Ok(()));
    }
    assert_eq!(bitset.free(FrameId(7), Order::ZERO), Err(Error::NotAllocated));
    assert_eq!(bitset.alloc(Order::new(18).unwrap()), Ok(FrameId(0)));
}

/// Each bit of the metadata is inverted. Only the summaries may have entries without a block.
#[test]
fn validate_sees_every_inverted_bit_of_the_levels_and_names_each_invariant() {
    let frames = 10_000;
    let mut metadata = vec![0; Bitset::metadata_words(frames)];
    let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), frames - 3).unwrap();
    // Words with 63 free frames, with a block of each order, and with one.
    for (start, length) in [(70, 1), (140, 50), (200, 100), (9000, 63)] {
        bitset.reserve(FrameId(start), length).unwrap();
    }
    bitset.validate().unwrap();
    let free_frames = bitset.free_frames();
    let mut seen = std::collections::BTreeSet::new();
    for bit in 0..WORD * metadata.len() {
        metadata[bit / WORD] ^= 1 << (bit % WORD);
        let mut damaged = Bitset::over_zeroed(frames, &mut metadata).unwrap();
        damaged.free_frames = free_frames;
        match damaged.validate() {
            Err(Invalid(what)) => _ = seen.insert(what.rsplit('(').next()),
            Ok(()) => assert!(bit >= frames, "frame {bit} was inverted"),
        }
        metadata[bit / WORD] ^= 1 << (bit % WORD);
    }
    let mut damaged = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    (damaged.free_frames, damaged.floor) = (free_frames, 1);
    seen.insert(damaged.validate().unwrap_err().0.rsplit('(').next());
    let named = seen.into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(named, ["1)", "2)", "3)", "4)", "5)", "6)", "7)", "8)", "9)"]);
}

#[test]
fn batches_do_what_single_calls_do() {
    let frames = 5000;
    let (mut words_a, mut words_b) =
        (vec![0; Bitset::metadata_words(frames)], vec![0; Bitset::metadata_words(frames)]);
    let mut batched = Bitset::new(frames, &mut words_a).unwrap();
    let mut single = Bitset::new(frames, &mut words_b).unwrap();
    let mut random = Random(9);
    batched.add_region(FrameId(3), frames - 3).unwrap();
    single.add_region(FrameId(3), frames - 3).unwrap();
    let mut held: Vec<FrameId> = Vec::new();
    for _ in 0..2_000 {
        let order = Order::new([0, 0, 0, 2][random.below(4)]).unwrap();
        let mut out = vec![FrameId(usize::MAX); 1 + random.below(200)];
        if random.below(2) == 0 {
            let taken = batched.alloc_many(order, &mut out);
            for &frame in &out[..taken] {
                assert_eq!(single.alloc(order), Ok(frame));
                held.extend((0..order.frames()).map(|part| FrameId(frame.0 + part)));
            }
            if taken < out.len() {
                assert_eq!(single.alloc(order), Err(Error::Exhausted));
            }
        } else {
            let at = random.below(held.len() + 1);
            let end = held.len().min(at + random.below(200));
            let mut part: Vec<FrameId> = held.drain(at..end).collect();
            if random.below(10) == 0 && !part.is_empty() {
                // One frame twice: the others must come back unharmed.
                let twice = random.below(part.len());
                part.push(part[twice]);
            }
            let expected = part.iter().enumerate().find_map(|(index, &frame)| {
                single.free(frame, Order::ZERO).err().map(|error| (index, error))
            });
            assert_eq!(batched.free_many(Order::ZERO, &part).err(), expected);
        }
        batched.validate().unwrap();
        assert_eq!(batched.stats(), single.stats());
    }
}

/// The whole batch used to be examined again for each frame before the refused one: 40 s.
#[test]
fn a_refused_frame_amid_a_long_batch_is_found_in_one_pass() {
    let frames = 1 << 18;
    let mut metadata = vec![0; Bitset::metadata_words(frames)];
    let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
    bitset.add_region(FrameId(0), frames).unwrap();
    let mut batch = vec![FrameId(0); frames];
    assert_eq!(bitset.alloc_many(Order::ZERO, &mut batch), frames);
    let free = frames / 2;
    bitset.free(FrameId(free), Order::ZERO).unwrap();
    let start = std::time::Instant::now();
    assert_eq!(bitset.free_many(Order::ZERO, &batch), Err((free, Error::NotAllocated)));
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    assert_eq!(bitset.free_frames(), free + 1);
    bitset.validate().unwrap();
}

/// Each request used to look at each hole.
#[test]
fn a_range_passes_over_some_runs_that_are_too_short_not_over_all() {
    // Holes of nine frames and one of eleven, each followed by a frame that is taken, and the rest.
    let place_within = |holes: usize, rest: usize, requests: usize, limit: usize| {
        let longer = 10 * holes;
        let frames = longer + 12 + rest;
        let mut metadata = vec![0; Bitset::metadata_words(frames)];
        let mut bitset = Bitset::over_zeroed(frames, &mut metadata).unwrap();
        bitset.add_region(FrameId(0), frames).unwrap();
        for hole in 1..=holes {
            bitset.reserve(FrameId(10 * hole - 1), 1).unwrap();
        }
        bitset.reserve(FrameId(longer + 11), 1).unwrap();
        let place = bitset.alloc_range(11, 1, limit).unwrap();
        for _ in 1..requests {
            bitset.alloc_range(11, 1, limit).unwrap();
        }
        bitset.validate().unwrap();
        place.0.checked_sub(longer)
    };
    let place_among = |holes, rest, requests| place_within(holes, rest, requests, usize::MAX);
    assert_eq!(place_among(63, 1000, 1), Some(0), "the lowest place");
    assert_eq!(place_among(64, 1000, 1), Some(12), "one that is found at once");
    assert_eq!(place_among(64, 10, 1), Some(0), "the only one");
    let end = 10 * 64 + 12 + 11;
    assert_eq!(place_within(64, 1000, 1, end), Some(12), "one that ends at the limit");
    assert_eq!(place_within(64, 1000, 1, end - 1), Some(0), "one that ends before the limit");
    let begun = std::time::Instant::now();
    assert_eq!(place_among(50_000, 500_000, 25_000), Some(12));
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}
