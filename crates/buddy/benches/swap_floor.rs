//! The floor under a free of the atomic row in random order: a loop of nothing but
//! compare-and-swaps at unpredictable places, over as many words.
//!
//! `cargo bench -p hectare-buddy --bench swap_floor`

mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hectare_buddy::{Atomic, FrameAllocator, FrameId, Order};

const FRAMES: usize = 1 << 18;
const ROUNDS: usize = 21;

fn median_ns(mut round: impl FnMut() -> u128) -> f64 {
    let mut times: Vec<u128> = (0..ROUNDS).map(|_| round()).collect();
    times.sort_unstable();
    times[ROUNDS / 2] as f64 / FRAMES as f64
}

fn main() {
    let mut places: Vec<FrameId> = (0..FRAMES).map(FrameId).collect();
    common::shuffle(&mut places);
    let atomics = |count: usize| -> Vec<AtomicU64> { (0..count).map(|_| 0.into()).collect() };
    let words = atomics(FRAMES / 64);
    let floor = median_ns(|| {
        for word in &words {
            word.store(0, Ordering::Relaxed);
        }
        let start = Instant::now();
        for place in &places {
            let (word, bit) = (&words[place.0 / 64], 1 << (place.0 % 64));
            let old = word.load(Ordering::Relaxed);
            let swapped =
                word.compare_exchange(old, old | bit, Ordering::AcqRel, Ordering::Relaxed);
            black_box(swapped).expect("nobody else is there");
        }
        start.elapsed().as_nanos()
    });
    let metadata = atomics(Atomic::metadata_words(FRAMES));
    let free = median_ns(|| {
        // None of the frames is free yet: each free adds one.
        let shared = Atomic::new(FRAMES, &metadata).expect("large enough");
        let mut local = shared.local();
        let start = Instant::now();
        for &place in &places {
            local.free(place, Order::ZERO).expect("it is not free yet");
        }
        start.elapsed().as_nanos()
    });
    println!("swap {floor:.2} ns, free {free:.2} ns, {:.2} times", free / floor);
}
