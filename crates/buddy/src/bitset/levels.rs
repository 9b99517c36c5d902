//! Where the words lie in the caller's metadata, and the search over their summaries.
//!
//! Nothing here knows what a bit means. An index out of range reads as 0 and is not written, so
//! that no input can make a call panic. The callers' invariants keep indices in range.

use crate::bits::{WORD, WORD_SHIFT, blocks};

/// Levels of words: a bit stands for 64^level frames. The last level is that of the largest order.
pub(super) const LEVELS: usize = 4;
/// The last level.
pub(super) const TOP: usize = LEVELS - 1;
/// Orders inside a word; each has a summary of its own.
pub(super) const ORDERS: usize = WORD_SHIFT as usize;
/// Enough tiers of summaries for 2^30 words.
const TIERS: usize = 5;
/// The most frames that [`TIERS`] tiers can summarise: 2^36, 256 TiB of 4 KiB frames; half the
/// range of `usize` if that is less.
pub(super) const MAX_FRAMES: usize = 1 << if usize::BITS > 36 { 36 } else { usize::BITS - 1 };

/// The place of one level in the metadata, in words.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// First word.
    start: usize,
    /// Words of the level.
    count: usize,
    /// The first word of each tier of the summary.
    tiers: [usize; TIERS],
    /// Tiers in use: the last one has one group.
    depth: usize,
}

/// Where everything lies for a number of frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    levels: [Level; LEVELS],
    /// Words in all.
    pub(super) words: usize,
}

impl Geometry {
    pub(super) const fn new(frames: usize) -> Self {
        const EMPTY: Level = Level { start: 0, count: 0, tiers: [0; TIERS], depth: 0 };
        let mut levels = [EMPTY; LEVELS];
        let mut bits = frames;
        let mut at = 0;
        while at < LEVELS {
            levels[at].count = bits.div_ceil(WORD);
            bits = levels[at].count;
            at += 1;
        }
        // Behind level 0 the smallest level comes first. The front of each level is touched first,
        // and so lies on a page with those of others.
        let mut words = levels[0].count;
        while at > 0 {
            at -= 1;
            words = levels[at].put_tiers(words);
            if at > 0 {
                levels[at].start = words;
                words += levels[at].count;
            }
        }
        Self { levels, words }
    }
}

impl Level {
    /// Places the level's tiers behind the first `words` words, the last and smallest tier first.
    /// Returns the new number of words. (Not inlined, so that there is one copy for all levels.)
    #[inline(never)]
    const fn put_tiers(&mut self, mut words: usize) -> usize {
        let mut groups = [self.count.div_ceil(WORD); TIERS];
        self.depth = (groups[0] > 0) as usize;
        while self.depth > 0 && self.depth < TIERS && groups[self.depth - 1] > 1 {
            groups[self.depth] = groups[self.depth - 1].div_ceil(WORD);
            self.depth += 1;
        }
        let mut tier = self.depth;
        while tier > 0 {
            tier -= 1;
            self.tiers[tier] = words;
            words += groups[tier] * ORDERS;
        }
        words
    }
}

/// The caller's metadata, and the geometry that says where everything lies in it.
#[derive(Debug)]
pub(super) struct Levels<'m> {
    meta: &'m mut [u64],
    geometry: Geometry,
}

impl<'m> Levels<'m> {
    pub(super) const fn new(meta: &'m mut [u64], geometry: Geometry) -> Self {
        Self { meta, geometry }
    }

    #[inline]
    fn read(&self, at: usize) -> u64 {
        self.meta.get(at).copied().unwrap_or(0)
    }

    #[inline]
    fn write(&mut self, at: usize, value: u64) {
        if let Some(word) = self.meta.get_mut(at) {
            *word = value;
        }
    }

    #[inline]
    pub(super) const fn count(&self, level: usize) -> usize {
        self.geometry.levels[level].count
    }

    #[inline]
    pub(super) fn word(&self, level: usize, word: usize) -> u64 {
        self.read(self.geometry.levels[level].start + word)
    }

    #[inline]
    pub(super) fn set_word(&mut self, level: usize, word: usize, value: u64) {
        self.write(self.geometry.levels[level].start + word, value);
    }

    /// A word of level 0, which stands at the front of the metadata.
    #[inline]
    pub(super) fn leaf(&self, word: usize) -> u64 {
        self.read(word)
    }

    /// As [`leaf`](Self::leaf), for changing the word.
    #[inline]
    pub(super) fn leaf_mut(&mut self, word: usize) -> Option<&mut u64> {
        self.meta.get_mut(word)
    }

    /// Whether the summary of `order` names `word`.
    #[inline]
    pub(super) fn is_listed(&self, level: usize, word: usize, order: usize) -> bool {
        let slot = self.geometry.levels[level].tiers[0] + (word / WORD) * ORDERS + order;
        self.read(slot) >> (word % WORD) & 1 != 0
    }

    /// The summaries of all orders for the group of 64 to which `child` of a tier belongs.
    #[inline]
    fn group(&mut self, tier_start: usize, child: usize) -> Option<&mut [u64; ORDERS]> {
        self.meta.get_mut(tier_start + child / WORD * ORDERS..)?.first_chunk_mut()
    }

    /// Lists `word` in the summaries of all orders up to `largest`, at most 5.
    pub(super) fn list(&mut self, level: usize, word: usize, largest: u32) {
        let Level { tiers, depth, .. } = self.geometry.levels[level];
        // A bit for each order whose entry in the tier below was 0, so that the entry in this tier
        // must be set.
        let mut fresh = (2 << largest) - 1_u32;
        let mut child = word;
        for &start in tiers.iter().take(depth) {
            let Some(group) = self.group(start, child) else { return };
            let mut were_empty = 0;
            for (order, entry) in group.iter_mut().enumerate() {
                were_empty |= u32::from(*entry == 0) << order;
                *entry |= u64::from(fresh >> order & 1) << (child % WORD);
            }
            fresh &= were_empty;
            if fresh == 0 {
                return;
            }
            child /= WORD;
        }
    }

    /// Removes `word` from the summaries of all orders from `least` on.
    pub(super) fn unlist(&mut self, level: usize, word: usize, least: usize) {
        let Level { tiers, depth, .. } = self.geometry.levels[level];
        // A bit for each order whose entry in the tier below became 0.
        let mut emptied = ((1 << ORDERS) - 1) & !((1 << least) - 1_u32);
        let mut child = word;
        for &start in tiers.iter().take(depth) {
            let Some(group) = self.group(start, child) else { return };
            let mut are_empty = 0;
            for (order, entry) in group.iter_mut().enumerate() {
                *entry &= !(u64::from(emptied >> order & 1) << (child % WORD));
                are_empty |= u32::from(*entry == 0) << order;
            }
            emptied &= are_empty;
            if emptied == 0 {
                return;
            }
            child /= WORD;
        }
    }

    /// The first word from `from` on that the summary of `order` names.
    pub(super) fn next_listed(&self, level: usize, from: usize, order: usize) -> Option<usize> {
        let Level { ref tiers, depth, mut count, .. } = self.geometry.levels[level];
        let mut child = from;
        for (tier, &start) in tiers.iter().take(depth).enumerate() {
            // In units of this tier, is there anything from `child` on?
            if child >= count {
                return None;
            }
            let group = child / WORD;
            let listed = self.read(start + group * ORDERS + order) & (!0 << (child % WORD));
            if listed != 0 {
                let mut found = group * WORD + listed.trailing_zeros() as usize;
                for &start in tiers.iter().take(tier).rev() {
                    let listed = self.read(start + found * ORDERS + order);
                    found = found * WORD + listed.trailing_zeros() as usize;
                }
                return Some(found);
            }
            child = group + 1;
            count = count.div_ceil(WORD);
        }
        None
    }

    /// The last word up to `to` that is not 0.
    fn previous_listed(&self, level: usize, to: usize) -> Option<usize> {
        let Level { ref tiers, depth, .. } = self.geometry.levels[level];
        let mut child = to;
        for tier in 0..depth {
            let group = child / WORD;
            let listed =
                self.read(tiers[tier] + group * ORDERS) & (!0 >> (WORD - 1 - child % WORD));
            if listed != 0 {
                let mut found = group * WORD + listed.ilog2() as usize;
                for &start in tiers.iter().take(tier).rev() {
                    let listed = self.read(start + found * ORDERS);
                    found = found * WORD + listed.checked_ilog2().unwrap_or(0) as usize;
                }
                return Some(found);
            }
            child = group.checked_sub(1)?;
        }
        None
    }

    /// The first block of 2^order set bits that starts at or after bit `from`.
    pub(super) fn next_block(&self, level: usize, from: usize, order: usize) -> Option<usize> {
        let mut word = from / WORD;
        if word >= self.count(level) {
            return None;
        }
        let mut found = blocks(self.word(level, word), order as u32) & (!0 << (from % WORD));
        while found == 0 {
            word = self.next_listed(level, word + 1, order)?;
            found = blocks(self.word(level, word), order as u32);
        }
        Some(word * WORD + found.trailing_zeros() as usize)
    }

    /// The first set bit at or after bit `from`.
    #[inline]
    pub(super) fn next_bit(&self, level: usize, from: usize) -> Option<usize> {
        let mut word = from / WORD;
        if word >= self.count(level) {
            return None;
        }
        let mut found = self.word(level, word) & (!0 << (from % WORD));
        if found == 0 {
            word = self.next_listed(level, word + 1, 0)?;
            found = self.word(level, word);
        }
        Some(word * WORD + found.trailing_zeros() as usize)
    }

    /// The last set bit at or before bit `to`.
    pub(super) fn previous_bit(&self, level: usize, to: usize) -> Option<usize> {
        let to = to.min((self.count(level) * WORD).checked_sub(1)?);
        let mut word = to / WORD;
        let mut found = self.word(level, word) & (!0 >> (WORD - 1 - to % WORD));
        if found == 0 {
            word = self.previous_listed(level, word.checked_sub(1)?)?;
            found = self.word(level, word);
        }
        Some(word * WORD + found.checked_ilog2()? as usize)
    }

    /// Whether each bit of the higher tiers of the summary of `order` is set exactly if the word
    /// below it is not 0: for validation. (The lowest tier may have stale entries.)
    pub(super) fn summary_agrees(&self, level: usize, order: usize) -> bool {
        let Level { ref tiers, depth, count, .. } = self.geometry.levels[level];
        let mut children = count;
        for tier in 1..depth {
            children = children.div_ceil(WORD);
            let named = |child: usize| {
                let slot = tiers[tier] + (child / WORD) * ORDERS + order;
                self.read(slot) >> (child % WORD) & 1 != 0
            };
            let filled = |child: usize| self.read(tiers[tier - 1] + child * ORDERS + order) != 0;
            if !(0..children).all(|child| named(child) == filled(child)) {
                return false;
            }
        }
        true
    }
}
