extern crate std;

use std::vec::Vec;

use hectare_pages::Os;

use super::*;
use crate::class::ClassId;
use crate::slab::SlabRef;

const BYTES: usize = 64 << 20;

fn open() -> (Region, RegionView) {
    let view = RegionView::new();
    let region = Region::open(BYTES, &Os, &view).expect("address space");
    (region, view)
}

/// Takes `count` slabs and opens each.
fn take_slabs(region: &mut Region, view: &RegionView, count: usize) -> Vec<SlabRef> {
    let class = ClassId::for_bytes(100);
    let slabs = (0..count).map(|_| {
        let run = region.take(Wanted::Slab { siblings: 0 }, &Os, view).expect("memory");
        let offset = view.offset_of(run.start.addr().get()).expect("in the region");
        let slab = view.slab_at(offset).expect("a descriptor");
        // SAFETY: the run was free until now, and there is one thread.
        unsafe { slab.get() }.open(run.start, class, run.clean);
        slab
    });
    slabs.collect()
}

fn start_of(slab: SlabRef) -> NonNull<u8> {
    // SAFETY: there is one thread, and no other reference.
    unsafe { slab.get() }.start()
}

#[test]
fn descriptors_go_with_what_they_describe() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 64);
    assert_eq!(64 * size_of::<Slab>() % Os.page_bytes(), 0, "whole pages");
    for &slab in &slabs {
        region.give(start_of(slab), SLAB_FRAMES);
    }
    assert_eq!(region.decommit(0, &Os), 64 * SLAB_FRAMES);
    assert!(slabs.iter().all(|slab| slab.class() == ClassId::NONE));
    let again = take_slabs(&mut region, &view, 64);
    assert!(again.iter().all(|slab| slab.class() == ClassId::for_bytes(100)));
}

#[test]
fn descriptors_of_slabs_in_use_stay() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 64);
    for (i, &slab) in slabs.iter().enumerate() {
        if i % 7 != 3 {
            region.give(start_of(slab), SLAB_FRAMES);
        }
    }
    region.decommit(0, &Os);
    for (i, &slab) in slabs.iter().enumerate() {
        if i % 7 == 3 {
            assert_eq!(slab.class(), ClassId::for_bytes(100), "slab {i}");
            assert_eq!(start_of(slab).addr().get() % SLAB_BYTES, 0);
        }
    }
}

#[test]
fn descriptors_go_bit_by_bit_too() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 64);
    for &slab in &slabs {
        region.give(start_of(slab), SLAB_FRAMES);
    }
    for keep in (0..64).rev() {
        assert_eq!(region.decommit(keep * SLAB_FRAMES, &Os), SLAB_FRAMES);
    }
    assert!(slabs.iter().all(|slab| slab.class() == ClassId::NONE));
}
