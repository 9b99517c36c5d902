//! The heap as the global allocator of a program: of this one.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[global_allocator]
static GLOBAL: hectare::Malloc = hectare::Malloc;

/// Waits for a child for as long as its alarm takes. Returns how it ended.
fn status_of(child: libc::pid_t) -> libc::c_int {
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: the child just made, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Objects of many sizes, taken and freed.
fn churn(round: usize) {
    let objects: Vec<Vec<u8>> = (0..200).map(|i| vec![1; 1 + (i * 37 + round) % 60_000]).collect();
    assert!(objects.iter().all(|object| object.iter().all(|byte| *byte == 1)));
}

/// Forks children that allocate, until one fails. Returns how that one ended.
fn fork_for_a_while() -> libc::c_int {
    let begin = Instant::now();
    let mut failed = 0;
    while failed == 0 && begin.elapsed() < Duration::from_secs(2) {
        // SAFETY: the child allocates, which is what is tested, and makes system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // A lock that nobody can release would hang; the alarm ends such a child.
            // SAFETY: no preconditions.
            unsafe { libc::alarm(10) };
            (0..3).for_each(churn);
            // SAFETY: ends this process without the harness's exit handlers.
            unsafe { libc::_exit(0) };
        }
        failed = status_of(child);
    }
    failed
}

/// How many bytes of this process are resident.
fn resident_bytes() -> usize {
    let told = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages = told.split(' ').nth(1).expect("a second number");
    pages.parse::<usize>().expect("a number") * 4096
}

/// Goes through `steps` in a child, where nothing else changes how much is resident. Each step must
/// hold.
fn hold_in_a_child<const STEPS: usize>(steps: impl FnOnce() -> [bool; STEPS]) {
    // SAFETY: the child allocates, and makes system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = steps().iter().position(|step| !step);
        // SAFETY: ends this process without the harness's exit handlers.
        unsafe { libc::_exit(failed.map_or(0, |at| at as i32 + 1)) };
    }
    assert_eq!(status_of(child), 0, "the exit status, in its second byte, is the step that failed");
}

/// Buffers for vector instructions are aligned to 64 bytes and more.
#[test]
fn zeros_that_are_widely_aligned_stay_untouched_as_they_grow() {
    const BYTES: usize = 64 << 20;
    const FEW: usize = 8 << 20;
    hold_in_a_child(|| {
        let layout = Layout::from_size_align(BYTES, 128).expect("a layout");
        let before = resident_bytes();
        // SAFETY: the layout has bytes.
        let block = unsafe { alloc_zeroed(layout) };
        let is_untouched = resident_bytes() < before + FEW;
        // SAFETY: the block has as many; a child without one fails.
        let contents = unsafe { std::slice::from_raw_parts_mut(block, BYTES) };
        let is_zero = contents[BYTES - 1] == 0;
        contents[BYTES - 1] = 7;
        // SAFETY: the block has that layout.
        let grown = unsafe { realloc(block, layout, BYTES + BYTES / 2) };
        let is_still_untouched = resident_bytes() < before + FEW;
        let is_aligned = grown.addr().is_multiple_of(layout.align());
        // SAFETY: the block has more bytes.
        let contents = unsafe { std::slice::from_raw_parts(grown, BYTES) };
        let is_kept = contents[0] == 0 && contents[BYTES - 1] == 7;
        [is_untouched, is_zero, is_still_untouched, is_aligned, is_kept]
    });
}

/// What a thread has freed shows in the numbers, and goes back when that is asked for.
#[test]
fn what_is_free_is_told_and_goes_back() {
    const BYTES: usize = 64 << 20;
    const FEW: usize = 1 << 20;
    hold_in_a_child(|| {
        let (before, live_before) = (resident_bytes(), GLOBAL.stats().small_bytes);
        let objects: Vec<Vec<u8>> = (0..BYTES / 256).map(|_| vec![1; 256]).collect();
        let live = GLOBAL.stats().small_bytes - live_before;
        let is_told = live >= BYTES && resident_bytes() >= before + BYTES / 2;
        // One object in sixty-four stays.
        let kept: Vec<Vec<u8>> = objects
            .into_iter()
            .enumerate()
            .filter_map(|(i, o)| (i % 64 == 0).then_some(o))
            .collect();
        let still_live = GLOBAL.stats().small_bytes - live_before;
        let is_told_again = (BYTES / 64..BYTES / 32).contains(&still_live);
        let held = resident_bytes();
        let gone = GLOBAL.trim(0);
        let is_gone = gone > 0 && resident_bytes() + gone <= held + FEW;
        let is_kept = kept.iter().flatten().all(|byte| *byte == 1);
        [is_told, is_told_again, is_gone, is_kept]
    });
}

/// A program that makes no other calls.
#[test]
fn an_idle_program_can_have_its_heap_tended() {
    const BYTES: usize = 8 << 20;
    hold_in_a_child(|| {
        GLOBAL.trim(0);
        let before = resident_bytes();
        drop((0..8).map(|_| vec![1_u8; BYTES / 8]).collect::<Vec<_>>());
        let is_held = resident_bytes() > before + BYTES / 2;
        let begin = Instant::now();
        while resident_bytes() > before + BYTES / 4 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(100));
            GLOBAL.tend();
        }
        let is_gone = resident_bytes() <= before + BYTES / 4;
        [is_held, is_gone]
    });
}

#[test]
fn zeros_aligned_beyond_a_page_stay_untouched() {
    const FEW: usize = 8 << 20;
    hold_in_a_child(|| {
        let before = resident_bytes();
        let is_zero = |layout: Layout| {
            // The compiler may not take the allocation away.
            // SAFETY: the layout has bytes.
            let block = std::hint::black_box(unsafe { alloc_zeroed(layout) });
            // SAFETY: the block has that many; a child without one fails.
            let last = unsafe { block.add(layout.size() - 1) };
            // SAFETY: as above.
            block.addr().is_multiple_of(layout.align()) && unsafe { last.read() } == 0
        };
        let are_zero = [(64 << 20, 2 << 20), (20 << 20, 1 << 16), (20 << 20, 1 << 13)]
            .map(|(bytes, align)| Layout::from_size_align(bytes, align).expect("a layout"))
            .map(is_zero);
        let is_untouched = resident_bytes() < before + FEW;
        [are_zero == [true; 3], is_untouched]
    });
}

/// Memory that was freed is not zero any more.
#[test]
fn used_memory_is_cleared_however_it_is_aligned() {
    for (bytes, align) in [(40_000, 1 << 13), (3 << 20, 1 << 21), (200, 1 << 16)] {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        for _ in 0..20 {
            // SAFETY: the layout has bytes.
            let block = unsafe { alloc_zeroed(layout) };
            // SAFETY: the block has as many.
            let contents = unsafe { std::slice::from_raw_parts_mut(block, bytes) };
            assert!(contents.iter().all(|byte| *byte == 0), "{bytes} aligned to {align}");
            contents.fill(1);
            // SAFETY: the block has that layout.
            unsafe { dealloc(block, layout) };
        }
    }
}

/// An object of all sizes and alignments, as it grows and shrinks.
#[test]
fn what_is_widely_aligned_stays_so() {
    let sizes = [100, 3000, 20_000, 33_000, 70_000, 3_000_000, 50_000_000, 90_000_000, 40_000, 200];
    for align in (4..=13).map(|shift| 1 << shift) {
        let layout = |bytes| Layout::from_size_align(bytes, align).expect("a layout");
        // SAFETY: the layout has bytes.
        let mut object = unsafe { alloc_zeroed(layout(sizes[0])) };
        for step in sizes.windows(2) {
            let &[before, after] = step else { unreachable!() };
            let least = before.min(after);
            // SAFETY: an object of `before` bytes.
            unsafe { object.write_bytes(align.ilog2() as u8, before) };
            // SAFETY: as above.
            object = unsafe { realloc(object, layout(before), after) };
            assert!(
                !object.is_null() && object.addr().is_multiple_of(align),
                "{before} to {after}"
            );
            // SAFETY: an object of `after` bytes, of which so many were written.
            let contents = unsafe { std::slice::from_raw_parts(object, least) };
            assert!(contents.iter().all(|byte| u32::from(*byte) == align.ilog2()), "{align}");
        }
        // SAFETY: the object has that layout.
        unsafe { dealloc(object, layout(sizes[sizes.len() - 1])) };
    }
}

#[test]
fn what_is_aligned_stays_where_it_is_while_it_fits() {
    let layout = |bytes| Layout::from_size_align(bytes, 64).expect("a layout");
    // SAFETY: the layout has bytes.
    let object = unsafe { alloc(layout(400)) };
    for (before, after) in [(400, 440), (440, 448), (448, 300), (300, 400)] {
        // SAFETY: an object of `before` bytes.
        let resized = unsafe { realloc(object, layout(before), after) };
        assert_eq!(resized, object, "{before} to {after} bytes");
    }
    // SAFETY: an object of so many.
    let moved = unsafe { realloc(object, layout(400), 460) };
    assert!(moved != object && moved.addr().is_multiple_of(64));
    // SAFETY: the object has that layout.
    unsafe { dealloc(moved, layout(460)) };
}

/// In a child, which has a limit of its own.
#[test]
fn a_program_that_limits_itself_has_room() {
    // SAFETY: the child makes system calls, and calls of the heap.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let can_map = || {
            let (access, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let place = std::ptr::null_mut();
            // SAFETY: a new mapping disturbs nothing.
            unsafe { libc::mmap(place, 256 << 20, access, flags, -1, 0) != libc::MAP_FAILED }
        };
        // Enough for the C library's own heaps, too: the other test's threads have 64 MiB of those
        // each.
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the limit is readable.
        let is_limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0;
        let could_map = can_map();
        GLOBAL.leave_room();
        let steps = [is_limited, !could_map, can_map()];
        churn(0);
        // SAFETY: ends this process without the harness's exit handlers.
        unsafe { libc::_exit(steps.iter().position(|step| !step).map_or(0, |at| at as i32 + 1)) };
    }
    assert_eq!(status_of(child), 0, "the exit status, in its second byte, is the step that failed");
}

#[test]
fn a_child_allocates_whatever_other_threads_did() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Relaxed) {
                    // Threads end meanwhile, too.
                    std::thread::scope(|scope| scope.spawn(|| churn(round)).join().unwrap());
                    churn(round);
                    round += 1;
                }
            });
        }
        // Two threads that fork at once, and see to the heap by turns.
        let failed = [(); 2].map(|()| scope.spawn(fork_for_a_while)).map(|one| one.join().unwrap());
        stop.store(true, Relaxed);
        assert_eq!(failed, [0; 2], "a child failed, or hung");
    });
}
