//! The pools under loom: all that two or three threads can do at once with two CPUs, one class, and
//! pools of one to two batches. In each of these runs every batch must be in one place at the end,
//! and none in two.
//!
//! ```sh
//! RUSTFLAGS='--cfg loom' cargo test --release -p hectare --test models --target-dir target/loom
//! ```
//! All else that threads share is either a value under a lock (modelled in `hectare-base`), or the
//! CPUs' lists, whose sequences no model knows (`tests/fronts.rs`).

#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of each file")]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

/// One size class, in place of 64.
mod class {
    pub(crate) const STATES: usize = 1;
    pub(crate) const BATCH_OBJECTS: usize = 1;
    pub(crate) const BATCH_BYTES: usize = 16;
    pub(crate) const LONG_BATCH_BYTES: usize = 16;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct ClassId;

    impl ClassId {
        pub(crate) fn index(self) -> usize {
            0
        }

        pub(crate) fn object_bytes(self) -> usize {
            16
        }

        pub(crate) fn batch(self) -> usize {
            BATCH_OBJECTS
        }

        pub(crate) fn batch_bytes(self) -> usize {
            BATCH_BYTES
        }

        pub(crate) fn notes_members(self) -> bool {
            true
        }
    }
}

/// The report of a list that leads elsewhere, which no list does here.
mod misuse {
    use std::ptr::NonNull;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Misuse {
        FreeListCorrupted,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Misused {
        pub(crate) what: Misuse,
        pub(crate) object: *mut u8,
    }

    impl Misuse {
        pub(crate) fn at(self, object: NonNull<u8>) -> Misused {
            Misused { what: self, object: object.as_ptr() }
        }
    }
}

#[path = "../src/batch.rs"]
mod batch;
#[path = "../src/object.rs"]
mod object;
#[path = "../src/pool.rs"]
mod pool;
#[path = "../src/slots.rs"]
mod slots;

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use batch::Batch;
use class::ClassId;
use hectare_base::sync::SpinPark;
use loom::sync::Arc;
use loom::thread;
use object::FreeObject;
use pool::Pools;
use slots::Slots;

type Shared = Arc<Pools<SpinPark>>;

/// Batch number `n`: one object. The pools look only at its address, since the batch has no others.
fn batch(n: usize) -> Batch {
    let address = NonNull::without_provenance(std::num::NonZero::new(n * 16).expect("not 0"));
    // SAFETY: never read or written: the pools do not look into objects.
    Batch { head: unsafe { FreeObject::new(address) }, count: 1 }
}

fn number(batch: Batch) -> usize {
    batch.head.as_ptr().addr().get() / 16
}

fn memory(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: of a size that is not 0. It is never given back, as a heap's own.
    NonNull::new(unsafe { std::alloc::alloc(Layout::from_size_align(bytes, 128).ok()?) })
}

fn put(pools: &Shared, cpu: usize, n: usize) -> Option<usize> {
    pools.put(cpu, ClassId, batch(n), memory).map(number)
}

fn take(pools: &Shared, cpu: usize) -> Option<usize> {
    pools.take(cpu, ClassId).map(number)
}

fn drain(pools: &Shared, by: fn(&mut Slots, ClassId) -> Option<Batch>) -> Vec<usize> {
    let mut drained = Vec::new();
    pools.drain(ClassId, by, |batches| {
        drained.extend(batches.iter().copied().map(number));
        false
    });
    drained
}

/// Panics unless `seen` and what the pools hold are the batches 1 to `count`, each once.
fn check(pools: &Shared, mut seen: Vec<usize>, count: usize) {
    let held = pools.objects(ClassId);
    let drained = drain(pools, |slots, _| slots.drain());
    assert_eq!(pools.stocked_bytes(), 0, "what empty stocks hold");
    assert_eq!(held, drained.len(), "the count of what the pools hold");
    seen.extend(drained);
    seen.sort_unstable();
    assert_eq!(seen, (1..=count).collect::<Vec<_>>(), "each batch is in one place");
}

/// Runs the threads' work, and hands what each has in the end to [`check`], with the batches that
/// were put before.
fn model(count: usize, work: fn(&Shared, usize) -> Vec<usize>, before: fn(&Shared) -> Vec<usize>) {
    loom::model(move || {
        let pools: Shared = Arc::new(Pools::new());
        let mut seen = before(&pools);
        let other = Arc::clone(&pools);
        let thread = thread::spawn(move || work(&other, 1));
        seen.extend(work(&pools, 0));
        seen.extend(thread.join().expect("no failure"));
        check(&pools, seen, count);
    });
}

#[test]
fn batches_change_hands() {
    let work = |pools: &Shared, cpu: usize| {
        let refused = put(pools, cpu, cpu + 1);
        refused.into_iter().chain(take(pools, cpu)).collect()
    };
    model(2, work, |_| Vec::new());
}

#[test]
fn an_empty_pool_borrows_from_the_other() {
    let work = |pools: &Shared, cpu: usize| take(pools, cpu).into_iter().collect();
    let before = |pools: &Shared| put(pools, 0, 1).into_iter().chain(put(pools, 1, 2)).collect();
    model(2, work, before);
}

#[test]
fn one_way_flow() {
    let work = |pools: &Shared, cpu: usize| {
        if cpu == 0 {
            (1..=3).filter_map(|n| put(pools, 0, n)).collect()
        } else {
            (0..3).filter_map(|_| take(pools, 1)).collect()
        }
    };
    model(3, work, |_| Vec::new());
}

#[test]
fn a_pool_is_made_once() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    loom::model(|| {
        MADE.store(0, Relaxed);
        let counted = |bytes| {
            MADE.fetch_add(1, Relaxed);
            memory(bytes)
        };
        let pools: Shared = Arc::new(Pools::new());
        let other = Arc::clone(&pools);
        let put = move |pools: &Shared, n| pools.put(0, ClassId, batch(n), counted).map(number);
        let thread = thread::spawn(move || put(&other, 1));
        let mut seen: Vec<_> = put(&pools, 2).into_iter().collect();
        seen.extend(thread.join().expect("no failure"));
        assert_eq!(MADE.load(Relaxed), 1, "pools made for one CPU");
        check(&pools, seen, 2);
    });
}

#[test]
fn pools_are_emptied_beside_their_use() {
    let work = |pools: &Shared, cpu: usize| {
        if cpu == 0 {
            drain(pools, |slots, _| slots.drain())
        } else {
            put(pools, 1, 2).into_iter().chain(take(pools, 1)).collect()
        }
    };
    model(2, work, |pools| put(pools, 0, 1).into_iter().collect());
}

/// The batches in a stock are taken by its CPU and by another, and go to the slabs.
#[test]
fn a_stock_is_emptied_beside_its_use() {
    let work = |pools: &Shared, cpu: usize| {
        if cpu == 1 {
            return take(pools, 0).into_iter().chain(take(pools, 1)).collect();
        }
        let mut drained = drain(pools, Slots::drain_stock);
        drained.append(&mut drain(pools, Slots::drain_idle));
        drained
    };
    let before = |pools: &Shared| {
        // Each time that the pool is asked in vain for a batch that it had refused, it keeps more.
        let mut out = vec![1, 2, 3, 4];
        for _ in 0..3 {
            out.retain(|&n| put(pools, 0, n).is_some());
            while let Some(n) = take(pools, 0) {
                out.push(n);
            }
        }
        out.retain(|&n| put(pools, 0, n).is_some());
        assert!(out.is_empty() && pools.stocked_bytes() > 0, "{out:?} found no place");
        out
    };
    model(4, work, before);
}

/// A fork finds every pool at rest: what the child would copy then is whole.
#[test]
fn pools_stand_still_for_a_fork() {
    let work = |pools: &Shared, cpu: usize| {
        if cpu == 1 {
            return put(pools, 1, 2).into_iter().chain(take(pools, 0)).collect();
        }
        pools.before_fork();
        let count = pools.count();
        thread::yield_now();
        assert_eq!(pools.count(), count, "a pool comes into use");
        // SAFETY: this thread has just called it.
        unsafe { pools.after_fork() };
        Vec::new()
    };
    model(2, work, |pools| put(pools, 0, 1).into_iter().collect());
}
