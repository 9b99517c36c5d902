//! The profile beside a plain map of what must be live.

extern crate std;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::vec::Vec;

use hectare_pages::{Failing, Os};

use super::*;
use crate::class::{ClassId, MIN_ALIGN};
use crate::sample::class_of;

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
        let known = profile.know(address);
        if let Some((_, bytes)) = shadow.remove(&address) {
            let Known::Alone(sample) = known else { panic!("{known:?}") };
            assert_eq!(sample.class(), class_of(bytes, MIN_ALIGN));
            assert!(matches!(profile.forget(address), (Known::Alone(_), None)));
            assert!(matches!(profile.forget(address), (Known::Nothing, None)));
            profile.restore(sample, &Os);
            assert!(matches!(profile.forget(address), (Known::Alone(_), None)));
        } else if step % 3 > 0 {
            let bytes = (random >> 40) as usize % 40_000;
            let frames = &[site, site / 7, 99][..site % 4 % 3 + 1];
            assert!(profile.record(address, bytes, class_of(bytes, MIN_ALIGN), frames, &Os));
            shadow.insert(address, (site, bytes));
            *total.entry(site).or_default() += weight(bytes, class_of(bytes, MIN_ALIGN), 5000).1;
        } else {
            assert!(matches!(known, Known::Nothing));
            assert!(matches!(profile.forget(address), (Known::Nothing, None)));
        }
    }
    let mut expected: HashMap<Vec<usize>, (u64, u64)> = HashMap::new();
    for (site, bytes) in shadow.values() {
        let frames = [*site, site / 7, 99][..site % 4 % 3 + 1].to_vec();
        let entry = expected.entry(frames).or_default();
        let (objects, bytes) = weight(*bytes, class_of(*bytes, MIN_ALIGN), 5000);
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
    profile.record(4096, 10, ClassId::for_bytes(10), &deep, &Os);
    profile.record(8192, 10, ClassId::for_bytes(10), &[], &Os);
    let live = live(&profile);
    assert_eq!(live.len(), 2);
    assert_eq!(live[&deep[..MAX_FRAMES].to_vec()].1, 10);
    assert_eq!(live[&Vec::new()].1, 10);
}

/// Objects in packs, beside a plain list of them: they lie apart, are known as what they are, and
/// each pack is given back once, with its last object.
#[test]
fn packs_go_with_their_last_object() {
    let profile = Profile::<Os>::new();
    profile.begin(1);
    let mut live: BTreeMap<usize, usize> = BTreeMap::new();
    let mut packs: BTreeSet<usize> = BTreeSet::new();
    // Objects that have gone come again, as objects of a heap do.
    let mut spare: Vec<usize> = (1..1000).map(|number| number * PACK_BYTES).collect();
    let mut open = 0;
    let mut random = 7u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    let (mut opened, mut went) = (0, 0);
    for step in 0..100_000 {
        let mut goes = |pack: NonNull<u8>, packs: &mut BTreeSet<usize>, spare: &mut Vec<usize>| {
            assert!(packs.remove(&pack.addr().get()), "not one of the packs, or a second time");
            spare.push(pack.addr().get());
            went += 1;
        };
        let on = |pack: usize, live: &BTreeMap<usize, usize>| {
            live.range(pack..pack + PACK_BYTES).count()
        };
        // Few objects are live for a while, then many.
        let most = if step / 10_000 % 2 == 0 { 20 } else { 2000 };
        if live.len() < draw(most) {
            let align = 16 << draw(6);
            let asked = 1 + draw(MAX_PACKED_BYTES);
            let class = ClassId::for_aligned(asked, align).expect("a small object");
            let bytes = class.object_bytes();
            let room = profile.pack(bytes, align).unwrap_or_else(|| {
                let pack = spare.pop().expect("enough packs");
                packs.insert(pack);
                opened += 1;
                let before = core::mem::replace(&mut open, pack);
                let pack = NonNull::new(core::ptr::without_provenance_mut(pack)).expect("not null");
                let (room, given) = profile.open_pack(pack, bytes, align, &Os);
                assert_eq!(given.is_some(), before != 0 && on(before, &live) == 0);
                given.into_iter().for_each(|pack| goes(pack, &mut packs, &mut spare));
                room.expect("room in an empty pack")
            });
            let address = room.addr().get();
            assert!(address.is_multiple_of(align) && !address.is_multiple_of(PACK_BYTES));
            assert!(packs.contains(&(address - address % PACK_BYTES)));
            assert!(address % PACK_BYTES + bytes <= PACK_BYTES);
            let below = live.range(..address).next_back();
            assert!(below.is_none_or(|(&other, &bytes)| other + bytes <= address));
            assert!(live.range(address..address + bytes).next().is_none());
            assert!(matches!(profile.know(address), Known::Gone));
            if draw(50) == 0 {
                assert_eq!(profile.unpack(room), None, "the open pack stays");
                continue;
            }
            assert!(profile.record(address, asked, class_of(asked, MIN_ALIGN), &[1], &Os));
            live.insert(address, bytes);
        } else if let Some((&address, &bytes)) =
            live.range(draw(usize::MAX)..).next().or(live.first_key_value())
        {
            let Known::Packed(sample) = profile.know(address) else { panic!("not packed") };
            assert!(sample.class().object_bytes() <= bytes, "it says that it has more than it has");
            live.remove(&address);
            let pack = address - address % PACK_BYTES;
            let (known, given) = profile.forget(address);
            assert!(matches!(known, Known::Packed(_)));
            assert_eq!(given.is_some(), pack != open && on(pack, &live) == 0);
            given.into_iter().for_each(|pack| goes(pack, &mut packs, &mut spare));
            let again = profile.forget(address);
            let is_there = packs.contains(&pack);
            assert!(matches!(again, (Known::Gone, None)) == is_there, "{again:?}");
        }
    }
    assert!(opened > 100 && went > 100, "{opened} {went}");
}

/// If there is no memory for its entry, a pack is given back, and there is no room.
#[test]
fn a_pack_that_cannot_be_entered_is_given_back() {
    let source = Failing::new(Os);
    let mut packs = Packs::new();
    let pack = NonNull::new(core::ptr::without_provenance_mut(1 << 20)).expect("not null");
    source.refuse_all(true);
    assert_eq!(packs.open(pack, &source), Some(pack));
    assert_eq!(packs.take(16, 16), None);
    assert!(!packs.has((1 << 20) + 16));
    assert_eq!(packs.leave(1 << 20), None);
}
