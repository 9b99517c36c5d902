//! A shadow of what is allocated, driven beside the heap by random operations with swarm weights.

extern crate std;

use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec::Vec;

use crate::*;

mod allocator;
mod cases;
mod corruption;
mod growth;

/// The environment variable that sets how long the soak tests run.
const SOAK_OPS: &str = "HECTARE_SOAK_OPS";

/// The most checks of the whole heap in a run.
const MOST_CHECKS: u64 = 20_000;

pub(crate) fn soak_ops(default: u64) -> u64 {
    std::env::var(SOAK_OPS).ok().map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{SOAK_OPS}={value} is no number"))
    })
}

/// xorshift64*.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    /// A random size up to `2^max_log2`, small ones more often than large ones.
    pub(crate) fn size(&mut self, max_log2: usize) -> usize {
        let log2 = self.below(max_log2 + 1);
        self.below(1 << log2)
    }
}

/// Memory for pools, aligned to 16 bytes.
pub(crate) struct Arena(Vec<u128>);

impl Arena {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(std::vec![0; bytes.div_ceil(16)])
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr().cast()).expect("a vector's buffer")
    }
}

/// How much memory the pools of one run may lie in: several times what they take, and within reach
/// of every index width but the narrowest at its finest granule.
const RESERVATION_BYTES: usize = 8 << 20;

/// Memory in which pools are placed at random. It is aligned to its size, so that the seed alone
/// determines a run, not where the system put the memory.
struct Reservation {
    start: NonNull<u8>,
    layout: Layout,
}

impl Reservation {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, bytes).expect("a power of two");
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Self { start: NonNull::new(start).expect("memory for a test"), layout }
    }

    /// Three places for pools of `pool_bytes`, in any order, at any multiple of 16 bytes. Every
    /// other time they touch.
    fn places(&mut self, random: &mut Random, pool_bytes: usize) -> [NonNull<u8>; 3] {
        let touching = random.below(2) == 0;
        let gaps = [(); 3].map(|()| if touching { 0 } else { 16 * random.below(1 << 13) });
        let mut end = 16 * random.below(1 << 13);
        let mut places = gaps.map(|gap| {
            let start = end + gap;
            end = start + pool_bytes;
            start
        });
        assert!(end <= self.layout.size(), "places for three pools of {pool_bytes} bytes");
        let turn = random.below(3);
        places.rotate_left(turn);
        if random.below(2) == 0 {
            places.reverse();
        }
        places.map(|offset| unsafe { self.start.add(offset) })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: usize,
    align: usize,
    fill: u8,
}

/// What the heap should have allocated: payload address → size, alignment and contents.
#[derive(Default)]
struct Shadow {
    live: BTreeMap<usize, Live>,
    next_fill: u8,
}

impl Shadow {
    fn insert(&mut self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        let address = ptr.addr().get();
        assert_eq!(address % align, 0, "alignment of {align} for {bytes} bytes");
        if let Some((&before, live)) = self.live.range(..=address).next_back() {
            assert!(before + live.bytes.max(1) <= address, "overlap with the block before");
        }
        if let Some((&after, _)) = self.live.range(address..).next() {
            assert!(address + bytes.max(1) <= after, "overlap with the block after");
        }
        self.next_fill = self.next_fill.wrapping_add(1);
        let fill = self.next_fill;
        unsafe { ptr.as_ptr().write_bytes(fill, bytes) };
        self.live.insert(address, Live { bytes, align, fill });
    }

    fn remove(&mut self, ptr: NonNull<u8>) -> Live {
        self.live.remove(&ptr.addr().get()).expect("the shadow knows every block")
    }

    fn check(ptr: NonNull<u8>, bytes: usize, fill: u8) {
        let contents = unsafe { core::slice::from_raw_parts(ptr.as_ptr(), bytes) };
        // No early exit at the first difference, so that many bytes are compared at a time.
        let difference = contents.iter().fold(0, |bits, &byte| bits | (byte ^ fill));
        assert_eq!(difference, 0, "contents of a block changed");
    }

    fn pick(&self, random: &mut Random) -> Option<(NonNull<u8>, Live)> {
        let (&low, _) = self.live.first_key_value()?;
        let (&high, _) = self.live.last_key_value()?;
        let from = low + random.below(high - low + 1);
        let (&address, &live) = self.live.range(from..).next()?;
        let ptr = core::ptr::with_exposed_provenance_mut(address);
        Some((NonNull::new(ptr).expect("an address of a block"), live))
    }
}

/// How the random operations of one run are mixed: a random subset of all, with random weights.
struct Weights([usize; 5]);

impl Weights {
    fn swarm(random: &mut Random) -> Self {
        let mut weights = [0; 5];
        for weight in &mut weights {
            *weight = if random.below(4) == 0 { 0 } else { 1 + random.below(8) };
        }
        weights[0] += 1;
        Self(weights)
    }

    fn pick(&self, random: &mut Random) -> usize {
        let mut left = random.below(self.0.iter().sum());
        self.0
            .iter()
            .position(|&weight| {
                let here = left < weight;
                left = left.saturating_sub(weight);
                here
            })
            .expect("the weights sum up")
    }
}

/// Runs `ops` random operations on a heap with parameters `S` and `FIRST` over up to three pools
/// of `pool_bytes`, and compares it with the shadow after each.
fn soak<S: Shape, const FIRST: usize>(seed: u64, ops: u64, pool_bytes: usize)
where
    [S; FIRST]: Rows<Row = S>,
{
    let mut random = Random::new(seed);
    let mut heap = Tlsf::<[S; FIRST]>::new();
    let mut memory = Reservation::new(RESERVATION_BYTES);
    let mut arenas = memory.places(&mut random, pool_bytes).map(|start| (start, None::<Pool>));
    let mut shadow = Shadow::default();
    let granule = 1usize << S::GRANULE_LOG2;
    let max_log2 = pool_bytes.ilog2() as usize;
    let mut weights = Weights::swarm(&mut random);
    // Checking takes time proportional to the number of blocks. So small pools are checked at every
    // step, and long runs `MOST_CHECKS` times.
    let period = (pool_bytes as u64 / 16384).max(ops / MOST_CHECKS).max(1);
    for op in 0..ops {
        if op % 1024 == 0 {
            weights = Weights::swarm(&mut random);
        }
        let context = || -> String { format!("seed {seed} op {op}") };
        let used_before = heap.stats().used_bytes;
        match weights.pick(&mut random) {
            0 => {
                let bytes = random.size(max_log2);
                let largest = heap.stats().largest_allocatable_bytes;
                match heap.malloc(bytes) {
                    Some(ptr) => {
                        let usable = unsafe { heap.usable_size(ptr) };
                        assert!(usable.is_ok_and(|usable| usable >= bytes), "{}", context());
                        let of_any = unsafe { Tlsf::<[S; FIRST]>::usable_size_of(ptr) };
                        assert_eq!(usable, Ok(of_any), "{}", context());
                        shadow.insert(ptr, bytes, granule);
                    }
                    None => {
                        assert!(bytes > largest || largest == 0, "{}: {bytes} refused", context());
                        assert_eq!(heap.stats().used_bytes, used_before);
                    }
                }
            }
            1 => {
                if let Some((ptr, live)) = shadow.pick(&mut random) {
                    Shadow::check(ptr, live.bytes, live.fill);
                    shadow.remove(ptr);
                    assert_eq!(unsafe { heap.free(ptr) }, Ok(()), "{}", context());
                    assert!(unsafe { heap.free(ptr) }.is_err(), "{}: double free", context());
                }
            }
            2 => {
                let (bytes, align) = (random.size(max_log2 - 2), 1 << random.below(10));
                match heap.memalign(align, bytes) {
                    Some(ptr) => shadow.insert(ptr, bytes, align.max(granule)),
                    None => assert_eq!(heap.stats().used_bytes, used_before),
                }
            }
            3 => {
                if let Some((ptr, live)) = shadow.pick(&mut random) {
                    let bytes = random.size(max_log2);
                    match unsafe { heap.realloc(ptr, live.align, bytes) } {
                        Ok(Some(new)) => {
                            Shadow::check(new, bytes.min(live.bytes), live.fill);
                            shadow.remove(ptr);
                            shadow.insert(new, bytes, live.align);
                        }
                        Ok(None) => {
                            assert_eq!(heap.stats().used_bytes, used_before);
                            Shadow::check(ptr, live.bytes, live.fill);
                        }
                        Err(misuse) => panic!("{}: {misuse}", context()),
                    }
                }
            }
            _ => {
                let which = random.below(3);
                let (start, pool) = &mut arenas[which];
                match *pool {
                    None => {
                        let (head, tail) = (random.below(40), random.below(64));
                        let bytes = pool_bytes - head - tail;
                        match unsafe { heap.add_pool(start.add(head), bytes) } {
                            Ok(added) => {
                                let at = unsafe { Tlsf::<[S; FIRST]>::pool_at(start.add(head)) };
                                assert_eq!(at, added, "{}", context());
                                *pool = Some(added);
                            }
                            Err(error) => assert_eq!(error, PoolError::OutOfReach),
                        }
                    }
                    Some(added) => {
                        let low = start.addr().get();
                        let in_use = shadow.live.range(low..low + pool_bytes).next().is_some();
                        match unsafe { heap.remove_pool(added) } {
                            Ok(()) => *pool = None,
                            Err(error) => assert_eq!(error, PoolError::InUse),
                        }
                        assert_eq!(pool.is_some(), in_use, "{}", context());
                    }
                }
            }
        }
        if op % period == 0 {
            if let Err(corruption) = heap.validate() {
                panic!("{}: {corruption}", context());
            }
            let used_blocks: usize = heap
                .pools()
                .map(|pool| unsafe { heap.blocks(pool) }.filter(|block| block.used).count())
                .sum();
            assert_eq!(used_blocks, shadow.live.len(), "{}", context());
        }
    }
}

/// One test for each set of parameters.
macro_rules! soaks {
    ($($name:ident: $word:ty, $second:literal, $granule:literal, $first:literal, $bytes:literal;)*) => {$(
        #[test]
        fn $name() {
            let ops = soak_ops(20_000);
            for seed in 1..=3 {
                soak::<Row<$word, $second, $granule>, $first>(seed, ops, $bytes);
            }
        }
    )*};
}

soaks! {
    soak_32_bit_granule_16: u32, 32, 16, 26, 16384;
    soak_32_bit_granule_16_large: u32, 32, 16, 26, 1048576;
    soak_32_bit_granule_4: u32, 16, 4, 20, 8192;
    soak_32_bit_granule_8_two_lists: u32, 2, 8, 20, 8192;
    soak_32_bit_granule_64: u32, 4, 64, 20, 32768;
    soak_32_bit_no_larger_than_its_pools: u32, 2, 16, 10, 16384;
    soak_wide_granule_16: usize, 32, 16, 32, 16384;
    soak_wide_granule_8_many_lists: usize, 64, 8, 32, 16384;
    soak_tiny_granule_16: u16, 4, 16, 13, 16384;
    soak_tiny_granule_4: u16, 8, 4, 12, 8192;
    soak_tiny_granule_2: u16, 16, 2, 11, 4096;
}

/// A run that once wrote past a block's end: `realloc` to a size that the block reaches, although
/// it does not reach the size's class.
#[test]
fn soak_that_found_the_overlong_copy() {
    soak::<Row<u32, 2, 8>, 20>(300, 4_000, 8192);
}
