//! The freeing thread is not the allocating one, threads end, sizes change: memory is used again
//! all the same.
//! A thread pretends to run on the CPU that a test names, so that the ways between the pools are
//! the same on every machine.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use hectare::{ClassId, Heap};
use hectare_check::{Subject, Suite};
use support::system::pretend_cpu;
use support::{Front, Seating, Source, check_heap, check_released, new_heap, strict};

fn take(front: &mut Front<'_, Source>, bytes: usize) -> NonNull<u8> {
    let object = NonNull::new(front.malloc(bytes)).expect("memory");
    // SAFETY: an object of `bytes` bytes, just taken.
    unsafe { object.write_bytes(1, bytes) };
    object
}

fn give(front: &mut Front<'_, Source>, objects: impl IntoIterator<Item = NonNull<u8>>) {
    for object in objects {
        // SAFETY: each caller gives up live objects.
        unsafe { front.free(object) };
    }
}

/// How much memory the heap holds: in use, in pools and slabs, and dirty.
fn held_bytes(heap: &Heap<Source>) -> usize {
    let stats = heap.stats();
    stats.slab_bytes + stats.run_bytes + stats.huge_bytes + stats.dirty_bytes
}

/// Addresses that pass from thread to thread.
struct Parcel(Vec<NonNull<u8>>);

// SAFETY: the objects belong to whoever has the parcel.
unsafe impl Send for Parcel {}

/// Shows how much the heap held at each tenth of a test's time: the figure of docs/malloc.md, by
/// `cargo test -p hectare --test reuse -- --nocapture`.
fn show(what: &str, live_bytes: usize, held: &[usize]) {
    let mib = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let tenths: Vec<_> = (1..=10).map(|tenth| mib(held[held.len() * tenth / 10 - 1])).collect();
    eprintln!("| {what} | {} | {} |", mib(live_bytes), tenths.join(" | "));
}

/// Has one thread allocate parcels of objects and another, on another CPU, free them. Returns what
/// the heap held after each parcel.
fn flow_one_way(
    heap: &Heap<Source>,
    new_front: Seating,
    parcels: usize,
    bytes: usize,
) -> Vec<usize> {
    let (send, receive) = mpsc::sync_channel::<Parcel>(0);
    let (done, wait) = mpsc::sync_channel::<()>(0);
    let mut held = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pretend_cpu(Some(3));
            let mut front = new_front(heap);
            for parcel in receive {
                give(&mut front, parcel.0);
                done.send(()).expect("the producer waits");
            }
        });
        pretend_cpu(Some(0));
        let mut front = new_front(heap);
        for _ in 0..parcels {
            let parcel = (0..PARCEL).map(|_| take(&mut front, bytes)).collect();
            send.send(Parcel(parcel)).expect("the consumer waits");
            wait.recv().expect("the consumer lives");
            held.push(held_bytes(heap));
        }
        drop(send);
        pretend_cpu(None);
    });
    held
}

const PARCEL: usize = 1000;

/// The footprint of a one-way flow must stay where the first parcels put it.
fn flows_one_way(what: &str, new_front: Seating) {
    for bytes in [16, 100, 1000, 8192, 30_000, 100_000] {
        let heap = new_heap(256 << 20);
        let parcels = if bytes > 4096 { 60 } else { 300 };
        let held = flow_one_way(&heap, new_front, parcels, bytes);
        show(&format!("one-way flow of {bytes} bytes, {what}"), PARCEL * bytes, &held);
        let (early, late) = (held[parcels / 10], held[parcels - 1]);
        assert!(late <= early + (256 << 10), "{bytes}: {early} bytes grew to {late}");
        let live = PARCEL * bytes;
        let peak = held.iter().max().expect("parcels");
        let most = live + live / 4 + (9 << 20) + (1 << 20);
        assert!(*peak <= most, "{bytes}: {peak} bytes held for {live} live");
        check_heap(&heap, [], &[]);
        check_released(&heap);
    }
}

fn a_one_way_flow_keeps_the_footprint_flat() {
    flows_one_way("caches", |heap| Front::new(heap));
}

fn a_one_way_flow_by_lists_of_cpus_keeps_the_footprint_flat() {
    flows_one_way("lists of CPUs", |heap| Front::by_cpu(heap).expect("sequences"));
}

/// A consumer that never allocates: the objects that it frees reach the producer without a new
/// slab.
fn a_pool_borrows_from_another() {
    let heap = new_heap(64 << 20);
    let mut producer = Front::new(&heap);
    let mut consumer = Front::new(&heap);
    let mut slabs = Vec::new();
    for _ in 0..200 {
        pretend_cpu(Some(1));
        let parcel: Vec<_> = (0..500).map(|_| take(&mut producer, 64)).collect();
        pretend_cpu(Some(7));
        give(&mut consumer, parcel);
        slabs.push(heap.stats().slab_bytes);
    }
    pretend_cpu(None);
    assert_eq!(slabs[20..].iter().max(), slabs[10..20].iter().max(), "{slabs:?}");
    check_heap(&heap, [], &[&producer, &consumer]);
    drop((producer, consumer));
    check_released(&heap);
}

/// Two CPUs whose threads allocate and free in turn, each for itself. A thread finds again what it
/// has freed, whatever the other asks for in the meantime.
fn a_pool_keeps_what_its_cpu_needs_again() {
    let heap = new_heap(64 << 20);
    let mut fronts = [Front::new(&heap), Front::new(&heap)];
    let mut parcels = [Vec::new(), Vec::new()];
    let mut last_cpu = BTreeMap::new();
    for turn in 0..40 {
        let (cpu, other) = (turn % 2, (turn + 1) % 2);
        pretend_cpu(Some(other));
        give(&mut fronts[other], parcels[other].drain(..));
        pretend_cpu(Some(cpu));
        parcels[cpu].extend((0..3000).map(|_| take(&mut fronts[cpu], 64)));
        let is_strange = |object: &&NonNull<u8>| {
            last_cpu.insert(object.addr(), cpu).is_some_and(|last| last != cpu)
        };
        let strange = parcels[cpu].iter().filter(is_strange).count();
        assert!(turn < 10 || strange == 0, "turn {turn}: {strange} that the other CPU had");
    }
    give(&mut fronts[1], parcels.into_iter().flatten());
    pretend_cpu(None);
    drop(fronts);
    check_released(&heap);
}

/// The memory of one class is used by another when the first no longer needs it.
fn a_starved_class_gets_what_another_has_left() {
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let live = 16 << 20;
    let mut peaks = Vec::new();
    for bytes in [16, 48, 256, 1024, 5000, 12_000, 32 << 10, 16] {
        let objects: Vec<_> = (0..live / bytes).map(|_| take(&mut front, bytes)).collect();
        peaks.push(heap.stats().committed_bytes);
        give(&mut front, objects);
        strict(&heap).pass_ms(10);
    }
    eprintln!("committed for 16 MiB of each of eight classes in turn: {peaks:?}");
    let (first, last) = (peaks[0], peaks[peaks.len() - 1]);
    // A class wastes what lies behind the last object of a slab, at worst an eighth.
    assert!(last <= first + first / 4 + (4 << 20), "committed bytes grew: {peaks:?}");
    drop(front);
    check_released(&heap);
}

/// A program goes from one size to the next, and its objects go in another order than they came.
/// Objects of one size that its thread's list and the pools still have do not keep the slabs from
/// the other sizes.
fn classes_in_turn_use_the_same_memory() {
    const LIVE_BYTES: usize = 2 << 20;
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    pretend_cpu(Some(0));
    let mut held = Vec::new();
    let sizes = ClassId::all().map(ClassId::object_bytes).filter(|bytes| *bytes <= 8192);
    for bytes in sizes {
        let count = (LIVE_BYTES / bytes).min(20_000);
        let objects: Vec<_> = (0..count).map(|_| take(&mut front, bytes)).collect();
        held.push(held_bytes(&heap));
        // A prime that divides none of the counts.
        give(&mut front, (0..count).map(|i| objects[i * 7919 % count]));
    }
    show("2 MiB of each class in turn", LIVE_BYTES, &held);
    let most = held.iter().max().expect("classes");
    assert!(*most <= 2 * LIVE_BYTES, "{most} bytes held for {LIVE_BYTES} live: {held:?}");
    pretend_cpu(None);
    drop(front);
    check_released(&heap);
}

/// If the system gives no more memory, a class is served from what lies in the pools of others.
fn a_starved_class_empties_the_pools_of_others() {
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let sizes = [32, 64, 128, 256, 512, 768, 2048, 3072];
    for cpu in 0..4 {
        pretend_cpu(Some(cpu));
        for _ in 0..6 {
            for bytes in sizes {
                let objects: Vec<_> =
                    (0..(256 << 10) / bytes).map(|_| take(&mut front, bytes)).collect();
                give(&mut front, objects);
            }
        }
    }
    let pooled = heap.stats().pooled_bytes;
    assert!(pooled > 1 << 20, "only {pooled} bytes in the pools: the test shows nothing");
    support::strict(&heap).bound(support::strict(&heap).committed_bytes());
    let slabs = heap.stats().slab_bytes;
    let mut objects = Vec::new();
    let mut held = Vec::new();
    while let Some(object) = NonNull::new(front.malloc(1024)) {
        objects.push(object);
        held.push(held_bytes(&heap));
    }
    show("a class that takes what others have in pools", objects.len() << 10, &held);
    assert!(objects.len() << 10 > slabs / 10 * 9, "{} KiB of {slabs} bytes", objects.len());
    give(&mut front, objects);
    support::strict(&heap).bound(usize::MAX);
    pretend_cpu(None);
    drop(front);
    check_released(&heap);
}

/// A thread that ends leaves its lists to the next, one thread for each CPU. The other threads'
/// objects go where all can have them.
fn the_next_thread_has_the_lists_of_the_last() {
    let heap = new_heap(256 << 20);
    let class = ClassId::for_bytes(64);
    pretend_cpu(Some(0));
    let mut fronts = [Front::new(&heap), Front::new(&heap), Front::new(&heap)];
    let held = fronts.each_mut().map(|front| {
        for _ in 0..10 {
            let objects: Vec<_> = (0..200).map(|_| take(front, 64)).collect();
            give(front, objects);
        }
        front.cached_objects(class)
    });
    assert!(held.iter().all(|&count| count > 8), "{held:?}: the test shows nothing");
    drop(fronts);
    let pooled = heap.stats().classes[class.index()].pooled_objects;
    assert!(pooled >= held[0], "{pooled} objects are not in use, {held:?} were left");
    assert_eq!(heap.stats().used_bytes(), 0, "what is left counts as in use");

    let mut next = Front::new(&heap);
    let slabs = heap.stats().slab_bytes;
    let object = take(&mut next, 64);
    give(&mut next, [object]);
    assert!(held.contains(&next.cached_objects(class)), "not the lists of any");
    assert_eq!(heap.stats().slab_bytes, slabs);
    let mut other = Front::new(&heap);
    let object = take(&mut other, 64);
    give(&mut other, [object]);
    assert!(other.cached_objects(class) <= 8, "the second finds more than one CPU's");
    pretend_cpu(None);
    drop((next, other));
    check_released(&heap);
}

/// The memory of a thread's cache and of its objects is used again when the thread is gone.
fn a_dead_threads_memory_is_used_again() {
    // Beyond 2 MiB of slabs, where blocks of a huge page begin: one more block would hide what the
    // test looks for.
    const OBJECTS: usize = 24_000;
    let heap = new_heap(256 << 20);
    let mut held = Vec::new();
    for generation in 0..50 {
        let left = std::thread::scope(|scope| {
            let heap = &*heap;
            let dying = scope.spawn(move || {
                pretend_cpu(Some(generation % 4));
                let mut front = Front::new(heap);
                let objects: Vec<_> =
                    (0..OBJECTS).map(|i| take(&mut front, 16 << (i % 5))).collect();
                Parcel(objects)
            });
            dying.join().expect("the thread")
        });
        // The thread's objects outlive it, and another thread frees them.
        pretend_cpu(Some((generation + 1) % 4));
        let mut heir = Front::new(&heap);
        give(&mut heir, left.0);
        drop(heir);
        held.push(held_bytes(&heap));
    }
    pretend_cpu(None);
    show(
        "fifty threads that die and leave objects",
        OBJECTS * (16 + 32 + 64 + 128 + 256) / 5,
        &held,
    );
    assert!(held[49] <= held[5] + (2 << 20), "{held:?}");
    // Four CPUs' pools with the stocks of five classes, and the caches of two threads, in chunks of
    // 64 KiB.
    let metadata = heap.stats().metadata_bytes;
    assert!(metadata <= 256 << 10, "{metadata} bytes for caches: dead threads' are not reused");
    check_heap(&heap, [], &[]);
    check_released(&heap);
}

/// After a peak most of the memory goes back at once, and an idle heap keeps little.
fn a_peak_goes_back_to_the_system() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    for bytes in [100, 3000, 50_000, 2 << 20] {
        let objects: Vec<_> = (0..(128 << 20) / bytes).map(|_| take(&mut front, bytes)).collect();
        assert!(heap.stats().used_bytes() >= 127 << 20);
        give(&mut front, objects);
        support::strict(&heap).pass_ms(60_000);
        // The clock is asked at each 64th free of a run.
        for _ in 0..=64 {
            let one_more = take(&mut front, 100_000);
            give(&mut front, [one_more]);
        }
        let dirty = heap.stats().dirty_bytes;
        assert!(dirty <= 12 << 20, "{dirty} bytes kept after a peak of {bytes}-byte objects");
    }
    drop(front);
    check_released(&heap);
}

/// However much lies idle, no call takes long: each gives back a part of it, and after some tens of
/// calls all that is due has gone.
fn what_lies_idle_goes_part_by_part() {
    const STEP_BYTES: usize = 16 << 20;
    // First runs that go to the backend when freed, then runs that the thread keeps.
    for later_bytes in [1_200_000, 100_000] {
        let heap = new_heap(4 << 30);
        let mut front = Front::new(&heap);
        let objects: Vec<_> = (0..(1 << 30) / 40_000).map(|_| take(&mut front, 40_000)).collect();
        // The memory between the runs that stay serves no longer run.
        give(&mut front, objects.iter().copied().skip(1).step_by(2));
        let mut dirty = heap.stats().dirty_bytes;
        for second in 1..=6 {
            strict(&heap).pass_ms(1000);
            for _ in 0..=80 {
                let mut object = None;
                // A malloc gives back for want of room; a free what is due by time, what is too
                // much, and the rest of what is due.
                for (call, steps) in [("malloc", 1), ("free", 3)] {
                    let before = dirty;
                    match object {
                        Some(object) => give(&mut front, [object]),
                        None => object = Some(take(&mut front, later_bytes)),
                    }
                    dirty = heap.stats().dirty_bytes;
                    let gone = before.saturating_sub(dirty);
                    let bound = steps * STEP_BYTES.max(before / 64) + later_bytes;
                    assert!(
                        gone <= bound,
                        "second {second}: {gone} bytes by one {call}, of {before}"
                    );
                }
            }
        }
        let live = objects.len().div_ceil(2) * 40_000;
        assert!(dirty <= live / 4, "{dirty} bytes stay beside {live} that are live");
        give(&mut front, objects.into_iter().step_by(2));
        drop(front);
        check_released(&heap);
    }
}

/// A look for holes in slabs does not take long, either: the rest of it follows at the next calls.
fn a_look_goes_part_by_part() {
    const BYTES: usize = 64;
    const MOST_BYTES: usize = 40 << 20;
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let mut objects: Vec<_> = (0..(128 << 20) / BYTES).map(|_| take(&mut front, BYTES)).collect();
    objects.sort_unstable();
    // One object keeps each slab.
    let (kept, freed): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object.addr().get() % (64 << 10) == 0);
    let before = strict(&heap).decommitted_bytes();
    let (mut gone, mut most) = (before, 0);
    for object in freed {
        give(&mut front, [object]);
        let now = strict(&heap).decommitted_bytes();
        most = most.max(now - gone);
        gone = now;
    }
    assert!(most <= MOST_BYTES, "{most} bytes went at once");
    assert!(gone - before >= 110 << 20, "of 120 MiB only {} bytes went", gone - before);
    give(&mut front, kept);
    drop(front);
    check_released(&heap);
}

/// The freed runs that a thread keeps are bounded, go by time, and go with the thread.
fn a_thread_keeps_few_runs_and_not_for_long() {
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    for bytes in (33_000..1_000_000).step_by(9000) {
        for _ in 0..4 {
            let objects: Vec<_> = (0..8).map(|_| take(&mut front, bytes)).collect();
            give(&mut front, objects);
            assert!(front.cached_run_bytes() <= 2 << 20);
        }
    }
    assert!(front.cached_run_bytes() >= 1 << 20, "{}", front.cached_run_bytes());
    // An idle half-life, during which one length is in use: half of the other runs goes each time.
    for _ in 0..8 {
        support::strict(&heap).pass_ms(1000);
        for _ in 0..=64 {
            let object = take(&mut front, 100_000);
            give(&mut front, [object]);
        }
    }
    assert!(front.cached_run_bytes() <= 256 << 10, "{}", front.cached_run_bytes());
    check_heap(&heap, [], &[&front]);
    drop(front);
    check_released(&heap);
}

/// All threads may keep only so much together. What one thread no longer needs another may keep,
/// and no more.
fn what_a_thread_keeps_no_longer_another_may() {
    let churn = |front: &mut Front<'_, Source>| {
        for _ in 0..200 {
            let objects: Vec<_> = (0..24).map(|i| take(front, 70_000 + i % 3 * 4096)).collect();
            give(front, objects);
        }
        front.cached_run_bytes()
    };
    let heap = new_heap(512 << 20);
    let mut fronts = [Front::new(&heap), Front::new(&heap)];
    let [first, second] = &mut fronts;
    let keeps = (churn(first), churn(second));
    assert!(keeps.0 >= 1 << 20 && keeps.1 <= 256 << 10, "{keeps:?}");
    for _ in 0..8 {
        strict(&heap).pass_ms(1000);
        for _ in 0..=64 {
            let object = take(first, 70_000);
            give(first, [object]);
        }
    }
    assert!(first.cached_run_bytes() <= 256 << 10, "{}", first.cached_run_bytes());
    let keeps = (churn(second), churn(first));
    assert!(keeps.0 >= 1 << 20 && keeps.1 <= 512 << 10, "{keeps:?}");
    check_heap(&heap, [], &[&fronts[0], &fronts[1]]);
    drop(fronts);
    check_released(&heap);
}

/// If a thread may keep only one run, that of another length goes to make room, and is missed.
fn a_run_makes_room_and_is_missed() {
    const LONG: usize = 18 * 4096;
    const SHORT: usize = 14 * 4096;
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    // A thread may keep runs only once this many have gone.
    for _ in 0..1000 {
        let pair = [take(&mut front, LONG), take(&mut front, LONG)];
        give(&mut front, pair);
    }
    heap.release_own(front.seat());
    let kept = [LONG, LONG, SHORT, LONG].map(|bytes| {
        let object = take(&mut front, bytes);
        give(&mut front, [object]);
        front.cached_run_bytes()
    });
    assert_eq!(kept, [0, LONG, SHORT, SHORT + LONG]);
    drop(front);
    check_released(&heap);
}

/// A huge block goes back when it is freed, unless one like it was asked for again after an earlier
/// free. A kept block goes when nobody asks for it, when others take as much, or when memory is
/// out.
fn a_huge_block_that_comes_and_goes_lies_ready() {
    const HUGE: usize = 40 << 20;
    let heap = new_heap(16 << 20);
    let mut front = Front::new(&heap);
    let kept = |heap: &Heap<Source>| heap.stats().dirty_bytes;
    let object =
        |front: &mut Front<'_, Source>, bytes| NonNull::new(front.malloc(bytes)).expect("memory");
    let once = |front: &mut Front<'_, Source>, bytes| {
        let start = object(front, bytes);
        give(front, [start]);
        start
    };
    once(&mut front, HUGE);
    assert_eq!(kept(&heap), 0, "nobody has asked for it again");
    let first = once(&mut front, HUGE);
    assert_eq!(kept(&heap), HUGE);
    assert_eq!(once(&mut front, HUGE - (1 << 20)), first, "a little larger will do");

    let larger = object(&mut front, 2 * HUGE);
    assert_eq!(kept(&heap), 0, "used and kept together are no more than was once used");
    give(&mut front, [larger]);

    once(&mut front, HUGE);
    assert_eq!(kept(&heap), HUGE);
    support::strict(&heap).pass_ms(60_000);
    assert_eq!(heap.tend(), HUGE, "nobody has asked for it");

    once(&mut front, HUGE);
    once(&mut front, HUGE);
    assert_eq!(kept(&heap), HUGE);
    let committed = support::strict(&heap).committed_bytes();
    support::strict(&heap).bound(committed);
    let run = object(&mut front, 4 << 20);
    assert_eq!(kept(&heap), 0, "memory is out otherwise");
    support::strict(&heap).bound(usize::MAX);

    once(&mut front, HUGE);
    once(&mut front, HUGE);
    assert_eq!(heap.trim(0), HUGE);
    let used = object(&mut front, HUGE);
    give(&mut front, [run, used]);
    drop(front);
    check_released(&heap);
}

/// If the region is long, objects as long as huge ones lie in it. The first goes back when it is
/// freed, whatever is in use beside it. A second leaves its memory to whoever asks.
fn a_long_object_leaves_its_memory_to_others() {
    const LONG: usize = 40 << 20;
    let heap = new_heap(4 << 30);
    let mut front = Front::new(&heap);
    let start = take(&mut front, 30 << 20);
    let first = take(&mut front, LONG);
    assert_eq!((heap.stats().huge_objects, heap.stats().huge_bytes), (1, LONG));
    give(&mut front, [first]);
    assert_eq!((heap.stats().huge_objects, heap.stats().huge_bytes), (0, 0));
    assert!(heap.stats().dirty_bytes <= 10 << 20, "{}", heap.stats().dirty_bytes);
    let again = take(&mut front, LONG);
    give(&mut front, [again]);
    assert!(heap.stats().dirty_bytes >= LONG - (8 << 20), "{}", heap.stats().dirty_bytes);
    let committed = heap.stats().committed_bytes;
    let others: Vec<_> = (0..8).map(|_| take(&mut front, 4 << 20)).collect();
    assert_eq!(heap.stats().committed_bytes, committed);
    assert!(heap.stats().dirty_bytes <= 4 << 20, "{}", heap.stats().dirty_bytes);
    give(&mut front, others.into_iter().chain([start]));
    drop(front);
    check_released(&heap);
}

/// A program that has shrunk goes on for hours, and its objects change places one by one. The
/// memory that it freed must not stay for the sake of those objects.
fn holes_are_gathered_while_a_program_goes_on() {
    const BYTES: usize = 500;
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    let mut objects: Vec<_> = (0..100_000).map(|_| take(&mut front, BYTES)).collect();
    while objects.len() > 10_000 {
        let at = draw(objects.len());
        give(&mut front, [objects.swap_remove(at)]);
    }
    for _ in 0..5000 {
        for _ in 0..40 {
            let at = draw(objects.len());
            give(&mut front, [objects.swap_remove(at)]);
        }
        objects.extend((0..40).map(|_| take(&mut front, BYTES)));
        strict(&heap).pass_ms(4);
    }
    let held = heap.stats().slab_bytes;
    assert!(held < 2 * 10_000 * BYTES, "{held} bytes in slabs for {} objects", objects.len());
    heap.validate();
    give(&mut front, objects);
    drop(front);
    check_released(&heap);
}

/// A program frees most of what it has. While it does so, nothing goes page by page, since slabs
/// may soon go as a whole. Once some milliseconds have passed, the memory kept by the remaining
/// objects goes. Once hardly anything is left, there is no waiting.
fn emptying_settles_first() {
    const BYTES: usize = 200;
    const OBJECTS: usize = 400_000;
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let objects: Vec<_> = (0..OBJECTS).map(|_| take(&mut front, BYTES)).collect();
    let gone = || strict(&heap).decommitted_bytes();
    let rows = || objects.chunks(320);
    let before = gone();
    give(&mut front, rows().flat_map(|row| row[40..].iter().copied()));
    assert_eq!(gone(), before, "while it frees");
    // Step by step, at the calls of each pass.
    for _ in 0..3 {
        strict(&heap).pass_ms(10);
        let next: Vec<_> = (0..1000).map(|_| take(&mut front, BYTES)).collect();
        give(&mut front, next);
    }
    let settled = gone() - before;
    assert!(settled > OBJECTS * BYTES / 2, "{settled} bytes, {} in slabs", heap.stats().slab_bytes);
    give(&mut front, rows().flat_map(|row| row[1..40].iter().copied()));
    let at_once = gone() - before - settled;
    assert!(at_once > OBJECTS * BYTES / 40, "{at_once} bytes at once");
    heap.validate();
    give(&mut front, rows().map(|row| row[0]));
    drop(front);
    check_released(&heap);
}

/// A program frees most of what lies in given-up slabs, and does nothing else. The remaining
/// objects keep those slabs from being empty, but the freed memory in them goes all the same.
fn departs_without_holes(new_front: Seating) {
    const BYTES: usize = 1024;
    const OBJECTS: usize = 60_000;
    let heap = new_heap(256 << 20);
    let mut front = new_front(&heap);
    let objects: Vec<_> = (0..OBJECTS).map(|_| take(&mut front, BYTES)).collect();
    give(&mut front, objects.iter().copied().step_by(3));
    // When that has been so for a while, the slabs are given up.
    for _ in 0..400 {
        strict(&heap).pass_ms(4);
        let others: Vec<_> = (0..500).map(|_| take(&mut front, 64)).collect();
        give(&mut front, others);
    }
    let before = strict(&heap).decommitted_bytes();
    let rest = || objects.chunks(3).flat_map(|row| row[1..].iter().copied()).enumerate();
    for (at, object) in rest().filter(|(at, _)| at % 40 > 0) {
        give(&mut front, [object]);
        if at % 1000 == 1 {
            strict(&heap).pass_ms(1);
        }
    }
    let gone = strict(&heap).decommitted_bytes() - before;
    assert!(gone > OBJECTS * BYTES / 3, "{gone} bytes, {} in slabs", heap.stats().slab_bytes);
    heap.validate();
    give(&mut front, rest().step_by(40).map(|(_, object)| object));
    drop(front);
    check_released(&heap);
}

fn what_departs_leaves_no_holes() {
    departs_without_holes(|heap| Front::new(heap));
}

fn what_departs_by_no_list_leaves_no_holes() {
    departs_without_holes(|heap| Front::by_cpu(heap).expect("sequences"));
}

/// Live memory swings, and the same slabs fill again each time. Pages that went at each swing would
/// only come back, so they stay. When the swings end, they go.
fn a_swing_keeps_its_pages() {
    const BYTES: usize = 200;
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let mut kept: Vec<NonNull<u8>> = Vec::new();
    let mut gone = Vec::new();
    for _ in 0..20 {
        let before = strict(&heap).decommitted_bytes();
        let objects: Vec<_> = (0..60_000).map(|_| take(&mut front, BYTES)).collect();
        give(&mut front, kept);
        // Some objects stay until the next time, so that few slabs are empty.
        kept = objects.iter().copied().step_by(40).collect();
        give(&mut front, objects.chunks(40).flat_map(|chunk| chunk[1..].iter().copied()));
        strict(&heap).pass_ms(10);
        gone.push(strict(&heap).decommitted_bytes() - before);
    }
    assert!(gone[1] > 4 << 20, "{gone:?}");
    assert!(gone[10..].iter().sum::<usize>() < gone[1], "{gone:?}");
    let before = strict(&heap).decommitted_bytes();
    for _ in 0..200 {
        strict(&heap).pass_ms(10);
        let objects: Vec<_> = (0..1000).map(|_| take(&mut front, BYTES)).collect();
        give(&mut front, objects);
    }
    assert!(strict(&heap).decommitted_bytes() - before > 4 << 20);
    give(&mut front, kept);
    drop(front);
    check_released(&heap);
}

/// Memory that the system refuses to take back is offered again when more lies there, not at each
/// free.
fn what_is_refused_is_offered_seldom() {
    const RUN_BYTES: usize = 100_000;
    const RUNS: usize = 1000;
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let runs: Vec<_> = (0..RUNS).map(|_| take(&mut front, RUN_BYTES)).collect();
    strict(&heap).refuse_decommits();
    // Every other run first, so that each lies by itself.
    let (first, then) = (runs.iter().step_by(2), runs.iter().skip(1).step_by(2));
    give(&mut front, first.chain(then).copied());
    let refused = strict(&heap).refuse_decommits();
    assert!((1..10 * RUNS).contains(&refused), "{refused} were refused at {RUNS} frees");
    drop(front);
}

/// Nor is such memory offered at each step of a heap that grows (7,792 refusals before).
fn what_is_refused_is_offered_seldom_to_a_heap_that_grows() {
    const RUN_BYTES: usize = 100_000;
    const RUNS: usize = 1000;
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let runs: Vec<_> = (0..RUNS).map(|_| take(&mut front, RUN_BYTES)).collect();
    strict(&heap).refuse_decommits();
    give(&mut front, runs.iter().step_by(2).copied());
    strict(&heap).refuse_decommits();
    let longer: Vec<_> = (0..RUNS).map(|_| take(&mut front, 3 * RUN_BYTES / 2)).collect();
    let refused = strict(&heap).refuse_decommits();
    assert!(refused < RUNS, "{refused} were refused at {RUNS} steps");
    give(&mut front, longer);
    give(&mut front, runs.iter().skip(1).step_by(2).copied());
    drop(front);
}

/// Memory that a heap with much headroom spared goes once it has little, though no free gave
/// anything back before.
fn what_was_spared_goes_when_headroom_shrinks() {
    const RUN_BYTES: usize = 100_000;
    const RUNS: usize = 4000;
    let heap = new_heap(1 << 30);
    let mut front = Front::new(&heap);
    let runs: Vec<_> = (0..RUNS).map(|_| take(&mut front, RUN_BYTES)).collect();
    give(&mut front, runs.iter().step_by(2).copied());
    let spared_bytes = heap.stats().dirty_bytes;
    let longer: Vec<_> = (0..RUNS / 3).map(|_| take(&mut front, 3 * RUN_BYTES / 2)).collect();
    let dirty_bytes = heap.stats().dirty_bytes;
    assert!(dirty_bytes < spared_bytes / 2, "of {spared_bytes} {dirty_bytes} stay");
    give(&mut front, longer);
    give(&mut front, runs.iter().skip(1).step_by(2).copied());
    drop(front);
}

/// A block that lies ready since it was asked for again goes once it is no longer asked for, though
/// lists and pools serve all calls.
fn what_lies_ready_goes_while_lists_serve() {
    const HUGE: usize = 40 << 20;
    let heap = new_heap(16 << 20);
    let mut front = Front::new(&heap);
    for _ in 0..2 {
        let block = take(&mut front, HUGE);
        give(&mut front, [block]);
    }
    assert_eq!(heap.stats().dirty_bytes, HUGE, "it was asked for again");
    for _ in 0..50 {
        strict(&heap).pass_ms(100);
        let objects: Vec<_> = (0..1000).map(|_| take(&mut front, 100)).collect();
        give(&mut front, objects);
    }
    assert!(heap.stats().dirty_bytes < HUGE, "nobody asks for it any more");
    drop(front);
    check_released(&heap);
}

/// If live memory swings by 25 MB within a tenth of a second, the heap holds that memory after some
/// swings, whether slabs become empty or not. Once it no longer swings, the memory goes.
fn what_swings_stays_until_it_no_longer_does() {
    const BYTES: usize = 640;
    const SWING_BYTES: usize = 40_000 * BYTES;
    // Objects freed on one CPU and taken on another are no swing: on a busy machine a thread goes
    // from one to the other.
    pretend_cpu(Some(0));
    for order in ["as taken", "here and there"] {
        let heap = new_heap(512 << 20);
        let mut front = Front::new(&heap);
        let mut gone = Vec::new();
        for _ in 0..12 {
            let before = strict(&heap).decommitted_bytes();
            let mut objects: Vec<_> =
                (0..SWING_BYTES / BYTES).map(|_| take(&mut front, BYTES)).collect();
            if order == "here and there" {
                objects.sort_by_key(|at| at.addr().get().wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
            for part in objects.chunks(2000) {
                give(&mut front, part.iter().copied());
                strict(&heap).pass_ms(1);
            }
            gone.push(strict(&heap).decommitted_bytes() - before);
        }
        assert!(gone[0] > SWING_BYTES / 2, "{order}: at first what is freed goes: {gone:?}");
        let later: usize = gone[4..].iter().sum();
        assert!(later < SWING_BYTES / 2, "{order}: of eight swings {later} bytes went: {gone:?}");
        let before = strict(&heap).decommitted_bytes();
        for _ in 0..20 {
            strict(&heap).pass_ms(200);
            let objects: Vec<_> = (0..100).map(|_| take(&mut front, BYTES)).collect();
            give(&mut front, objects);
        }
        let gone = strict(&heap).decommitted_bytes() - before;
        assert!(gone > SWING_BYTES / 2, "{order}: it no longer swings, yet only {gone} bytes went");
        drop(front);
        check_released(&heap);
    }
}

/// A slab that comes or goes while the heap is counted does not count as a large object.
fn slabs_that_come_and_go_are_no_runs() {
    let heap = new_heap(1 << 30);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                let mut front = Front::new(&heap);
                let objects: Vec<_> = (0..1000).map(|_| take(&mut front, 3000)).collect();
                give(&mut front, objects);
                drop(front);
                heap.release_pools();
            }
        });
        let most = (0..10_000).map(|_| heap.stats().run_bytes).max();
        is_done.store(true, Relaxed);
        assert_eq!(most, Some(0), "bytes of large objects, though there is none");
    });
}

fn main() -> ExitCode {
    let mut suite = Suite::new();
    let tests: [(&str, fn()); 26] = [
        ("a_one_way_flow_keeps_the_footprint_flat", a_one_way_flow_keeps_the_footprint_flat),
        ("a_pool_borrows_from_another", a_pool_borrows_from_another),
        ("a_pool_keeps_what_its_cpu_needs_again", a_pool_keeps_what_its_cpu_needs_again),
        ("a_starved_class_gets_what_another_has_left", a_starved_class_gets_what_another_has_left),
        ("classes_in_turn_use_the_same_memory", classes_in_turn_use_the_same_memory),
        (
            "a_starved_class_empties_the_pools_of_others",
            a_starved_class_empties_the_pools_of_others,
        ),
        ("the_next_thread_has_the_lists_of_the_last", the_next_thread_has_the_lists_of_the_last),
        ("a_dead_threads_memory_is_used_again", a_dead_threads_memory_is_used_again),
        ("a_peak_goes_back_to_the_system", a_peak_goes_back_to_the_system),
        ("what_lies_idle_goes_part_by_part", what_lies_idle_goes_part_by_part),
        ("a_look_goes_part_by_part", a_look_goes_part_by_part),
        ("a_thread_keeps_few_runs_and_not_for_long", a_thread_keeps_few_runs_and_not_for_long),
        ("what_a_thread_keeps_no_longer_another_may", what_a_thread_keeps_no_longer_another_may),
        ("a_run_makes_room_and_is_missed", a_run_makes_room_and_is_missed),
        ("a_long_object_leaves_its_memory_to_others", a_long_object_leaves_its_memory_to_others),
        (
            "a_huge_block_that_comes_and_goes_lies_ready",
            a_huge_block_that_comes_and_goes_lies_ready,
        ),
        ("holes_are_gathered_while_a_program_goes_on", holes_are_gathered_while_a_program_goes_on),
        ("emptying_settles_first", emptying_settles_first),
        ("slabs_that_come_and_go_are_no_runs", slabs_that_come_and_go_are_no_runs),
        ("what_departs_leaves_no_holes", what_departs_leaves_no_holes),
        ("a_swing_keeps_its_pages", a_swing_keeps_its_pages),
        ("what_is_refused_is_offered_seldom", what_is_refused_is_offered_seldom),
        (
            "what_is_refused_is_offered_seldom_to_a_heap_that_grows",
            what_is_refused_is_offered_seldom_to_a_heap_that_grows,
        ),
        ("what_was_spared_goes_when_headroom_shrinks", what_was_spared_goes_when_headroom_shrinks),
        ("what_lies_ready_goes_while_lists_serve", what_lies_ready_goes_while_lists_serve),
        ("what_swings_stays_until_it_no_longer_does", what_swings_stays_until_it_no_longer_does),
    ];
    for (name, test) in tests {
        suite.check(name, test);
    }
    let by_cpu: [(&str, fn()); 2] = [
        (
            "a_one_way_flow_by_lists_of_cpus_keeps_the_footprint_flat",
            a_one_way_flow_by_lists_of_cpus_keeps_the_footprint_flat,
        ),
        ("what_departs_by_no_list_leaves_no_holes", what_departs_by_no_list_leaves_no_holes),
    ];
    for (name, test) in by_cpu {
        if Front::by_cpu(&new_heap(1 << 20)).is_some() {
            suite.check(name, test);
        } else {
            suite.skip(name, "no restartable sequences here");
        }
    }
    suite.run()
}
