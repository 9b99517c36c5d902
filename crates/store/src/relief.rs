//! Making room: which pages leave memory, and how much of that a single put does.
//!
//! ```text
//!  limit ─┬───────────────────────────────────────────────────────────────────
//!         │ a put takes out twice what it puts, and compacts a little
//!  3/256 ─┼───────────────────────────────────────────────────────────────────
//!         │ a put takes out as much as it puts, unless there are holes enough
//!  1/64  ─┼───────────────────────────────────────────────────────────────────
//!         │ a put only puts
//! ```
//!
//! So a put at the limit costs a few pages, and later puts do the work that it leaves. Only if that
//! was not enough does one put go on until the limit is kept, with compaction of the whole pool in
//! between. If that was in vain, puts are refused after their share, until a share finds a page
//! that goes.
//!
//! Which pages: raw ones first, however new. For the others a hand goes round the keys and takes
//! pages that were last touched before a certain time. When it has come round, that time becomes
//! the middle between the earliest time that it passed by and now. So the older half of the ages
//! goes, then the older half of what is left, and so on. A put that cannot leave the next round to
//! others ([`Turn`]) looks once at the ages of all pages instead, and chooses the time before which
//! enough was touched.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

use hectare_pool::Pool;

use crate::StoreError;
use crate::buffer::with_buffer;
use crate::slot::{Content, Slot};
use crate::store::{Store, lock};

/// Puts make room from this part of the limit below it on.
const PART_AHEAD: usize = 64;
/// If this part of the memory is holes, that is enough: puts fill them, without more memory.
const PART_HOLES: usize = 32;
/// A put that looks for old pages passes by as many keys as this many pages have, on average. So a
/// round takes as many puts as a 256th of the pages, a third of what there is room for.
const PAGES_PASSED: usize = 256;
/// For raw pages a put passes by this many times fewer keys: if one in a hundred pages is raw, one
/// in sixteen hundred is found late.
const LESS_FOR_RAW: usize = 16;
/// But for raw pages it passes by at least so many keys.
const LEAST_FOR_RAW: usize = 128;
/// How many steps of compaction a put does, from the first put that does any to the last before the
/// limit. A pass over all objects, of which a step does twenty, is over before that.
const STEPS_A_PUT: [usize; 2] = [4, 32];
/// Compaction goes through all objects. It is worth it if more than one part in this many of the
/// pool has become unused since the last compaction.
const PART_WORTH_COMPACTING: usize = 64;

/// What counts against the limit.
pub(crate) struct Memory {
    pub(crate) bytes: usize,
    /// The part of the pool that belongs to no object.
    pub(crate) unused_bytes: usize,
}

/// How far the search for pages to take out has come.
#[derive(Debug)]
pub(crate) struct Search {
    /// Keys looked at for raw pages, ever.
    raw_looks: AtomicUsize,
    /// Keys looked at for old pages, ever.
    old_looks: AtomicUsize,
    /// A page is old if it was last touched by this time.
    old_s: AtomicU32,
    /// The number of the look for old pages with which the hand began its round.
    round_begun: AtomicUsize,
    /// When the oldest of the pages was touched that the hand passed by since it began its round.
    /// (At the beginning of the first round: the store's beginning.)
    oldest_kept_s: AtomicU32,
    /// The least that was unused near the limit: memory that is no hole, such as the names of
    /// objects.
    least_unused_bytes: AtomicUsize,
    /// Whether all keys were last looked at in vain, however new their pages, and no page has gone
    /// since.
    pub(crate) is_in_vain: AtomicBool,
    /// Keys whose ages were looked at, ever.
    #[cfg(test)]
    age_looks: AtomicUsize,
}

impl Search {
    pub(crate) const fn new() -> Self {
        Self {
            raw_looks: AtomicUsize::new(0),
            old_looks: AtomicUsize::new(0),
            old_s: AtomicU32::new(0),
            // So long ago that a round begins with the first look.
            round_begun: AtomicUsize::new(usize::MAX / 2),
            oldest_kept_s: AtomicU32::new(0),
            least_unused_bytes: AtomicUsize::new(usize::MAX),
            is_in_vain: AtomicBool::new(false),
            #[cfg(test)]
            age_looks: AtomicUsize::new(0),
        }
    }

    fn next_old_key(&self, keys: usize, now_s: u32) -> usize {
        let look = self.old_looks.fetch_add(1, Relaxed);
        if look.wrapping_sub(self.round_begun.load(Relaxed)) >= keys {
            let oldest_s = self.oldest_kept_s.load(Relaxed).min(now_s);
            self.begin_round(look, oldest_s.midpoint(now_s));
        }
        look % keys
    }

    /// From this look on, a page is old if it was touched by `old_s`.
    fn begin_round(&self, look: usize, old_s: u32) {
        self.round_begun.store(look, Relaxed);
        self.oldest_kept_s.store(u32::MAX, Relaxed);
        self.old_s.store(old_s, Relaxed);
    }

    /// How many keys were ever looked at.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> usize {
        let looks = [&self.raw_looks, &self.old_looks, &self.age_looks];
        looks.iter().map(|looks| looks.load(Relaxed)).sum()
    }

    fn is_old(&self, touched_s: u32) -> bool {
        let is_old = touched_s <= self.old_s.load(Relaxed);
        if !is_old {
            self.pass_by(touched_s);
        }
        is_old
    }

    fn pass_by(&self, touched_s: u32) {
        if touched_s < self.oldest_kept_s.load(Relaxed) {
            self.oldest_kept_s.fetch_min(touched_s, Relaxed);
        }
    }
}

/// How far a put has come that goes on until the limit is kept. Each page is offered once, or twice
/// if it is raw: in the first round over all keys those touched by `old_s`; in the second those
/// touched after that and by the next `old_s`, which is chosen such that enough will go; and so on.
///
/// If less goes in a round than was expected, since many pages are refused or shared, the next
/// round is over four times as much. As at least [`PART_WORTH_COMPACTING`] is asked for, the fifth
/// round is over all that is left.
struct Turn {
    now_s: u32,
    /// Keys that have not been looked at for raw pages yet.
    left_for_raw: usize,
    /// Pages touched until then have been offered.
    offered_s: Option<u32>,
    old_s: u32,
    /// The next look for an old page …
    look: usize,
    /// … and how many are left in the round.
    left_for_old: usize,
    /// The next round is over so many times the bytes that are asked for.
    times: usize,
}

/// Bytes of pages by age: those touched within this second, one second ago, 2 or 3 seconds ago, 4
/// to 7, and so on.
struct Ages {
    now_s: u32,
    bytes: [usize; Self::STEPS],
}

impl Ages {
    const STEPS: usize = u32::BITS as usize + 1;

    const fn at(now_s: u32) -> Self {
        Self { now_s, bytes: [0; Self::STEPS] }
    }

    fn add(&mut self, touched_s: u32, bytes: usize) {
        let age_s = self.now_s.saturating_sub(touched_s);
        self.bytes[(u32::BITS - age_s.leading_zeros()) as usize] += bytes;
    }

    /// The earliest time at which a step ends and by which pages of so many bytes were touched.
    /// Now, if all pages have fewer.
    fn by_when(&self, bytes: usize) -> u32 {
        let (mut step, mut older_bytes) = (Self::STEPS - 1, 0);
        while step > 0 {
            older_bytes += self.bytes[step];
            if older_bytes >= bytes {
                return self.now_s.saturating_sub(1 << (step - 1));
            }
            step -= 1;
        }
        self.now_s
    }
}

/// How many keys are looked at.
struct Looks {
    for_raw: usize,
    for_old: usize,
}

/// What came of making room.
#[derive(Default)]
pub(crate) struct Relief {
    /// Whether memory is as low as it should be.
    pub(crate) fits: bool,
    pub(crate) written_back_pages: usize,
    /// The first page that failed.
    pub(crate) failed: Option<StoreError>,
}

/// Where a page went that was to leave memory.
enum Expelled {
    WrittenBack,
    Evicted,
    /// Nowhere: the evictor did not take it.
    Kept,
}

impl<P: Pool> Store<P> {
    /// A put's share in making room near the limit. The put has stored `new_bytes`; memory is
    /// `bytes`, of which `unused_bytes` are unused.
    pub(crate) fn make_way(&self, bytes: usize, unused_bytes: usize, new_bytes: usize) {
        let limit_bytes = self.config.limit_bytes;
        let ahead_bytes = limit_bytes / PART_AHEAD;
        if !self.can_expel() || bytes <= limit_bytes - ahead_bytes {
            return;
        }
        let close_bytes = ahead_bytes / 4 * 3;
        let is_close = bytes > limit_bytes - close_bytes;
        let least_bytes = self.search.least_unused_bytes.fetch_min(unused_bytes, Relaxed);
        let has_holes = unused_bytes.saturating_sub(least_bytes) > bytes / PART_HOLES;
        if !is_close && has_holes {
            return;
        }
        let keys = self.slots.len();
        let keys_a_page = keys.div_ceil(self.counters.pages_in_memory().max(1));
        let for_old = PAGES_PASSED.saturating_mul(keys_a_page).min(keys);
        let for_raw = (for_old / LESS_FOR_RAW).max(LEAST_FOR_RAW);
        let looks = Looks { for_raw, for_old };
        let expelled_bytes = if is_close { 2 * new_bytes } else { new_bytes };
        // A page that fails stays. Whether that leaves enough room is checked next.
        let _ = self.expel(expelled_bytes, looks, &mut Relief::default());
        if is_close {
            let closer_bytes = (bytes - (limit_bytes - close_bytes)).min(close_bytes);
            let [least, most] = STEPS_A_PUT;
            let steps = least + (most - least) * closer_bytes / close_bytes.max(1);
            (0..steps).map_while(|_| self.compact_some()).for_each(drop);
        }
    }

    /// Brings memory down to at most `most_bytes`: by compaction, then by writing back or evicting,
    /// raw pages first and then older before newer. One thread at a time does this. The others
    /// wait, then check whether it is still needed.
    pub(crate) fn relieve(&self, most_bytes: usize) -> Relief {
        let mut left_bytes = lock(&self.relieving);
        let fits = self.compact_to(most_bytes, &mut left_bytes);
        let mut relief = Relief { fits, ..Relief::default() };
        let mut gone_bytes = 0;
        let mut turn = self.turn();
        // If all pages were offered in vain, not every put offers all of them again: a page must
        // first go by a put's share.
        while !relief.fits && self.can_expel() && !self.search.is_in_vain.load(Relaxed) {
            let Memory { bytes, .. } = self.memory();
            let worth_bytes = bytes / PART_WORTH_COMPACTING;
            let bytes = bytes.saturating_sub(most_bytes).max(worth_bytes);
            match self.expel_in_turn(bytes, &mut turn, &mut relief) {
                // All that is left was refused.
                Ok(0) => {
                    self.search.is_in_vain.store(true, Relaxed);
                    break;
                }
                Ok(bytes) => gone_bytes += bytes,
                Err(error) => {
                    relief.failed = relief.failed.or(Some(error));
                    break;
                }
            }
            relief.fits = self.compact_to(most_bytes, &mut left_bytes);
        }
        // The last resort, however little has gone since compaction was last worth it.
        if !relief.fits && gone_bytes > 0 {
            self.compact();
            relief.fits = self.memory().bytes <= most_bytes;
        }
        relief
    }

    fn turn(&self) -> Turn {
        let keys = self.slots.len();
        Turn {
            now_s: self.now_s.load(Relaxed),
            left_for_raw: keys,
            offered_s: None,
            old_s: self.search.old_s.load(Relaxed),
            look: self.search.old_looks.load(Relaxed),
            left_for_old: keys,
            times: 1,
        }
    }

    /// Takes pages out of memory until `bytes` of them have gone, or all pages were offered in this
    /// turn. Returns how many bytes have gone.
    fn expel_in_turn(
        &self,
        bytes: usize,
        turn: &mut Turn,
        relief: &mut Relief,
    ) -> Result<usize, StoreError> {
        let mut gone_bytes = self.expel_raw(bytes, &mut turn.left_for_raw, relief)?;
        loop {
            let gone = self.expel_round(bytes - gone_bytes.min(bytes), turn, relief);
            self.search.old_looks.store(turn.look, Relaxed);
            gone_bytes += gone?;
            if gone_bytes >= bytes || turn.old_s >= turn.now_s {
                return Ok(gone_bytes);
            }
            let ages = self.ages(turn);
            turn.offered_s = Some(turn.old_s);
            turn.old_s = ages.by_when(bytes.saturating_mul(turn.times));
            turn.times = turn.times.saturating_mul(4);
            turn.left_for_old = self.slots.len();
        }
    }

    /// Continues the turn's round until `bytes` have gone or the round is over.
    fn expel_round(
        &self,
        bytes: usize,
        turn: &mut Turn,
        relief: &mut Relief,
    ) -> Result<usize, StoreError> {
        let (search, keys) = (&self.search, self.slots.len());
        if turn.left_for_old == keys {
            search.begin_round(turn.look, turn.old_s);
        }
        let mut gone_bytes = 0;
        while gone_bytes < bytes && turn.left_for_old > 0 {
            let key = turn.look % keys;
            turn.look += 1;
            turn.left_for_old -= 1;
            gone_bytes += self.expel_key(key, relief, |slot| {
                if !slot.content.is_in_memory() {
                    return false;
                }
                let is_old = slot.touched_s <= turn.old_s;
                if !is_old {
                    search.pass_by(slot.touched_s);
                }
                is_old && turn.offered_s.is_none_or(|offered_s| slot.touched_s > offered_s)
            })?;
        }
        Ok(gone_bytes)
    }

    /// The ages of the pages that were not offered in the turn: those touched after its `old_s`.
    fn ages(&self, turn: &Turn) -> Ages {
        let mut ages = Ages::at(turn.now_s);
        for slot in &self.slots {
            let slot = lock(slot);
            if slot.touched_s > turn.old_s {
                ages.add(slot.touched_s, slot.content.share_bytes());
            }
        }
        #[cfg(test)]
        self.search.age_looks.fetch_add(self.slots.len(), Relaxed);
        ages
    }

    fn can_expel(&self) -> bool {
        let takes = self.backing.is_some() || self.config.evict.is_some();
        takes && !self.slots.is_empty()
    }

    /// Takes pages out of memory until `bytes` of them have gone or so many keys have been looked
    /// at, first for raw pages, then for old ones. Returns how many bytes have gone.
    fn expel(&self, bytes: usize, looks: Looks, relief: &mut Relief) -> Result<usize, StoreError> {
        let (search, keys, now_s) = (&self.search, self.slots.len(), self.now_s.load(Relaxed));
        let mut left_for_raw = looks.for_raw;
        let mut gone_bytes = self.expel_raw(bytes, &mut left_for_raw, relief)?;
        for _ in 0..looks.for_old {
            if gone_bytes >= bytes {
                break;
            }
            let key = search.next_old_key(keys, now_s);
            gone_bytes += self.expel_key(key, relief, |slot| {
                slot.content.is_in_memory() && search.is_old(slot.touched_s)
            })?;
        }
        Ok(gone_bytes)
    }

    /// Takes raw pages out of memory until `bytes` of them have gone or so many keys have been
    /// looked at. Returns how many bytes have gone.
    fn expel_raw(
        &self,
        bytes: usize,
        looks: &mut usize,
        relief: &mut Relief,
    ) -> Result<usize, StoreError> {
        let (search, keys) = (&self.search, self.slots.len());
        let mut gone_bytes = 0;
        while gone_bytes < bytes && *looks > 0 && self.counters.raw.load(Relaxed) > 0 {
            *looks -= 1;
            let key = search.raw_looks.fetch_add(1, Relaxed) % keys;
            gone_bytes += self.expel_key(key, relief, |slot| slot.content.is_raw())?;
        }
        Ok(gone_bytes)
    }

    /// Takes the page of a key out of memory if it is meant and can go. Then returns its bytes,
    /// otherwise 0.
    fn expel_key(
        &self,
        key: usize,
        relief: &mut Relief,
        is_meant: impl FnOnce(&Slot) -> bool,
    ) -> Result<usize, StoreError> {
        let mut slot = lock(&self.slots[key]);
        if !is_meant(&slot) {
            return Ok(0);
        }
        let bytes = slot.content.own_bytes();
        match self.expel_slot(key, &mut slot) {
            Ok(Expelled::Kept) => return Ok(0),
            Ok(Expelled::Evicted) => {}
            Ok(Expelled::WrittenBack) => relief.written_back_pages += 1,
            // Nobody can read this page any more, and the pages after it can still go.
            Err(error @ StoreError::Damaged { .. }) => {
                relief.failed = relief.failed.or(Some(error));
                return Ok(0);
            }
            Err(error) => return Err(error),
        }
        self.search.is_in_vain.store(false, Relaxed);
        Ok(bytes)
    }

    /// Takes the page out of memory: to the file, or to the evictor if the file does not take it.
    fn expel_slot(&self, key: usize, slot: &mut Slot) -> Result<Expelled, StoreError> {
        let refusal = match self.write_back_slot(key, slot) {
            Ok(_) => return Ok(Expelled::WrittenBack),
            Err(
                refusal @ (StoreError::NoFile | StoreError::FileFull { .. } | StoreError::Io(_)),
            ) => refusal,
            Err(error) => return Err(error),
        };
        let evict = self.config.evict.as_ref().ok_or(refusal)?;
        with_buffer(self.config.page_bytes, |page| {
            self.unpack(key, slot, page)?;
            if !evict.takes(key, page) {
                return Ok(Expelled::Kept);
            }
            self.counters.evicted.fetch_add(1, Relaxed);
            self.replace(slot, Content::Absent);
            Ok(Expelled::Evicted)
        })?
    }

    /// Compacts the pool if memory exceeds `most_bytes` and compaction is worth it. Returns whether
    /// memory is then that low.
    fn compact_to(&self, most_bytes: usize, left_bytes: &mut usize) -> bool {
        let Memory { bytes, unused_bytes } = self.memory();
        if bytes <= most_bytes {
            return true;
        }
        *left_bytes = unused_bytes.min(*left_bytes);
        if unused_bytes <= *left_bytes + bytes / PART_WORTH_COMPACTING {
            return false;
        }
        self.compact();
        let memory = self.memory();
        *left_bytes = memory.unused_bytes;
        memory.bytes <= most_bytes
    }
}

#[cfg(test)]
mod tests {
    use hectare_pool::{Handle, NoObject, PoolError, PoolStats};

    use super::*;
    use crate::Config;

    #[test]
    fn the_time_by_which_so_much_was_touched_is_found() {
        let mut ages = Ages::at(1000);
        for (touched_s, bytes) in [(1000, 8), (999, 1), (998, 1), (990, 1), (3, 1), (1001, 8)] {
            ages.add(touched_s, bytes);
        }
        let by_when = [0, 1, 2, 3, 4, 5, 20, 21].map(|bytes| ages.by_when(bytes));
        assert_eq!(by_when, [0, 488, 992, 998, 999, 1000, 1000, 1000]);
        assert_eq!(Ages::at(u32::MAX).by_when(1), u32::MAX);
        let mut ages = Ages::at(u32::MAX);
        ages.add(0, 1);
        assert_eq!(ages.by_when(1), u32::MAX / 2);
    }

    /// A pool of 1 MiB. The test says how much of it is unused; compaction leaves half of that.
    #[derive(Default)]
    struct Holes {
        unused_bytes: AtomicUsize,
        compactions: AtomicUsize,
    }

    impl Pool for Holes {
        fn name(&self) -> &'static str {
            "holes"
        }

        fn max_size_bytes(&self) -> usize {
            4096
        }

        fn alloc(&self, _: usize) -> Result<Handle, PoolError> {
            Err(PoolError::Full)
        }

        unsafe fn try_free(&self, _: Handle) -> Result<(), NoObject> {
            Ok(())
        }

        unsafe fn size_bytes(&self, _: Handle) -> usize {
            0
        }

        unsafe fn write(&self, _: Handle, _: &[u8]) {}

        unsafe fn try_read(
            &self,
            _: Handle,
            _: &mut [u8],
            _: &mut dyn FnMut(&[u8]),
        ) -> Result<(), NoObject> {
            Ok(())
        }

        fn compact(&self) -> usize {
            self.compactions.fetch_add(1, Relaxed);
            let unused_bytes = self.unused_bytes.load(Relaxed);
            self.unused_bytes.store(unused_bytes / 2, Relaxed);
            0
        }

        fn stats(&self) -> PoolStats {
            let page_bytes = 1 << 20;
            let stored_bytes = page_bytes - self.unused_bytes.load(Relaxed);
            PoolStats { page_bytes, stored_bytes, ..PoolStats::default() }
        }
    }

    /// What the last compaction left counts only until less is unused.
    #[test]
    fn compaction_is_worth_it_from_the_least_that_was_unused() {
        const KIB: usize = 1 << 10;
        let store = Store::new(Holes::default(), Config::new(1)).expect("a store");
        let mut left_bytes = 0;
        let mut compactions_at = |unused_bytes| {
            store.pool().unused_bytes.store(unused_bytes, Relaxed);
            assert!(!store.compact_to(0, &mut left_bytes), "there are more bytes than none");
            store.pool().compactions.load(Relaxed)
        };
        // A sixty-fourth is 16 KiB.
        assert_eq!(compactions_at(16 * KIB), 0);
        assert_eq!(compactions_at(96 * KIB), 1);
        assert_eq!(compactions_at(64 * KIB), 1, "48 KiB were left");
        assert_eq!(compactions_at(16 * KIB), 1);
        assert_eq!(compactions_at(32 * KIB), 1);
        assert_eq!(compactions_at(33 * KIB), 2, "there were only 16 meanwhile");
    }

    /// Which pages, touched at these times, a round takes when the time is `now_s`.
    fn round(search: &Search, now_s: u32, touched_s: &[u32]) -> Vec<u32> {
        let keys = touched_s.len();
        let looks = touched_s.iter().enumerate().map(|(key, &touched_s)| {
            assert_eq!(search.next_old_key(keys, now_s), key);
            search.is_old(touched_s).then_some(touched_s)
        });
        looks.flatten().collect()
    }

    #[test]
    fn the_older_half_of_the_ages_goes_and_then_the_older_half_of_what_is_left() {
        let search = Search::new();
        let touched_s = [900, 100, 400, 999, 700, 1000, 500];
        assert_eq!(round(&search, 1000, &touched_s), [100, 400, 500]);
        let left = [900, 999, 700, 1000, 1000, 1000, 1000];
        assert_eq!(round(&search, 1000, &left), [700]);
        assert_eq!(round(&search, 1000, &[900, 999, 1000, 1000, 1000, 1000, 1000]), [900]);
        let newest = [1000, 999, 1000, 1000, 1000, 1000, 1000];
        assert_eq!(round(&search, 1000, &newest), [999]);
        assert_eq!(round(&search, 1000, &[1000; 7]), [1000; 7]);
        // A page touched after a round has begun is not old in that round.
        assert_eq!(round(&search, 1000, &[1001, 1000, 1002, 1003, 1004, 1005, 1006]), [1000]);
    }
}
