//! The shadow model that every pool is tested against: each live handle with its exact payload.

use std::collections::HashMap;
use std::vec;
use std::vec::Vec;

use crate::{Handle, Pool, PoolError};

/// A small generator (SplitMix64, Steele, Lea & Flood, 2014); a test's seed names its whole run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Object contents that name their object: no two of them are alike for long.
pub(crate) fn payload(tag: u64, size_bytes: usize) -> Vec<u8> {
    let mut random = Random::new(tag);
    let mut bytes = vec![0u8; size_bytes];
    for chunk in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// How sizes are drawn in one stretch of a run (swarm testing, Groce et al., 2012: each stretch
/// has weights of its own, so that rare states are reached).
#[derive(Debug, Clone, Copy)]
struct Swarm {
    alloc_of_100: usize,
    low: usize,
    high: usize,
    compact_of_1000: usize,
    newest_first: bool,
}

impl Swarm {
    fn draw(random: &mut Random, max_bytes: usize) -> Self {
        let (low, high) = match random.below(6) {
            0 => (1, 64),
            1 => (max_bytes / 2, max_bytes),
            2 => (max_bytes - 1, max_bytes),
            3 => {
                let low = 1 + random.below(max_bytes - 65);
                (low, low + 64)
            }
            _ => (1, max_bytes),
        };
        Self {
            alloc_of_100: [20, 45, 50, 55, 80][random.below(5)],
            low,
            high,
            compact_of_1000: [0, 0, 1, 20][random.below(4)],
            newest_first: random.below(4) == 0,
        }
    }
}

/// What should be in the pool.
pub(crate) struct Shadow {
    objects: Vec<(Handle, u64, usize)>,
    names: HashMap<Handle, ()>,
    bounce: Vec<u8>,
    next_tag: u64,
    pub(crate) live_bytes: usize,
    pub(crate) refused: usize,
}

impl Shadow {
    pub(crate) fn new(pool: &impl Pool, first_tag: u64) -> Self {
        Self {
            objects: Vec::new(),
            names: HashMap::new(),
            bounce: vec![0; pool.max_size_bytes()],
            next_tag: first_tag,
            live_bytes: 0,
            refused: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn alloc(&mut self, pool: &impl Pool, size_bytes: usize) -> Result<(), PoolError> {
        let handle = pool.alloc(size_bytes)?;
        assert!(self.names.insert(handle, ()).is_none(), "{handle:?} was handed out twice");
        let tag = self.next_tag;
        self.next_tag += 1;
        // SAFETY: just allocated, and this shadow's alone.
        unsafe {
            assert!(pool.size_bytes(handle) >= size_bytes);
            pool.write(handle, &payload(tag, size_bytes));
        }
        self.objects.push((handle, tag, size_bytes));
        self.live_bytes += size_bytes;
        Ok(())
    }

    pub(crate) fn verify(&mut self, pool: &impl Pool, index: usize) {
        let (handle, tag, size_bytes) = self.objects[index];
        let expected = payload(tag, size_bytes);
        let mut calls = 0;
        // SAFETY: a live object that was written whole.
        unsafe {
            pool.read(handle, &mut self.bounce, &mut |bytes| {
                calls += 1;
                assert!(bytes.len() >= size_bytes);
                assert!(bytes[..size_bytes] == expected[..], "object {tag} of {size_bytes} bytes");
            });
        }
        assert_eq!(calls, 1);
    }

    pub(crate) fn free(&mut self, pool: &impl Pool, index: usize) {
        self.verify(pool, index);
        let (handle, _, size_bytes) = self.objects.swap_remove(index);
        self.names.remove(&handle);
        self.live_bytes -= size_bytes;
        // SAFETY: live until now, and forgotten here.
        unsafe { pool.free(handle) };
    }

    pub(crate) fn verify_all(&mut self, pool: &impl Pool) {
        for index in 0..self.len() {
            self.verify(pool, index);
        }
    }

    pub(crate) fn drain(&mut self, pool: &impl Pool) {
        while self.len() > 0 {
            self.free(pool, self.len() - 1);
        }
    }
}

/// Runs `operations` random operations with at most `live` objects, calling `check` now and then.
pub(crate) fn churn(
    pool: &impl Pool,
    shadow: &mut Shadow,
    seed: u64,
    operations: usize,
    live: usize,
    mut check: impl FnMut(&Shadow),
) {
    let mut random = Random::new(seed);
    let max_bytes = pool.max_size_bytes();
    let mut swarm = Swarm::draw(&mut random, max_bytes);
    for operation in 0..operations {
        if random.below(500) == 0 {
            swarm = Swarm::draw(&mut random, max_bytes);
        }
        if random.below(1000) < swarm.compact_of_1000 {
            pool.compact();
        }
        let wants_alloc = random.below(100) < swarm.alloc_of_100;
        if shadow.len() == 0 || (wants_alloc && shadow.len() < live) {
            let size_bytes = swarm.low + random.below(swarm.high - swarm.low + 1);
            if shadow.alloc(pool, size_bytes.clamp(1, max_bytes)).is_err() {
                shadow.refused += 1;
            }
        } else {
            let last = shadow.len() - 1;
            let index = if swarm.newest_first { last } else { random.below(last + 1) };
            shadow.free(pool, index);
        }
        if operation % 97 == 0 {
            check(shadow);
        }
    }
    shadow.verify_all(pool);
}

/// Operations of a random run: `default`, or what `HECTARE_SOAK_OPS` says.
pub(crate) fn soak_operations(default: usize) -> usize {
    std::env::var("HECTARE_SOAK_OPS").ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Makes every call of the source fail in turn, one at a time and then all from it on; the pool
/// must refuse cleanly, stay sound, and work again once memory is back.
pub(crate) fn survives_failures<'a, L: Pool + 'a>(
    failing: &'a hectare_pages::Failing<hectare_pages::Os>,
    make: impl Fn(&'a hectare_pages::Failing<hectare_pages::Os>) -> Option<L>,
    check: impl Fn(&L),
    calls: u64,
) {
    let mut refusals = 0;
    for call in 0..calls {
        for until_end in [false, true] {
            let first = failing.calls() + call;
            failing.refuse(first..if until_end { u64::MAX } else { first + 1 });
            let Some(pool) = make(failing) else {
                refusals += 1;
                failing.refuse_all(false);
                continue;
            };
            let mut shadow = Shadow::new(&pool, call << 32);
            churn(&pool, &mut shadow, call, 300, 100, |_| check(&pool));
            refusals += shadow.refused;
            failing.refuse_all(false);
            shadow.alloc(&pool, pool.max_size_bytes()).expect("memory is back");
            check(&pool);
            shadow.drain(&pool);
            check(&pool);
        }
    }
    assert!(refusals > 0, "no call was ever refused");
}
