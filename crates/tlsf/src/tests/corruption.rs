//! Pools of which any word may be overwritten: what the library promises about a heap that a
//! program has damaged.
//!
//! Indices of 16 bits lead only into the MiB around the first pool, and sizes of 14 bits at most
//! 256 KiB further. So the memory around the pool belongs to the test as well. Whatever the words
//! say, no call leaves that memory, and each call ends. `validate` does not panic either.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hectare_pages::{Os, PageSource};

use super::*;

/// More than any index and two sizes reach, on both sides of a pool in the middle.
const REACH_BYTES: usize = 8 << 20;
const POOL_BYTES: usize = 16 << 10;

struct Damaged<'a> {
    heap: TinyTlsf,
    memory: &'a Reservation,
    live: Vec<NonNull<u8>>,
}

impl<'a> Damaged<'a> {
    /// A heap with some blocks, free and used.
    fn new(memory: &'a Reservation, random: &mut Random) -> Self {
        let mut heap = TinyTlsf::new();
        let pool = unsafe { memory.start.add(REACH_BYTES / 2) };
        unsafe { heap.add_pool(pool, POOL_BYTES) }.expect("fits");
        let mut live: Vec<_> = (0..100).filter_map(|_| heap.malloc(random.size(9))).collect();
        for _ in 0..live.len() / 2 {
            let block = live.swap_remove(random.below(live.len()));
            assert_eq!(unsafe { heap.free(block) }, Ok(()));
        }
        assert_eq!(heap.validate(), Ok(()));
        Self { heap, memory, live }
    }

    /// The word of the pool with that number.
    fn word(&self, number: usize) -> NonNull<u16> {
        unsafe { self.memory.start.add(REACH_BYTES / 2 + 2 * number) }.cast()
    }

    /// Overwrites a word with a value that is likely to mislead: a changed flag, another word, any
    /// value.
    fn damage(&self, random: &mut Random) {
        let word = self.word(random.below(POOL_BYTES / 2));
        let old = unsafe { word.read() };
        let new = match random.below(4) {
            0 => old ^ 1 << random.below(16),
            1 => unsafe { self.word(random.below(POOL_BYTES / 2)).read() },
            2 => random.below(1 << 14) as u16,
            _ => random.next() as u16,
        };
        unsafe { word.write(new) };
    }

    /// A call of any kind; its result may be anything.
    fn call(&mut self, random: &mut Random) {
        let any = |random: &mut Random| {
            let offset = 16 * random.below(POOL_BYTES / 16) + 16 * random.below(2);
            unsafe { self.memory.start.add(REACH_BYTES / 2 + offset) }
        };
        match random.below(8) {
            0 | 1 => self.live.extend(self.heap.malloc(random.size(12))),
            2 => self.live.extend(self.heap.memalign(1 << random.below(10), random.size(10))),
            3 | 4 if !self.live.is_empty() => {
                let block = self.live.swap_remove(random.below(self.live.len()));
                let _ = unsafe { self.heap.free(block) };
            }
            5 if !self.live.is_empty() => {
                let which = random.below(self.live.len());
                let new = unsafe { self.heap.realloc(self.live[which], 16, random.size(12)) };
                if let Ok(Some(new)) = new {
                    self.live[which] = new;
                }
            }
            6 => {
                let block = any(random);
                let _ = unsafe { self.heap.free(block) };
            }
            _ => {
                let block = any(random);
                let _ = unsafe { self.heap.usable_size(block) };
                let _ = self.heap.stats();
            }
        }
    }
}

#[test]
fn damaged_headers_mislead_no_call_out_of_reach_nor_into_a_loop() {
    // A loop shows as a test that does not end, an access outside the memory as a fault.
    let memory = Reservation::new(REACH_BYTES);
    let rounds = soak_ops(20_000) / 10;
    let (mut calls, mut ended_by_a_check) = (0, 0);
    for seed in 1..=rounds {
        let mut random = Random::new(seed);
        let mut heap = Damaged::new(&memory, &mut random);
        for _ in 0..1 + random.below(8) {
            heap.damage(&mut random);
        }
        for _ in 0..40 {
            // A panic is also a way to end: at an overflowing sum, or at a list past the table.
            let call = AssertUnwindSafe(|| heap.call(&mut random));
            ended_by_a_check += u64::from(catch_unwind(call).is_err());
            calls += 1;
            let _ = heap.heap.validate();
        }
    }
    assert!(ended_by_a_check < calls / 20, "{ended_by_a_check} of {calls}");
}

/// The heap refuses a used block whose header is overwritten, or frees it as the header says.
/// Either way `validate` would have reported it before.
#[test]
fn validate_finds_every_damaged_header_before_it_misleads() {
    let memory = Reservation::new(REACH_BYTES);
    for seed in 1..=soak_ops(20_000) / 40 {
        let mut random = Random::new(seed);
        let mut damaged = Damaged::new(&memory, &mut random);
        let which = random.below(damaged.live.len());
        let header = unsafe { damaged.live[which].cast::<u16>().sub(1) };
        let good = unsafe { header.read() };
        let bad = random.next() as u16;
        unsafe { header.write(bad) };
        assert_eq!(damaged.heap.validate().is_ok(), bad == good, "{good:#x} became {bad:#x}");
        if bad != good {
            unsafe { header.write(good) };
        }
        assert_eq!(damaged.heap.validate(), Ok(()));
        for block in damaged.live {
            assert_eq!(unsafe { damaged.heap.free(block) }, Ok(()));
        }
    }
}

/// A list is made to lead to the last words of a pool, behind which no memory is: a block there
/// would have its links beyond the end. (So they would have with the finest granule alone.)
#[test]
fn validate_reads_nothing_behind_a_pool_that_a_list_leads_to_the_end_of() {
    type Finest = Tlsf<[Row<u32, 4, 4>; 13]>;
    let page_bytes = Os.page_bytes();
    let start = Os.reserve(2 * page_bytes, page_bytes).expect("address space");
    unsafe { Os.commit(start, page_bytes) }.expect("memory");
    let mut heap = Finest::new();
    unsafe { heap.add_pool(start, page_bytes) }.expect("a page has room");
    let mut blocks: Vec<_> = (0..6).filter_map(|_| heap.malloc(28)).collect();
    let rest = heap.malloc(heap.stats().largest_allocatable_bytes).expect("the rest");
    blocks.iter().step_by(2).for_each(|&block| assert_eq!(unsafe { heap.free(block) }, Ok(())));
    assert_eq!(heap.validate(), Ok(()));
    // The last block of the pool is used. Its last word becomes what the header of a free block is.
    let listed = blocks.remove(4).cast::<u32>();
    let last_word = unsafe { start.add(page_bytes - 8) }.cast::<u32>();
    assert!(rest.cast() < last_word);
    unsafe { last_word.write(listed.sub(1).read()) };
    let behind = unsafe { last_word.add(1) }.addr().get();
    let index = (behind - heap.base) >> 2;
    unsafe { listed.write(index as u32) };
    assert_eq!(heap.validate(), Err(Corruption::List(behind)));
    unsafe { Os.release(start, 2 * page_bytes) };
}
