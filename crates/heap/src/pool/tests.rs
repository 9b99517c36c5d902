//! Which CPUs are asked for a CPU whose pool is empty.

extern crate std;

use super::*;
use crate::object::FreeObject;
use hectare_base::sync::SpinPark;
use std::alloc::{Layout, alloc_zeroed};
use std::boxed::Box;
use std::collections::BTreeSet;
use std::vec::Vec;

const BYTES: usize = 64;

fn memory(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: of a size that is not 0. It is never given back, as a heap's own.
    NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 128).ok()?) })
}

/// Pools of `cpus` CPUs. Each that is `full` has one batch, of one object more than its number.
fn pools(cpus: usize, full: impl Fn(usize) -> bool) -> Box<Pools<SpinPark>> {
    let pools = Box::new(Pools::new());
    let class = ClassId::for_bytes(BYTES);
    // SAFETY: the test's own memory, which the pools never read or write: no batch here goes to a stock.
    let head = unsafe { FreeObject::new(memory(BYTES).expect("memory")) };
    for cpu in 0..cpus {
        let batch = Batch { head, count: cpu + 1 };
        assert!(pools.put(cpu, class, batch, memory).is_none());
        if !full(cpu) {
            // Another CPU asks, so the pool's own CPU has no need of the batch.
            assert!(pools.pool(cpu).expect("a pool").slots[class.index()].lock().lend().is_some());
        }
    }
    pools
}

/// The CPUs whose batches come to `cpu` in this many asks.
fn lenders(pools: &Pools<SpinPark>, cpu: usize, asks: usize) -> Vec<Option<usize>> {
    let ask = |_| pools.take(cpu, ClassId::for_bytes(BYTES)).map(|batch| batch.count - 1);
    (0..asks).map(ask).collect()
}

#[test]
fn few_are_asked_at_a_time_and_all_in_turn() {
    for holder in [0, 7, 8, 50, 127] {
        let pools = pools(CPUS, |cpu| cpu == holder);
        let lenders = lenders(&pools, 20, CPUS / ASKED);
        // The batch is found when its pool's turn comes, with the pools beside it, and not before.
        let expected = (0..CPUS / ASKED).map(|turn| (turn == holder / ASKED).then_some(holder));
        assert_eq!(lenders, expected.collect::<Vec<_>>());
    }
}

#[test]
fn all_that_others_have_comes() {
    for cpus in [2, 3, 9, 64] {
        let pools = pools(cpus, |cpu| cpu != 1);
        let came: BTreeSet<_> = lenders(&pools, 1, 2 * cpus).into_iter().flatten().collect();
        assert_eq!(came, (0..cpus).filter(|&cpu| cpu != 1).collect());
    }
}

#[test]
fn who_has_lent_is_asked_first() {
    let pools = pools(CPUS, |_| false);
    let class = ClassId::for_bytes(BYTES);
    // SAFETY: as in `pools`.
    let head = unsafe { FreeObject::new(memory(BYTES).expect("memory")) };
    let flow = |_| {
        // The pool may be full until it is found.
        let _ = pools.put(100, class, Batch { head, count: 1 }, memory);
        pools.take(3, class).is_some()
    };
    let came: Vec<_> = (0..CPUS).map(flow).collect();
    let found = came.iter().position(|&came| came).expect("it is found");
    assert!(found < CPUS / ASKED, "{found}");
    assert!(came[found..].iter().all(|&came| came));
}
