//! While one thread opens a block of a huge page, looks at memory in use, or has memory come, other
//! threads get what they need.

mod support;

use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hectare::Heap;
use hectare_check::{Subject, Suite};
use hectare_pages::{Os, PageSource, System};
use support::system::{Moment, pretend_cpu};
use support::{Front, Strict, new_heap, strict};

const BLOCK_BYTES: usize = 2 << 20;

/// Takes objects of `bytes` bytes, `total` bytes in all, and frees them.
fn take_and_free<S: System>(heap: &Heap<S>, bytes: usize, total: usize) {
    let mut front = Front::new(heap);
    let take = |_| NonNull::new(front.malloc(bytes)).expect("memory");
    let objects: Vec<_> = (0..total / bytes).map(take).collect();
    for object in objects {
        // SAFETY: each was taken above, and is given up here.
        unsafe { front.free(object) };
    }
}

fn a_slab_is_had_while_a_block_is_opened() {
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    let heap = new_heap(256 << 20);
    strict(&heap).meet(Moment::HugePages, come, is_done);
    thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            has_come.recv().expect("8 MiB of one class are worth a block");
            // Objects of a class that has no slab: more than the first slab holds, and too little
            // for a block.
            take_and_free(heap, 5000, 128 << 10);
            done.send(()).expect("the first thread waits");
        });
        take_and_free(heap, 1000, 8 << 20);
    });
    heap.validate();
}

/// A thread that wants a block while another opens one waits for it, and takes its slabs from it.
fn a_block_that_another_thread_opens_serves() {
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    let heap = new_heap(256 << 20);
    strict(&heap).meet(Moment::HugePages, come, is_done);
    thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut front = Front::new(heap);
            while heap.stats().dirty_bytes < BLOCK_BYTES / 2 {
                assert!(!front.malloc(1000).is_null());
            }
        });
        has_come.recv().expect("8 MiB of one class are worth a block");
        let other = scope.spawn(move || {
            let mut front = Front::new(heap);
            (0..300).for_each(|_| assert!(!front.malloc(1000).is_null()));
        });
        // If the other thread has not come so far yet, the test shows nothing, but does not fail.
        thread::sleep(Duration::from_millis(200));
        assert!(!other.is_finished(), "it had no need of a block");
        done.send(()).expect("the first thread waits");
    });
    let dirty_bytes = heap.stats().dirty_bytes;
    assert!(dirty_bytes < BLOCK_BYTES, "{dirty_bytes} bytes: there is a second");
    heap.validate();
}

/// In a heap of some size, threads on two CPUs open blocks side by side.
fn two_cpus_open_blocks_at_once() {
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    let heap = new_heap(512 << 20);
    let mut front = Front::new(&heap);
    let take = |_| NonNull::new(front.malloc(1000)).expect("memory");
    let objects: Vec<_> = (0..40_000).map(take).collect();
    strict(&heap).meet(Moment::Opening, come, is_done);
    thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            pretend_cpu(Some(0));
            take_and_free(heap, 1000, 8 << 20);
        });
        has_come.recv().expect("8 MiB of one class are worth a block");
        pretend_cpu(Some(1));
        take_and_free(heap, 1000, 8 << 20);
        done.send(()).expect("the first thread waits");
    });
    pretend_cpu(None);
    for object in objects {
        // SAFETY: each was taken above, and is given up here.
        unsafe { front.free(object) };
    }
    heap.validate();
}

/// If no more memory is to be had, the block that another thread is opening is the last one.
fn a_block_that_another_thread_opens_is_not_missed() {
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    let heap = new_heap(256 << 20);
    strict(&heap).meet(Moment::Opening, come, is_done);
    let refuses = AtomicBool::new(false);
    thread::scope(|scope| {
        let heap = &heap;
        let refuses = &refuses;
        scope.spawn(move || {
            let mut front = Front::new(heap);
            // The block is for the other thread.
            while !refuses.load(Relaxed) {
                assert!(!front.malloc(1000).is_null());
            }
        });
        has_come.recv().expect("some MiB of one class are worth a block");
        heap.source().refuse(0..u64::MAX);
        refuses.store(true, Relaxed);
        // Objects of a class that has no slab, for which memory would have to come.
        let other = scope.spawn(move || !Front::new(heap).malloc(5000).is_null());
        thread::sleep(Duration::from_millis(200));
        done.send(()).expect("the first thread waits");
        assert!(other.join().expect("no panic"), "no memory, though a block was on its way");
    });
    heap.validate();
}

/// A program can have a thread serve the page faults of its objects, and that thread may allocate.
/// So the heap looks at memory in use without a lock.
fn a_run_is_had_while_another_is_probed() {
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    // Not over the usual source, which lets nobody look.
    let heap = Box::new(Heap::new(Strict::new(), 256 << 20));
    heap.source().meet(Moment::Probe, come, is_done);
    thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let has_come = has_come.recv_timeout(Duration::from_secs(20));
            has_come.expect("of thirty runs in use some are probed");
            take_and_free(heap, 100_000, 1 << 20);
            done.send(()).expect("the first thread waits");
        });
        take_and_free(heap, 100_000, 3 << 20);
    });
    heap.validate();
}

/// With an object's memory, that of the next pages comes, too. Those are idle, so another thread
/// may give them back before it comes. They must not hold memory in the end and yet count as gone.
fn what_comes_does_not_count_as_gone() {
    const PAGE: usize = 4096;
    const SLAB_BYTES: usize = 64 << 10;
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    // Not over the usual source, which populates nothing.
    let heap = Box::new(Heap::new(Strict::new(), 256 << 20));
    let heap = &*heap;
    let free = |objects: Vec<NonNull<u8>>| {
        let mut front = Front::new(heap);
        // SAFETY: objects of this heap, which nobody uses any more.
        objects.into_iter().for_each(|object| unsafe { front.free(object) });
    };
    let mut front = Front::new(heap);
    // Ten full slabs: memory then comes for ten pages at once.
    let objects = (0..640).map(|_| NonNull::new(front.malloc(1024)).expect("memory"));
    let mut objects: Vec<_> = objects.collect();
    drop(front);
    objects.sort_unstable();
    let slab = objects[0].addr().get() / SLAB_BYTES * SLAB_BYTES;
    // In the first slab, the objects behind its first quarter go back.
    free(objects.drain(16..64).collect());
    heap.trim(0);
    heap.source().meet(Moment::Populate, come, is_done);
    let last = thread::scope(|scope| {
        let other = scope.spawn(move || Front::new(heap).malloc(1024).addr());
        let has_come = has_come.recv_timeout(Duration::from_secs(20));
        has_come.expect("memory comes for several pages");
        free(objects.drain(..16).collect());
        heap.trim(0);
        done.send(()).expect("the other thread waits");
        other.join().expect("an object")
    });
    assert_eq!(last / SLAB_BYTES * SLAB_BYTES, slab, "one of the other slabs has room");
    heap.trim(0);
    let is_there = |at: &usize| {
        let page = std::ptr::with_exposed_provenance_mut(slab + at * PAGE);
        Os.is_resident(NonNull::new(page).expect("a slab's page")) == Some(true)
    };
    let there: Vec<_> = (0..SLAB_BYTES / PAGE).filter(is_there).collect();
    assert_eq!(there, [(last - slab) / PAGE], "pages of a slab with one object");
    heap.validate();
}

fn main() -> ExitCode {
    let mut suite = Suite::new();
    let tests: [(&str, fn()); 6] = [
        ("a_run_is_had_while_another_is_probed", a_run_is_had_while_another_is_probed),
        ("a_slab_is_had_while_a_block_is_opened", a_slab_is_had_while_a_block_is_opened),
        ("a_block_that_another_thread_opens_serves", a_block_that_another_thread_opens_serves),
        (
            "a_block_that_another_thread_opens_is_not_missed",
            a_block_that_another_thread_opens_is_not_missed,
        ),
        ("two_cpus_open_blocks_at_once", two_cpus_open_blocks_at_once),
        ("what_comes_does_not_count_as_gone", what_comes_does_not_count_as_gone),
    ];
    for (name, test) in tests {
        if Os.page_bytes() > 4096 {
            suite.skip(name, "slabs come from blocks where pages are of 4 KiB");
        } else {
            suite.check(name, test);
        }
    }
    suite.run()
}
