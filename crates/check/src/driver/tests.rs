//! The canaries: a driver must pass a sound allocator and fail every broken one.

use std::alloc::Layout;
use std::collections::BTreeMap;

use super::*;

/// The process's allocator, with one fault built in.
#[derive(Default)]
struct Faulty {
    layouts: BTreeMap<usize, Layout>,
    calls: u64,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Overlap,
    Misaligned,
    NotZero,
    LosesBytes,
    WritesElsewhere,
    TooSmall,
}

impl Faulty {
    fn with(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    /// Whether the fault occurs in this call.
    fn faults(&mut self, fault: Fault) -> bool {
        self.calls += 1;
        self.fault == Some(fault) && self.calls % 100 == 99
    }

    fn take(&mut self, bytes: usize, align: usize) -> *mut u8 {
        let Ok(layout) = Layout::from_size_align(bytes.max(16) + 16, align.max(16)) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the size is not zero.
        let object = unsafe { std::alloc::alloc_zeroed(layout) };
        self.layouts.insert(object.expose_provenance(), layout);
        object
    }
}

impl Subject for Faulty {
    fn malloc(&mut self, bytes: usize) -> *mut u8 {
        if self.faults(Fault::Overlap)
            && let Some((&address, _)) = self.layouts.iter().find(|(_, l)| l.size() >= bytes + 16)
        {
            return std::ptr::with_exposed_provenance_mut(address);
        }
        self.take(bytes, 16)
    }

    fn calloc(&mut self, bytes: usize) -> *mut u8 {
        let object = self.take(bytes, 16);
        if bytes > 0 && self.faults(Fault::NotZero) {
            // SAFETY: the object has as many bytes.
            unsafe { *object.add(bytes - 1) = 1 };
        }
        object
    }

    fn aligned(&mut self, bytes: usize, align: usize) -> *mut u8 {
        let object = self.take(bytes, align);
        if align > 1 && self.faults(Fault::Misaligned) { object.wrapping_add(1) } else { object }
    }

    unsafe fn realloc(&mut self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let moved = self.take(bytes, 16);
        let old = self.layouts[&object.addr().get()].size() - 16;
        let lost = usize::from(self.faults(Fault::LosesBytes));
        let kept = old.min(bytes.max(16)).min(bytes) - lost.min(bytes);
        // SAFETY: both have as many bytes.
        unsafe { object.copy_to_nonoverlapping(NonNull::new(moved).expect("memory"), kept) };
        // SAFETY: the caller's promise.
        unsafe { self.free(object) };
        moved
    }

    unsafe fn free(&mut self, object: NonNull<u8>) {
        let layout = self.layouts.remove(&object.addr().get()).expect("a live object");
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(object.as_ptr(), layout) };
        if self.faults(Fault::WritesElsewhere)
            && let Some(&address) = self.layouts.keys().next()
        {
            let start = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: every object has 16 bytes.
            unsafe { *start ^= 1 };
        }
    }

    fn usable_bytes(&self, object: NonNull<u8>) -> usize {
        let small = usize::from(self.fault == Some(Fault::TooSmall)) * 20;
        let Some(layout) = self.layouts.get(&object.addr().get()) else { return 1 << 10 };
        layout.size() - 16 - small.min(layout.size() - 16)
    }
}

fn run(mut subject: Faulty) -> Tally {
    let slots = [const { Mutex::new(None) }; 4];
    let limits = Limits { max_bytes: 100_000, max_align: 8192, objects: 200, live_bytes: 1 << 20 };
    let mut tally = Tally::default();
    for seed in 1..=20 {
        // An overlap with an object in a slot would show only later, as changed contents.
        let shared = if subject.fault.is_none() { &slots[..] } else { &[] };
        let mut driver = Driver::new(seed, limits, shared);
        for _ in 0..2000 {
            driver.step(&mut subject);
        }
        driver.verify_all();
        tally.operations += driver.tally().operations;
        tally.received += driver.tally().received;
        driver.free_all(&mut subject);
    }
    for slot in slots {
        if let Some(object) = slot.into_inner().expect("one thread") {
            free(&mut subject, &object);
        }
    }
    assert!(subject.layouts.is_empty(), "an object was forgotten");
    tally
}

#[test]
fn a_sound_allocator_passes() {
    let tally = run(Faulty::default());
    assert_eq!((tally.operations, tally.refused), (40_000, 0));
    assert!(tally.received > 100, "{tally:?}");
}

#[test]
#[should_panic(expected = "overlaps a live object")]
fn overlaps_are_found() {
    run(Faulty::with(Fault::Overlap));
}

#[test]
#[should_panic(expected = "misaligned")]
fn misaligned_objects_are_found() {
    run(Faulty::with(Fault::Misaligned));
}

#[test]
#[should_panic(expected = "is not zero")]
fn dirty_zeros_are_found() {
    run(Faulty::with(Fault::NotZero));
}

#[test]
#[should_panic(expected = "lost byte")]
fn lost_bytes_are_found() {
    run(Faulty::with(Fault::LosesBytes));
}

#[test]
#[should_panic(expected = "was changed at byte")]
fn stray_writes_are_found() {
    run(Faulty::with(Fault::WritesElsewhere));
}

#[test]
#[should_panic(expected = "usable bytes for a request")]
fn small_objects_are_found() {
    run(Faulty::with(Fault::TooSmall));
}

#[test]
#[should_panic(expected = "live objects overlap")]
fn overlaps_between_threads_are_found() {
    let object = |address: usize| Object {
        start: NonNull::without_provenance(address.try_into().expect("not null")),
        bytes: 32,
        usable_bytes: 32,
        align: 16,
        payload: Payload::new(1),
    };
    let objects = [object(4096), object(8192), object(4096 + 31)];
    crate::assert_disjoint(&objects);
}
