//! The profile beside a plain map of what must be live.

extern crate std;
use std::collections::HashMap;
use std::vec::Vec;

use hectare_pages::Os;

use super::*;
use crate::class::MAX_SMALL_BYTES;

fn live(profile: &Profile<Os>) -> HashMap<Vec<usize>, (u64, u64)> {
    let snapshot = profile.snapshot(&Os).expect("memory");
    let entry =
        |stack: Stack<'_>| (stack.frames.to_vec(), (stack.live.objects_1024, stack.live.bytes));
    snapshot.stacks().map(entry).collect()
}

/// Random samples come and go, beside a plain map of what must be live.
#[test]
fn tallies_are_the_sums_of_the_live_samples() {
    let profile = Profile::<Os>::new();
    profile.begin(5000);
    let mut shadow: HashMap<usize, (usize, usize)> = HashMap::new();
    let mut total = HashMap::<usize, u64>::new();
    let mut random = 7u64;
    for step in 0..200_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Addresses as allocators give them: equal in their low bits.
        let address = ((random >> 33) as usize % 20_000 + 1) << 12;
        let site = (random >> 20) as usize % 700;
        assert!(shadow.contains_key(&address) || !profile.keeps(address, 1));
        if let Some((_, bytes)) = shadow.remove(&address) {
            assert!(profile.keeps(address, bytes) || bytes > MAX_SMALL_BYTES);
            assert!(!profile.keeps(address, bytes * 2 + 17));
            let sample = profile.forget(address).expect("a sampled object");
            profile.restore(sample, &Os);
            assert!(profile.forget(address).is_some());
        } else if step % 3 > 0 {
            let bytes = (random >> 40) as usize % 40_000;
            profile.record(address, bytes, &[site, site / 7, 99][..site % 4 % 3 + 1], &Os);
            shadow.insert(address, (site, bytes));
            *total.entry(site).or_default() += weight(bytes, 5000).1;
        } else {
            assert!(profile.forget(address).is_none());
        }
    }
    let mut expected: HashMap<Vec<usize>, (u64, u64)> = HashMap::new();
    for (site, bytes) in shadow.values() {
        let frames = [*site, site / 7, 99][..site % 4 % 3 + 1].to_vec();
        let entry = expected.entry(frames).or_default();
        let (objects, bytes) = weight(*bytes, 5000);
        *entry = (entry.0 + objects, entry.1 + bytes);
    }
    let mut live = live(&profile);
    live.retain(|_, tally| *tally != (0, 0));
    assert_eq!(live, expected);
    let snapshot = profile.snapshot(&Os).expect("memory");
    let sum: u64 = snapshot.stacks().map(|stack| stack.total.bytes).sum();
    assert_eq!(sum, total.values().sum::<u64>());
    assert_eq!(snapshot.lost_samples(), 0);
    let mut calls: Vec<usize> =
        snapshot.stacks().flat_map(|s| s.frames).map(|&f| call_of(f)).collect();
    calls.sort_unstable();
    calls.dedup();
    assert_eq!(snapshot.calls(), calls);
}

#[test]
fn deep_stacks_are_cut_and_empty_ones_kept() {
    let profile = Profile::<Os>::new();
    profile.begin(1);
    let deep: Vec<usize> = (1..500).collect();
    profile.record(4096, 10, &deep, &Os);
    profile.record(8192, 10, &[], &Os);
    let live = live(&profile);
    assert_eq!(live.len(), 2);
    assert_eq!(live[&deep[..MAX_FRAMES].to_vec()].1, 10);
    assert_eq!(live[&Vec::new()].1, 10);
}
