//! If a program misuses a pointer, it ends with one line that says what was wrong.
//!
//! Each case runs in a forked child, whose standard error comes back through a pipe.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use hectare::{Heap, Seat};
use hectare_check::Subject;
use support::aborting::{aborts, assert_line};
use support::{Front, Source};

/// Small, run and huge objects.
const SIZES: [usize; 5] = [16, 1000, 32 << 10, 100_000, 40 << 20];

fn object(front: &mut Front<'_, Source>, bytes: usize) -> NonNull<u8> {
    NonNull::new(front.malloc(bytes)).expect("memory")
}

#[test]
fn double_frees() {
    for bytes in SIZES {
        // Others live beside it, so that its slab or run stays.
        let line = aborts(|front| {
            let beside = object(front, bytes);
            let twice = object(front, bytes);
            // SAFETY: none for the second: that is the test.
            unsafe {
                front.free(twice);
                front.free(twice);
                front.free(beside);
            }
        });
        let cause = match bytes {
            ..=0x8000 => "double free",
            0x8001..0x200_0000 => "nothing is allocated there: a double free",
            _ => "double free",
        };
        assert_line(&line, "free", cause);
    }
}

/// A run that its thread keeps. The test writes to it, since nothing that the heap knows of the run
/// lies in it.
fn kept_run(front: &mut Front<'_, Source>) -> NonNull<u8> {
    let run = loop {
        let run = object(front, 100_000);
        // SAFETY: live until now.
        unsafe { front.free(run) };
        if front.cached_run_bytes() > 0 {
            break run;
        }
    };
    // SAFETY: none: the memory is still there, but no longer this program's.
    unsafe { run.write_bytes(0x5a, 100_000) };
    run
}

#[test]
fn a_double_free_of_a_run_that_the_thread_keeps() {
    let line = aborts(|front| {
        let kept = kept_run(front);
        // SAFETY: none: that is the test.
        unsafe { front.free(kept) };
    });
    assert_line(&line, "free", "double free or use after free: the object is free already");
    let line = aborts(|front| {
        let kept = kept_run(front);
        // SAFETY: none: that is the test.
        unsafe { Front::new(front.heap).free(kept) };
    });
    assert_line(&line, "free", "double free or use after free: the object is free already");
    let line = aborts(|front| {
        let kept = kept_run(front);
        // SAFETY: none: that is the test.
        unsafe { front.free(kept.add(8192)) };
    });
    assert_line(&line, "free", "nothing is allocated there");
}

#[test]
fn a_double_free_with_others_between() {
    for others in [1, 100, 5000] {
        let line = aborts(|front| {
            let objects: Vec<_> = (0..others + 2).map(|_| object(front, 64)).collect();
            // SAFETY: none for the last: that is the test.
            unsafe {
                front.free(objects[0]);
                objects[1..=others].iter().for_each(|&other| front.free(other));
                front.free(objects[0]);
            }
        });
        assert_line(&line, "free", "double free");
    }
}

#[test]
fn a_double_free_by_another_thread() {
    let line = aborts(|front| {
        let (beside, twice) = (object(front, 64), object(front, 64));
        let mut other = Front::new(front.heap);
        // SAFETY: none for the second: that is the test.
        unsafe {
            other.free(twice);
            front.free(twice);
            front.free(beside);
        }
    });
    assert_line(&line, "free", "double free");
}

#[test]
fn foreign_pointers() {
    for bytes in SIZES {
        let line = aborts(|front| {
            object(front, bytes);
            let foreign = Box::leak(Box::new([0u128; 4]));
            // SAFETY: none: that is the test.
            unsafe { front.free(NonNull::from(foreign).cast()) };
        });
        assert_line(&line, "free", "foreign pointer");
    }
}

#[test]
fn misaligned_pointers() {
    for bytes in SIZES {
        for by in [1, 8, 15] {
            let line = aborts(|front| {
                let object = object(front, bytes);
                // SAFETY: within the object; none for the free: that is the test.
                unsafe { front.free(object.add(by)) };
            });
            assert_line(&line, "free", "misaligned pointer");
        }
    }
}

#[test]
fn interior_pointers() {
    // Objects of 16 bytes have no aligned address inside.
    for bytes in &SIZES[1..] {
        for at in [16, bytes / 2 / 16 * 16, bytes / 16 * 16 - 16] {
            let line = aborts(|front| {
                let object = object(front, *bytes);
                // SAFETY: within the object; none for the free: that is the test.
                unsafe { front.free(object.add(at)) };
            });
            assert_line(&line, "free", "interior pointer");
        }
    }
}

#[test]
fn realloc_of_a_freed_object() {
    for bytes in [16, 1000, 100_000] {
        let line = aborts(|front| {
            let (beside, freed) = (object(front, bytes), object(front, bytes));
            // SAFETY: none for the realloc: that is the test.
            unsafe {
                front.free(freed);
                front.realloc(freed, 2 * bytes);
                front.free(beside);
            }
        });
        assert_line(&line, "realloc", "double free");
    }
}

#[test]
fn a_freed_object_that_was_written_to() {
    let line = aborts(|front| {
        let (beside, freed) = (object(front, 64), object(front, 64));
        // SAFETY: none for the write: that is the test.
        unsafe {
            front.free(freed);
            freed.write_bytes(0x5a, 64);
            object(front, 64);
            front.free(beside);
        }
    });
    assert_line(&line, "malloc", "corrupted free list");
}

/// Frees `count` objects of `bytes`, lets `misuse` write to one amid them, and makes the list go to
/// its slabs: two objects go one by one, twenty by words of their slab's bits.
fn returned_list(
    bytes: usize,
    count: usize,
    misuse: impl Fn(NonNull<usize>, [NonNull<u8>; 3]),
) -> String {
    aborts(|front| {
        let heap = front.heap;
        let mut ended = Front::new(heap);
        let live = [bytes, bytes, 2 * bytes].map(|bytes| object(front, bytes));
        let freed: Vec<_> = (0..count).map(|_| object(&mut ended, bytes)).collect();
        // SAFETY: all are live.
        freed.iter().for_each(|&object| unsafe { ended.free(object) });
        misuse(freed[count / 2].cast(), live);
        drop(ended);
        heap.trim(0);
    })
}

/// Each object would be free as soon as the list is in its slabs.
#[test]
fn a_link_to_a_live_object() {
    for (bytes, count) in [(16, 2), (64, 2), (1000, 2), (4096, 2), (16, 20), (64, 20)] {
        for which in 0..3 {
            // SAFETY: none for the write: that is the test.
            let line = returned_list(bytes, count, |link, live| unsafe {
                link.write(live[which].addr().get());
            });
            println!("{line}");
            assert_line(&line, "free", "corrupted free list");
        }
    }
}

/// The object would go into a slab of another class, under the lock of its own class.
#[test]
fn a_link_to_a_free_object_of_another_class() {
    let line = aborts(|front| {
        let heap = front.heap;
        let mut ended = Front::new(heap);
        // Of twice the size, so that each object begins where one of this class might.
        let other = object(front, 128);
        let freed = object(&mut ended, 64);
        // SAFETY: none for the write: that is the test.
        unsafe {
            front.free(other);
            ended.free(freed);
            freed.cast::<usize>().write(other.addr().get());
        }
        drop(ended);
        heap.trim(0);
    });
    println!("{line}");
    assert_line(&line, "free", "corrupted free list");
}

/// The object still bears its mark, and lies in a slab of the class.
#[test]
fn a_link_to_an_object_that_is_in_its_slab() {
    for count in [2, 20] {
        let line = aborts(|front| {
            let heap = front.heap;
            let mut ended = [Front::new(heap), Front::new(heap)];
            // So that the slab, and with it the page, stays.
            object(front, 64);
            let freed = ended.each_mut().map(|ended| {
                let take = |_| object(ended, 64);
                (0..count).map(take).collect::<Vec<_>>()
            });
            for (at, mut ended) in ended.into_iter().enumerate() {
                // SAFETY: all are live.
                freed[at].iter().for_each(|&object| unsafe { ended.free(object) });
                if at == 1 {
                    let link = freed[at][count / 2].cast::<usize>();
                    // SAFETY: none for the write: that is the test.
                    unsafe { link.write(freed[0][0].addr().get()) };
                }
                drop(ended);
                heap.trim(0);
            }
        });
        println!("{line}");
        assert_line(&line, "free", "double free");
    }
}

#[test]
fn a_returned_object_that_lost_its_mark() {
    for (bytes, count) in [(16, 2), (64, 2), (1000, 2), (4096, 2), (16, 20), (64, 20)] {
        // SAFETY: none for the write: that is the test.
        let line = returned_list(bytes, count, |words, _| unsafe { words.add(1).write(0) });
        println!("{line}");
        assert_line(&line, "free", "corrupted free list");
    }
}

/// The heap of a child whose handler forks.
static FORKED: AtomicPtr<Heap<Source>> = AtomicPtr::new(std::ptr::null_mut());

/// Does to the heap what a fork does. (Crash handlers start a debugger.)
extern "C" fn fork_at_the_end(_signal: libc::c_int) {
    // SAFETY: the child's heap, which lives as long as the child.
    let heap = unsafe { FORKED.load(Relaxed).as_ref() }.expect("a heap");
    heap.before_fork();
    // SAFETY: this thread called `before_fork`.
    unsafe { heap.after_fork() };
}

#[test]
fn a_handler_may_fork_though_a_look_found_the_misuse() {
    let line = aborts(|front| {
        let heap = front.heap;
        FORKED.store((&raw const *heap).cast_mut(), Relaxed);
        // SAFETY: a handler of the right type. If the heap waits for itself, the alarm ends this
        // process.
        unsafe {
            libc::signal(libc::SIGABRT, fork_at_the_end as *const () as libc::sighandler_t);
            libc::alarm(10);
        }
        let mut ended = Front::new(heap);
        let (freed, twice) = (object(&mut ended, 64), object(&mut ended, 64));
        // SAFETY: none for the write and the second free: that is the test.
        unsafe {
            heap.free_slow(Seat::NONE, freed.as_ptr());
            ended.free(twice);
            twice.write_bytes(0, 64);
            ended.free(twice);
        }
        drop(ended);
        heap.tend();
    });
    assert_line(&line, "free", "double free");
}

#[test]
fn a_sound_program_ends_in_peace() {
    let failed = std::panic::catch_unwind(|| {
        aborts(|front| {
            let object = object(front, 64);
            // SAFETY: live until now.
            unsafe { front.free(object) };
        })
    });
    assert!(failed.is_err(), "the canary: this harness must see that nothing was aborted");
}
