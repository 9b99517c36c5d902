//! The heap profile: which call stacks allocated the sampled objects that are live, and all that
//! ever were.
//!
//! ```text
//!   samples  address ─▶ bytes, stack       a hash table, open addressing
//!   stacks   │ hash next depth tallies frames… │ hash next … │    one behind the other
//!   buckets  hash ─▶ first stack of a chain
//! ```
//! Invariants
//! 1. Each sample's stack is an entry's start; the live tally of a stack is the sum of what its
//!    samples stand for, its total tally that of all samples it ever had: whole numbers, so that
//!    what was added goes without a rest.
//! 2. The tables are pages of the source's own, grown by doubling: nothing here allocates from the
//!    heap that it watches.
//!
//! When a table cannot grow, the sample is not taken, and is counted as lost.

use hectare_base::sync::Lock;
use hectare_pages::{PageSource, System};

use crate::own_pages::Pages;
use crate::sample::{counted, weight};

/// How many callers of an allocation are kept at most.
pub const MAX_FRAMES: usize = 64;

/// Objects and bytes that samples stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// In 1024ths of an object.
    objects_1024: u64,
    /// In bytes.
    pub bytes: u64,
}

impl Tally {
    /// In objects, rounded.
    #[must_use]
    pub fn objects(&self) -> u64 {
        (self.objects_1024 + 512) / 1024
    }

    fn add(&mut self, (objects_1024, bytes): (u64, u64)) {
        self.objects_1024 += objects_1024;
        self.bytes += bytes;
    }

    fn subtract(&mut self, (objects_1024, bytes): (u64, u64)) {
        self.objects_1024 -= objects_1024;
        self.bytes -= bytes;
    }
}

/// A call stack, and what it allocated.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    /// Return addresses, that of the allocating call first.
    pub frames: &'a [usize],
    /// What is live.
    pub live: Tally,
    /// Everything since the profile began.
    pub total: Tally,
}

/// A live sampled object. An address of 0: no sample.
#[derive(Debug, Clone, Copy)]
struct Sample {
    address: usize,
    bytes: usize,
    /// Where its stack stands in `stacks`.
    stack: usize,
}

const FIRST_SAMPLES: usize = 1024;
const FIRST_STACK_WORDS: usize = 16 << 10;
const BUCKETS: usize = 4096;

/// The words of a stack's entry before its frames.
const HASH: usize = 0;
const NEXT: usize = 1;
const DEPTH: usize = 2;
const LIVE: usize = 3;
const TOTAL: usize = 5;
const FRAMES: usize = 7;

#[derive(Debug)]
struct State {
    mean_bytes: usize,
    samples: Pages<Sample>,
    live_samples: usize,
    stacks: Pages<usize>,
    /// How many words of `stacks` are in use. The first is not, so that 0 is no stack's place.
    stack_words: usize,
    buckets: Pages<usize>,
    lost_samples: u64,
}

/// The profile of a heap. All methods may be called by any thread; none allocates from the heap.
#[derive(Debug)]
pub(crate) struct Profile<S: System> {
    state: Lock<State, S::Park>,
}

impl<S: System> Profile<S> {
    /// An empty profile, which owns nothing yet.
    pub(crate) const fn new() -> Self {
        Self {
            state: Lock::new(State {
                mean_bytes: 0,
                samples: Pages::new(),
                live_samples: 0,
                stacks: Pages::new(),
                stack_words: 0,
                buckets: Pages::new(),
                lost_samples: 0,
            }),
        }
    }

    /// Says at which rate samples are taken: before the first.
    pub(crate) fn begin(&self, mean_bytes: usize) {
        self.state.lock().mean_bytes = mean_bytes;
    }

    /// Enters the sampled object at `address`, allocated by `frames`.
    pub(crate) fn record(&self, address: usize, bytes: usize, frames: &[usize], source: &S) {
        let mut state = self.state.lock();
        if state.enter(address, bytes, frames, source).is_none() {
            state.lost_samples += 1;
        }
    }

    /// Takes the object at `address` off the live ones. Whether it was a sampled one.
    pub(crate) fn forget(&self, address: usize) -> bool {
        self.state.lock().forget(address)
    }

    /// Whether the object at `address` is a small sampled one that a realloc to `bytes` leaves where
    /// it is.
    pub(crate) fn keeps(&self, address: usize, bytes: usize) -> bool {
        let state = self.state.lock();
        let sample = find(state.samples.entries(), address);
        let class = sample.map(|at| counted(state.samples.entries()[at].bytes).0);
        class.is_some_and(|class| class.is_small() && class.keeps(bytes))
    }

    /// A copy of the profile, at one moment; `None` when memory is out.
    pub(crate) fn snapshot<'a>(&self, source: &'a S) -> Option<Snapshot<'a, S>> {
        let mut snapshot = self.copy(source)?;
        snapshot.list_calls()?;
        Some(snapshot)
    }

    fn copy<'a>(&self, source: &'a S) -> Option<Snapshot<'a, S>> {
        let state = self.state.lock();
        let mut stacks = Pages::with_capacity(state.stack_words.max(1), source)?;
        let words = &state.stacks.entries()[..state.stack_words.min(state.stacks.capacity())];
        stacks.entries_mut()[..words.len()].copy_from_slice(words);
        Some(Snapshot {
            stacks,
            words: words.len(),
            calls: Pages::new(),
            call_count: 0,
            mean_bytes: state.mean_bytes,
            lost_samples: state.lost_samples,
            source,
        })
    }

    /// Holds the profile's lock across a fork.
    pub(crate) fn before_fork(&self) {
        self.state.lock_for_fork();
    }

    /// Frees it in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.state.unlock() };
    }
}

impl State {
    fn enter(
        &mut self,
        address: usize,
        bytes: usize,
        frames: &[usize],
        source: &impl PageSource,
    ) -> Option<()> {
        self.make_room(source)?;
        let stack = self.stack_of(frames, source)?;
        // What was freed behind the heap's back (an exec'd child's copy) must not stay.
        self.forget(address);
        let weight = weight(bytes, self.mean_bytes);
        self.tally(stack, LIVE, |tally| tally.add(weight));
        self.tally(stack, TOTAL, |tally| tally.add(weight));
        insert(self.samples.entries_mut(), Sample { address, bytes, stack });
        self.live_samples += 1;
        Some(())
    }

    /// Sees to it that one more sample leaves a quarter of the table empty.
    fn make_room(&mut self, source: &impl PageSource) -> Option<()> {
        let capacity = self.samples.capacity();
        if (self.live_samples + 1) * 4 <= capacity * 3 {
            return Some(());
        }
        let mut wider = Pages::with_capacity((capacity * 2).max(FIRST_SAMPLES), source)?;
        for &sample in self.samples.entries().iter().filter(|sample| sample.address != 0) {
            insert(wider.entries_mut(), sample);
        }
        self.samples.release(source);
        self.samples = wider;
        Some(())
    }

    fn forget(&mut self, address: usize) -> bool {
        let Some(sample) = remove(self.samples.entries_mut(), address) else { return false };
        self.live_samples -= 1;
        let weight = weight(sample.bytes, self.mean_bytes);
        self.tally(sample.stack, LIVE, |tally| tally.subtract(weight));
        true
    }

    /// Changes one of the two tallies of the stack at `stack`.
    fn tally(&mut self, stack: usize, which: usize, change: impl FnOnce(&mut Tally)) {
        let words = self.stacks.entries_mut();
        let mut tally = read_tally(words, stack + which);
        change(&mut tally);
        words[stack + which] = tally.objects_1024 as usize;
        words[stack + which + 1] = tally.bytes as usize;
    }

    /// The place of the entry for `frames`, made if there is none.
    fn stack_of(&mut self, frames: &[usize], source: &impl PageSource) -> Option<usize> {
        let frames = &frames[..frames.len().min(MAX_FRAMES)];
        if self.buckets.capacity() == 0 {
            self.buckets = Pages::with_capacity(BUCKETS, source)?;
        }
        let hash = hash(frames);
        let first = self.buckets.entries()[hash % BUCKETS];
        let words = self.stacks.entries();
        let mut stack = first;
        while stack != 0 {
            if words[stack + HASH] == hash && frames_at(words, stack) == frames {
                return Some(stack);
            }
            stack = words[stack + NEXT];
        }
        let place = self.stack_words.max(1);
        let end = place + FRAMES + frames.len();
        if end > self.stacks.capacity() {
            let capacity = (self.stacks.capacity() * 2).max(FIRST_STACK_WORDS);
            let mut wider = Pages::with_capacity(capacity, source)?;
            wider.entries_mut()[..self.stacks.capacity()].copy_from_slice(self.stacks.entries());
            self.stacks.release(source);
            self.stacks = wider;
        }
        let entry = &mut self.stacks.entries_mut()[place..end];
        entry[HASH] = hash;
        entry[NEXT] = first;
        entry[DEPTH] = frames.len();
        entry[FRAMES..].copy_from_slice(frames);
        self.stack_words = end;
        self.buckets.entries_mut()[hash % BUCKETS] = place;
        Some(place)
    }
}

fn read_tally(words: &[usize], at: usize) -> Tally {
    Tally { objects_1024: words[at] as u64, bytes: words[at + 1] as u64 }
}

fn frames_at(words: &[usize], stack: usize) -> &[usize] {
    &words[stack + FRAMES..][..words[stack + DEPTH]]
}

/// Spreads every bit of `word` over the upper ones (Knuth's multiplicative hashing).
fn spread(word: usize) -> usize {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
}

fn hash(frames: &[usize]) -> usize {
    let mixed =
        frames.iter().fold(frames.len(), |hash, &frame| spread(hash.rotate_left(23) ^ frame));
    mixed ^ mixed >> 32
}

/// Where a sample's search begins, in a table whose length is a power of two.
fn home(table: &[Sample], address: usize) -> usize {
    spread(address) >> 20 & (table.len() - 1)
}

/// Enters a sample whose address is not in the table, which is not full.
fn insert(table: &mut [Sample], sample: Sample) {
    let mut at = home(table, sample.address);
    while table[at].address != 0 {
        at = (at + 1) & (table.len() - 1);
    }
    table[at] = sample;
}

/// Where the sample of `address` stands.
fn find(table: &[Sample], address: usize) -> Option<usize> {
    if table.is_empty() {
        return None;
    }
    let mut at = home(table, address);
    while table[at].address != address {
        if table[at].address == 0 {
            return None;
        }
        at = (at + 1) & (table.len() - 1);
    }
    Some(at)
}

/// Takes the sample of `address` out, and closes the gap (Knuth, volume 3, 6.4, algorithm R).
fn remove(table: &mut [Sample], address: usize) -> Option<Sample> {
    let mut gap = find(table, address)?;
    let mask = table.len() - 1;
    let removed = table[gap];
    let mut at = gap;
    loop {
        at = (at + 1) & mask;
        if table[at].address == 0 {
            break;
        }
        // An entry whose search begins behind the gap stays.
        let distance = |from: usize| at.wrapping_sub(from) & mask;
        if distance(home(table, table[at].address)) >= distance(gap) {
            table[gap] = table[at];
            gap = at;
        }
    }
    table[gap].address = 0;
    Some(removed)
}

/// A profile at one moment, in pages of its own.
#[derive(Debug)]
pub struct Snapshot<'a, S: System> {
    stacks: Pages<usize>,
    words: usize,
    calls: Pages<usize>,
    call_count: usize,
    mean_bytes: usize,
    lost_samples: u64,
    source: &'a S,
}

/// A return address is behind its call: the byte before it lies in the call, and in its function
/// even where the call is the last of it.
#[must_use]
pub fn call_of(return_address: usize) -> usize {
    return_address.saturating_sub(1)
}

impl<S: System> Snapshot<'_, S> {
    /// Lists each call of the stacks once, sorted. O(n log n).
    fn list_calls(&mut self) -> Option<()> {
        let count: usize = self.stacks().map(|stack| stack.frames.len()).sum();
        let mut calls = Pages::with_capacity(count.max(1), self.source)?;
        let frames = self.stacks().flat_map(|stack| stack.frames);
        for (call, &frame) in calls.entries_mut().iter_mut().zip(frames) {
            *call = call_of(frame);
        }
        let all = &mut calls.entries_mut()[..count];
        all.sort_unstable();
        let mut kept = 0;
        for i in 0..count {
            if kept == 0 || all[i] != all[kept - 1] {
                all[kept] = all[i];
                kept += 1;
            }
        }
        self.calls = calls;
        self.call_count = kept;
        Some(())
    }

    /// Each call (as [`call_of`] gives it) of all stacks once, sorted.
    #[must_use]
    pub fn calls(&self) -> &[usize] {
        &self.calls.entries()[..self.call_count]
    }

    /// Of how many allocated bytes one was a sampling point.
    #[must_use]
    pub fn mean_bytes(&self) -> usize {
        self.mean_bytes
    }

    /// How many samples were not taken for want of memory.
    #[must_use]
    pub fn lost_samples(&self) -> u64 {
        self.lost_samples
    }

    /// The stacks, in the order in which they first allocated.
    pub fn stacks(&self) -> impl Iterator<Item = Stack<'_>> {
        let words = &self.stacks.entries()[..self.words];
        let mut next = 1;
        core::iter::from_fn(move || {
            let at = next;
            if at + FRAMES > words.len() {
                return None;
            }
            next = at + FRAMES + words[at + DEPTH];
            Some(Stack {
                frames: frames_at(words, at),
                live: read_tally(words, at + LIVE),
                total: read_tally(words, at + TOTAL),
            })
        })
    }
}

impl<S: System> Drop for Snapshot<'_, S> {
    fn drop(&mut self) {
        self.stacks.release(self.source);
        self.calls.release(self.source);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashMap;
    use std::vec::Vec;

    use hectare_pages::Os;

    use super::*;
    use crate::class::MAX_SMALL_BYTES;

    fn live(profile: &Profile<Os>) -> HashMap<Vec<usize>, (u64, u64)> {
        let snapshot = profile.snapshot(&Os).expect("memory");
        let entry =
            |stack: Stack<'_>| (stack.frames.to_vec(), (stack.live.objects_1024, stack.live.bytes));
        snapshot.stacks().map(entry).collect()
    }

    /// Random samples come and go, beside a plain map of what must be live.
    #[test]
    fn tallies_are_the_sums_of_the_live_samples() {
        let profile = Profile::<Os>::new();
        profile.begin(5000);
        let mut shadow: HashMap<usize, (usize, usize)> = HashMap::new();
        let mut total = HashMap::<usize, u64>::new();
        let mut random = 7u64;
        for step in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Addresses as allocators give them: equal in their low bits.
            let address = ((random >> 33) as usize % 20_000 + 1) << 12;
            let site = (random >> 20) as usize % 700;
            assert!(shadow.contains_key(&address) || !profile.keeps(address, 1));
            if let Some((_, bytes)) = shadow.remove(&address) {
                assert!(profile.keeps(address, bytes) || bytes > MAX_SMALL_BYTES);
                assert!(!profile.keeps(address, bytes * 2 + 17));
                assert!(profile.forget(address));
            } else if step % 3 > 0 {
                let bytes = (random >> 40) as usize % 40_000;
                profile.record(address, bytes, &[site, site / 7, 99][..site % 4 % 3 + 1], &Os);
                shadow.insert(address, (site, bytes));
                *total.entry(site).or_default() += weight(bytes, 5000).1;
            } else {
                assert!(!profile.forget(address));
            }
        }
        let mut expected: HashMap<Vec<usize>, (u64, u64)> = HashMap::new();
        for (site, bytes) in shadow.values() {
            let frames = [*site, site / 7, 99][..site % 4 % 3 + 1].to_vec();
            let entry = expected.entry(frames).or_default();
            let (objects, bytes) = weight(*bytes, 5000);
            *entry = (entry.0 + objects, entry.1 + bytes);
        }
        let mut live = live(&profile);
        live.retain(|_, tally| *tally != (0, 0));
        assert_eq!(live, expected);
        let snapshot = profile.snapshot(&Os).expect("memory");
        let sum: u64 = snapshot.stacks().map(|stack| stack.total.bytes).sum();
        assert_eq!(sum, total.values().sum::<u64>());
        assert_eq!(snapshot.lost_samples(), 0);
        let mut calls: Vec<usize> =
            snapshot.stacks().flat_map(|s| s.frames).map(|&f| call_of(f)).collect();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(snapshot.calls(), calls);
    }

    #[test]
    fn deep_stacks_are_cut_and_empty_ones_kept() {
        let profile = Profile::<Os>::new();
        profile.begin(1);
        let deep: Vec<usize> = (1..500).collect();
        profile.record(4096, 10, &deep, &Os);
        profile.record(8192, 10, &[], &Os);
        let live = live(&profile);
        assert_eq!(live.len(), 2);
        assert_eq!(live[&deep[..MAX_FRAMES].to_vec()].1, 10);
        assert_eq!(live[&Vec::new()].1, 10);
    }
}
