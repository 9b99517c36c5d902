//! Buffers that grow by `realloc`: how often they move, and what they leave behind.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::collections::HashSet;
use std::num::NonZero;
use std::ptr::NonNull;

use hectare::Heap;
use hectare_check::Subject;
use hectare_pages::Os;
use support::{Front, Source, check_released, new_heap, strict};

const MIB: usize = 1 << 20;
const SLAB_BYTES: usize = 64 << 10;

fn take(front: &mut Front<'_, Source>, bytes: usize) -> NonNull<u8> {
    NonNull::new(front.malloc(bytes)).expect("memory")
}

fn resized(front: &mut Front<'_, Source>, object: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: each caller gives up a live object for what it becomes.
    NonNull::new(unsafe { front.realloc(object, bytes) }).expect("memory")
}

fn give(front: &mut Front<'_, Source>, objects: impl IntoIterator<Item = NonNull<u8>>) {
    for object in objects {
        // SAFETY: each caller gives up live objects.
        unsafe { front.free(object) };
    }
}

/// If a thread takes the memory behind a buffer at each step of its growth, the buffer must not be
/// copied at each step.
#[test]
fn a_buffer_that_grows_by_pages_is_seldom_copied() {
    const LEAST: usize = 64 << 10;
    const MOST: usize = 12 * MIB;
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let mut buffer = take(&mut front, LEAST);
    let mut behind = Vec::new();
    let mut moves = 0;
    for bytes in (LEAST..=MOST).step_by(4 * 4096) {
        let grown = resized(&mut front, buffer, bytes);
        moves += usize::from(grown != buffer);
        buffer = grown;
        behind.extend((0..8).map(|_| take(&mut front, 40_000)));
    }
    // Eight doublings, by an eighth at least.
    assert!(moves <= 8 * 8, "{moves} moves");
    give(&mut front, behind.into_iter().chain([buffer]));
    drop(front);
    check_released(&heap);
}

/// A heap that grows by blocks leaves no unit out: a unit of which a few frames are taken comes as
/// a whole.
#[test]
fn what_a_program_takes_and_fills_follows_without_gaps() {
    for bytes in [40_000, 70_000, 100_000, 200_000] {
        // On the system itself, since the tests' own source has no huge pages.
        let heap = Box::new(Heap::new(Os, 512 << 20));
        let mut front = Front::new(&heap);
        let mut take_filled = |bytes| {
            let block = NonNull::new(front.malloc(bytes)).expect("memory");
            // SAFETY: a block of `bytes` bytes, just taken.
            unsafe { block.write_bytes(1, bytes) };
            block
        };
        let blocks: Vec<_> = (0..32 * MIB / bytes).map(|_| take_filled(bytes)).collect();
        let places = || blocks.iter().map(|block| block.addr().get());
        let span = places().max().unwrap_or(0) + bytes - places().min().unwrap_or(0);
        // Each block may be an eighth longer, and one unit is begun.
        assert!(span < 36 * MIB + 2 * MIB, "{} KiB for blocks of {bytes}", span >> 10);
        for block in blocks {
            // SAFETY: a live block.
            unsafe { front.free(block) };
        }
        drop(front);
        check_released(&heap);
    }
}

/// Panics unless runs begin without marks at the `places` of objects that have all been freed.
fn check_unmarked(front: &mut Front<'_, Source>, places: &HashSet<NonZero<usize>>) {
    let runs: Vec<_> = (0..50).map(|_| take(front, 40_000)).collect();
    let among: Vec<_> = runs.iter().filter(|run| places.contains(&run.addr())).collect();
    assert!(among.len() > 10, "{} runs where objects were", among.len());
    for run in among {
        // SAFETY: within the run, where the heap has written.
        assert_eq!(unsafe { run.cast::<usize>().add(1).read() }, 0, "{run:p}");
    }
    give(front, runs);
}

/// The rest of a free object's mark at a run's start would move along when the run grows, and come
/// back when it shrinks to an object there. The free of that object would then seem to be a double
/// one.
#[test]
fn a_run_begins_without_the_mark_of_an_object() {
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let small: Vec<_> = (0..4 << 10).map(|_| take(&mut front, 1024)).collect();
    let places = small.iter().map(|object| object.addr()).collect();
    give(&mut front, small);
    check_unmarked(&mut front, &places);
    drop(front);
    check_released(&heap);
}

/// A run begins without a mark even if idle pages of a slab were to go back, and the system has
/// refused it.
#[test]
fn a_run_begins_without_a_mark_where_nothing_goes_back() {
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let small: Vec<_> = (0..4 << 10).map(|_| take(&mut front, 1024)).collect();
    let places = small.iter().map(|object| object.addr()).collect();
    let is_last = |object: &NonNull<u8>| object.addr().get() % SLAB_BYTES >= SLAB_BYTES - 1024;
    let (last, others): (Vec<_>, Vec<_>) = small.into_iter().partition(is_last);
    heap.source().refuse_all(true);
    give(&mut front, others);
    assert_eq!(heap.trim(0), 0);
    give(&mut front, last);
    heap.release_pools();
    check_unmarked(&mut front, &places);
    heap.source().refuse_all(false);
    drop(front);
    check_released(&heap);
}

/// A long buffer is not moved if the free memory behind it is half dirty, half clean.
#[test]
fn a_long_buffer_grows_by_what_is_free_behind_it() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let buffer = take(&mut front, 10 * MIB);
    let behind = take(&mut front, 4 * MIB);
    assert_eq!(behind.addr().get() - buffer.addr().get(), 10 * MIB);
    give(&mut front, [behind]);
    assert!(heap.stats().dirty_bytes >= 4 * MIB);
    assert_eq!(resized(&mut front, buffer, 18 * MIB), buffer);
    assert!(heap.stats().dirty_bytes < MIB, "{}", heap.stats().dirty_bytes);
    give(&mut front, [buffer]);
    drop(front);
    check_released(&heap);
}

/// Buffers of some mebibytes that grow and go, again and again, use the memory of those before
/// them.
#[test]
fn buffers_that_grow_use_the_same_memory() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let mut committed = Vec::new();
    for _ in 0..10 {
        let mut buffer = take(&mut front, 40_000);
        let mut bytes = 40_000;
        while bytes < 6 * MIB {
            bytes *= 2;
            buffer = resized(&mut front, buffer, bytes);
        }
        assert_eq!(heap.stats().huge_objects, 0, "a block that goes back when it is freed");
        give(&mut front, [buffer]);
        committed.push(heap.stats().committed_bytes);
        let dirty_bytes = heap.stats().dirty_bytes;
        assert!((6 * MIB..=18 * MIB).contains(&dirty_bytes), "{dirty_bytes}");
    }
    // Until the memory left by the first ones suffices, the next are laid beside it.
    assert_eq!(committed[5], committed[9], "{committed:?}");
    drop(front);
    check_released(&heap);
}

/// A buffer that must grow by little gets room to grow. It keeps little of that room when it is
/// made to fit.
#[test]
fn little_is_kept_beyond_what_is_asked_for() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    for bytes in (MIB + 4096..8 * MIB).step_by(MIB / 3) {
        let buffer = take(&mut front, bytes);
        let behind = take(&mut front, 40_000);
        let buffer = resized(&mut front, buffer, bytes + 1);
        let most = bytes + bytes / 8 + 8192;
        let usable = front.usable_bytes(buffer);
        assert!((bytes..most).contains(&usable), "{usable} for {bytes}");
        let fitted = resized(&mut front, buffer, bytes / 2);
        let usable = front.usable_bytes(fitted);
        assert!(usable <= bytes / 2 + bytes / 16 + 8192, "{usable} for {}", bytes / 2);
        give(&mut front, [fitted, behind]);
    }
    drop(front);
    check_released(&heap);
}

/// If memory is short, a buffer grows to what was asked for, though there is no room beyond.
#[test]
fn a_buffer_grows_where_there_is_no_room_beyond() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let buffer = take(&mut front, 6 * MIB);
    let mut behind = vec![take(&mut front, 40_000)];
    let source = strict(&heap);
    source.bound(source.committed_bytes());
    behind.extend(std::iter::from_fn(|| NonNull::new(front.malloc(40_000))));
    source.bound(source.committed_bytes() + 6 * MIB + MIB / 2);
    let grown = resized(&mut front, buffer, 6 * MIB + 1);
    assert_ne!(grown, buffer, "it had to move");
    assert!(front.usable_bytes(grown) < 6 * MIB + MIB / 2);
    behind.push(grown);
    give(&mut front, behind);
    drop(front);
    check_released(&heap);
}

/// Buffers that grow in place, again and again, to where memory has gone back soon find memory
/// there.
#[test]
fn what_growing_faults_anew_is_regretted() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let mut dirty = Vec::new();
    for _ in 0..12 {
        let buffers = [(); 4].map(|()| {
            let mut bytes = 64 << 10;
            let mut buffer = take(&mut front, bytes);
            while bytes < 8 * MIB {
                bytes *= 2;
                buffer = resized(&mut front, buffer, bytes);
            }
            buffer
        });
        give(&mut front, buffers);
        dirty.push(heap.stats().dirty_bytes);
    }
    assert!(dirty[0] < 16 * MIB && dirty[11] >= 30 * MIB, "{dirty:?}");
    drop(front);
    check_released(&heap);
}
