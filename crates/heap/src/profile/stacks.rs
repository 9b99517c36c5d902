//! The call stacks that allocated, and the tallies of each.
//!
//! ```text
//!   words    │ – │ hash next depth live total frames… │ hash next … │    one behind the other
//!   buckets  hash ─▶ the first of the stacks of a chain
//! ```
//! A tally is two words. The first word is in no stack, so that 0 is no stack's place.

use hectare_pages::PageSource;

use crate::own_pages::Pages;
use crate::random::spread;

/// The most callers of an allocation that are kept.
pub const MAX_FRAMES: usize = 64;

/// Objects and bytes that samples stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// In 1024ths of an object.
    pub(super) objects_1024: u64,
    /// In bytes.
    pub bytes: u64,
}

impl Tally {
    /// In objects, rounded.
    #[must_use]
    pub fn objects(&self) -> u64 {
        (self.objects_1024 + 512) / 1024
    }

    /// Adds what [`weight`](crate::sample::weight) says of a sample.
    pub(super) fn add(&mut self, (objects_1024, bytes): (u64, u64)) {
        self.objects_1024 += objects_1024;
        self.bytes += bytes;
    }

    /// Subtracts what was added.
    pub(super) fn subtract(&mut self, (objects_1024, bytes): (u64, u64)) {
        self.objects_1024 -= objects_1024;
        self.bytes -= bytes;
    }
}

/// A call stack, and what it allocated.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    /// Return addresses, the allocating call's first.
    pub frames: &'a [usize],
    /// What is live.
    pub live: Tally,
    /// Everything since the profile began.
    pub total: Tally,
}

/// Where a stack's words begin.
pub(super) type StackPlace = usize;

/// One of a stack's tallies, by its place among the stack's words.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(super) enum Which {
    Live = 3,
    Total = 5,
}

/// The places of a stack's other words.
const HASH: usize = 0;
const NEXT: usize = 1;
const DEPTH: usize = 2;
const FRAMES: usize = 7;

/// The words before a stack's frames.
type Head = [usize; FRAMES];

const FIRST_WORDS: usize = 16 << 10;
const BUCKETS: usize = 4096;

#[derive(Debug)]
pub(super) struct Stacks {
    words: Pages<usize>,
    /// How many of `words` are in use; 0 before the first stack.
    used: usize,
    buckets: Pages<StackPlace>,
}

impl Stacks {
    pub(super) const fn new() -> Self {
        Self { words: Pages::new(), used: 0, buckets: Pages::new() }
    }

    /// The stack of `frames`, of which the first [`MAX_FRAMES`] count. Adds it if it is new. `None`
    /// when out of memory.
    pub(super) fn find_or_add(
        &mut self,
        frames: &[usize],
        source: &impl PageSource,
    ) -> Option<StackPlace> {
        let frames = &frames[..frames.len().min(MAX_FRAMES)];
        if self.buckets.capacity() == 0 {
            self.buckets = Pages::with_capacity(BUCKETS, source)?;
        }
        let hash = hash(frames);
        let first = self.buckets.entries()[hash % BUCKETS];
        let words = self.words.entries();
        let mut stack = first;
        while stack != 0 {
            let (head, its_frames) = parts(words, stack);
            if head[HASH] == hash && its_frames == frames {
                return Some(stack);
            }
            stack = head[NEXT];
        }
        let place = self.used.max(1);
        let end = place + FRAMES + frames.len();
        self.make_room(end, source)?;
        let stack = &mut self.words.entries_mut()[place..end];
        stack[HASH] = hash;
        stack[NEXT] = first;
        stack[DEPTH] = frames.len();
        stack[FRAMES..].copy_from_slice(frames);
        self.used = end;
        self.buckets.entries_mut()[hash % BUCKETS] = place;
        Some(place)
    }

    /// Ensures that there are `count` words.
    fn make_room(&mut self, count: usize, source: &impl PageSource) -> Option<()> {
        let capacity = self.words.capacity();
        if count > capacity {
            let mut wider = Pages::with_capacity((capacity * 2).max(FIRST_WORDS), source)?;
            wider.entries_mut()[..capacity].copy_from_slice(self.words.entries());
            self.words.release(source);
            self.words = wider;
        }
        Some(())
    }

    /// Changes one of the two tallies of `stack`.
    pub(super) fn change(
        &mut self,
        stack: StackPlace,
        which: Which,
        change: impl FnOnce(&mut Tally),
    ) {
        let Some(head) = self.words.entries_mut()[stack..].first_chunk_mut() else { return };
        let mut tally = tally_of(head, which);
        change(&mut tally);
        let at = which as usize;
        (head[at], head[at + 1]) = (tally.objects_1024 as usize, tally.bytes as usize);
    }

    /// A copy of the stacks as they are now, to be [listed](Self::iter). `None` when out of memory.
    pub(super) fn copy(&self, source: &impl PageSource) -> Option<Self> {
        let mut words = Pages::with_capacity(self.used.max(1), source)?;
        let here = self.words.entries().iter().take(self.used);
        words.entries_mut().iter_mut().zip(here).for_each(|(to, from)| *to = *from);
        Some(Self { words, used: self.used, buckets: Pages::new() })
    }

    /// The stacks, in the order in which they first allocated.
    pub(super) fn iter(&self) -> impl Iterator<Item = Stack<'_>> {
        let words = &self.words.entries()[..self.used];
        let mut next = 1;
        core::iter::from_fn(move || {
            let at = next;
            if at >= words.len() {
                return None;
            }
            let (head, frames) = parts(words, at);
            next = at + FRAMES + frames.len();
            let [live, total] = [Which::Live, Which::Total].map(|which| tally_of(head, which));
            Some(Stack { frames, live, total })
        })
    }

    /// Gives the pages back.
    pub(super) fn release(&mut self, source: &impl PageSource) {
        self.words.release(source);
        self.buckets.release(source);
    }
}

fn tally_of(head: &Head, which: Which) -> Tally {
    let at = which as usize;
    Tally { objects_1024: head[at] as u64, bytes: head[at + 1] as u64 }
}

/// The words that every stack has, and the stack's frames.
#[inline(never)]
fn parts(words: &[usize], stack: StackPlace) -> (&Head, &[usize]) {
    let (head, rest) = words[stack..].split_first_chunk().expect("each stack has these words");
    (head, &rest[..head[DEPTH]])
}

fn hash(frames: &[usize]) -> usize {
    let mixed =
        frames.iter().fold(frames.len(), |hash, &frame| spread(hash.rotate_left(23) ^ frame));
    mixed ^ mixed >> 32
}
