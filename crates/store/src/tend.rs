//! What is done with pages while nobody asks for them: stronger codecs for idle ones, the file for
//! idle or incompressible ones, and making room when the limit is near.

use std::ops::AddAssign;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hectare_pool::{Pool, PoolStats};
use xxhash_rust::xxh3::xxh3_64;

use crate::StoreError;
use crate::buffer::with_buffer;
use crate::slot::{CodecId, Content, Slot};
use crate::store::{Store, lock};

/// Pages written back between two looks at the footprint.
const PAGES_A_LOOK: usize = 64;
/// Compaction goes through all objects; it is worth it if more than one part in this many of the
/// pool has become unused since the last one.
const PART_WORTH_COMPACTING: usize = 64;

/// What [`Store::tend`] does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// A page not touched for this long is recompressed by the last codec, if there are several;
    /// `None`: only when asked to.
    pub recompress_after: Option<Duration>,
    /// A page not touched for this long is written back, if there is a file.
    pub write_back_after: Option<Duration>,
    /// Room is made from this percentage of the limit on; 100 and more: only when the limit is
    /// reached.
    pub pressure_percent: usize,
}

impl Default for Policy {
    /// Recompressed after a minute, written back after an hour, pressure from 90 % of the limit.
    fn default() -> Self {
        Self {
            recompress_after: Some(Duration::from_secs(60)),
            write_back_after: Some(Duration::from_secs(3600)),
            pressure_percent: 90,
        }
    }
}

/// Which pages are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// All that are in memory.
    All,
    /// Those not touched for this long, rounded up to seconds of the store's clock.
    Idle(Duration),
    /// Those that are kept raw.
    Raw,
}

/// What a call has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tended {
    /// Pages compressed anew.
    pub recompressed_pages: usize,
    /// Pages written back.
    pub written_back_pages: usize,
}

impl AddAssign for Tended {
    fn add_assign(&mut self, other: Self) {
        self.recompressed_pages += other.recompressed_pages;
        self.written_back_pages += other.written_back_pages;
    }
}

/// What came of making room.
pub(crate) struct Relief {
    /// Whether memory is as low as it was to be.
    pub(crate) fits: bool,
    written_back_pages: usize,
    /// The first page that failed.
    failed: Option<StoreError>,
}

/// Where a page went that was to leave memory.
enum Expelled {
    WrittenBack,
    Evicted,
    /// Nowhere: the evictor did not take it.
    Kept,
}

impl<P: Pool> Store<P> {
    /// Does what the [`Policy`] asks for: call it every second or so, from one thread. O(pages).
    ///
    /// # Errors
    /// The first [`StoreError`]. The rest was done all the same: a damaged page or a full file does
    /// not keep other pages in memory.
    pub fn tend(&self) -> Result<Tended, StoreError> {
        self.tend_at(self.begun.elapsed())
    }

    /// [`tend`](Self::tend) by the caller's clock, which starts with the store and never goes
    /// backwards.
    ///
    /// # Errors
    /// As [`tend`](Self::tend).
    pub fn tend_at(&self, now: Duration) -> Result<Tended, StoreError> {
        let now_s = now.as_secs().try_into().unwrap_or(u32::MAX);
        self.now_s.fetch_max(now_s, Relaxed);
        let policy = self.config.policy;
        let (mut tended, mut failed) = (Tended::default(), None);
        let mut note = |done: Result<Tended, StoreError>| match done {
            Ok(done) => tended += done,
            Err(error) => failed = failed.or(Some(error)),
        };
        let last_codec = self.config.codecs.len() - 1;
        if let Some(after) = policy.recompress_after.filter(|_| last_codec > 0) {
            note(self.recompress(last_codec, Select::Idle(after)));
        }
        if let Some(after) = policy.write_back_after.filter(|_| self.backing.is_some()) {
            note(self.write_back(Select::Idle(after)));
        }
        let percent = policy.pressure_percent.min(100);
        let pressure_bytes = (self.config.limit_bytes as u128 * percent as u128 / 100) as usize;
        if self.config.limit_bytes > 0 && self.memory_bytes() > pressure_bytes {
            if last_codec > 0 {
                note(self.recompress(last_codec, Select::All));
            }
            let Relief { written_back_pages, failed, .. } = self.relieve(pressure_bytes);
            note(Ok(Tended { written_back_pages, ..Tended::default() }));
            note(failed.map_or(Ok(Tended::default()), Err));
        }
        failed.map_or(Ok(tended), Err)
    }

    /// Compresses pages anew by codec `codec` (its number in
    /// [`Config::codecs`](crate::Config::codecs)), where that makes them shorter.
    ///
    /// # Errors
    /// [`StoreError::NoCodec`], or that of the first page that failed: if that page is damaged, the
    /// others are done all the same.
    pub fn recompress(&self, codec: usize, select: Select) -> Result<Tended, StoreError> {
        if codec >= self.config.codecs.len() {
            return Err(StoreError::NoCodec { codec });
        }
        let codec = CodecId(codec as u8);
        let pages = self.for_each(select, |key, slot| self.recompress_slot(key, slot, codec))?;
        Ok(Tended { recompressed_pages: pages, ..Tended::default() })
    }

    /// Writes pages to the file and frees their memory.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::FileFull`], or that of the first page that failed: if
    /// that page is damaged, the others are written all the same.
    pub fn write_back(&self, select: Select) -> Result<Tended, StoreError> {
        let pages = self.for_each(select, |key, slot| self.write_back_slot(key, slot))?;
        Ok(Tended { written_back_pages: pages, ..Tended::default() })
    }

    /// Compacts the pool. Returns the bytes given back.
    pub fn compact(&self) -> usize {
        let bytes = self.pool().compact();
        self.counters.compacted_bytes.fetch_add(bytes as u64, Relaxed);
        bytes
    }

    /// Brings memory down to at most `most_bytes`: by compaction, then by writing back or evicting,
    /// raw pages first and then older before newer. One thread at a time does this; the others
    /// wait, then check whether it is still needed.
    pub(crate) fn relieve(&self, most_bytes: usize) -> Relief {
        let mut left_bytes = lock(&self.relieving);
        let mut relief = Relief { fits: false, written_back_pages: 0, failed: None };
        relief.fits = self.compact_to(most_bytes, &mut left_bytes);
        if relief.fits || (self.backing.is_none() && self.config.evict.is_none()) {
            return relief;
        }
        let fits = || self.memory_bytes() <= most_bytes;
        let idle = std::iter::once_with(|| ages(self.now_s.load(Relaxed), self.oldest_s()));
        let idle = idle.flatten().map(|age_s| Select::Idle(Duration::from_secs(age_s.into())));
        for select in std::iter::once(Select::Raw).chain(idle) {
            let mut pages = 0;
            let done = self.for_each_while(select, |key, slot| {
                let expelled = match self.expel_slot(key, slot) {
                    // Nobody can read it any more, and those after it can still go.
                    Err(error @ StoreError::Damaged { .. }) => {
                        relief.failed = relief.failed.or(Some(error));
                        Expelled::Kept
                    }
                    done => done?,
                };
                let is_gone = !matches!(expelled, Expelled::Kept);
                pages += usize::from(is_gone);
                relief.written_back_pages += usize::from(matches!(expelled, Expelled::WrittenBack));
                Ok((is_gone, pages % PAGES_A_LOOK != 0 || !fits()))
            });
            relief.failed = relief.failed.or(done.err());
            relief.fits = fits();
            // Whether it was worth it without these pages' room has been looked at above.
            if !relief.fits && pages > 0 {
                self.compact();
                relief.fits = fits();
            }
            if relief.fits {
                break;
            }
        }
        relief
    }

    /// The age of the page in memory that has not been touched for longest, in seconds. O(pages).
    fn oldest_s(&self) -> u32 {
        let now_s = self.now_s.load(Relaxed);
        if now_s == 0 {
            return 0;
        }
        let in_memory = self.slots.iter().map(lock).filter(|slot| slot.content.is_in_memory());
        in_memory.map(|slot| now_s.saturating_sub(slot.touched_s)).max().unwrap_or(0)
    }

    /// Compacts the pool if memory exceeds `most_bytes` and it is worth it. Returns whether memory
    /// is that low then.
    fn compact_to(&self, most_bytes: usize, left_bytes: &mut usize) -> bool {
        let fits = || self.memory_bytes() <= most_bytes;
        if fits() {
            return true;
        }
        let unused_bytes = |stats: PoolStats| stats.footprint_bytes() - stats.stored_bytes;
        let stats = self.pool().stats();
        *left_bytes = unused_bytes(stats).min(*left_bytes);
        let worth_bytes = stats.footprint_bytes() / PART_WORTH_COMPACTING;
        if unused_bytes(stats) > *left_bytes + worth_bytes {
            self.compact();
            *left_bytes = unused_bytes(self.pool().stats());
        }
        fits()
    }

    fn recompress_slot(
        &self,
        key: usize,
        slot: &mut Slot,
        codec: CodecId,
    ) -> Result<bool, StoreError> {
        let CodecId(number) = codec;
        let old = slot.content.packed().filter(|packed| packed.codec != CodecId::RAW);
        let is_done = old.is_some_and(|packed| packed.codec >= codec);
        if is_done || slot.tried_codecs > number {
            return Ok(false);
        }
        let below_bytes = old.map_or(self.config.raw_from_bytes, |packed| packed.bytes as usize);
        with_buffer(self.config.page_bytes, |page| {
            self.unpack(key, slot, page)?;
            // A page beside the pool has no hash yet.
            let hash = xxh3_64(page);
            let new = match self.known(hash, page) {
                // Also one that a stronger codec made.
                Some(known) if (codec..CodecId::RAW).contains(&known.packed.codec) => {
                    Some(Content::Shared(known))
                }
                known => {
                    known.into_iter().for_each(|known| self.end(Content::Shared(known)));
                    let packed = self.compress(page, codec, below_bytes)?;
                    packed.map(|packed| self.own_or_share(packed, hash))
                }
            };
            slot.tried_codecs = number + 1;
            let is_shorter = new.is_some();
            if let Some(new) = new {
                self.counters.recompressed.fetch_add(1, Relaxed);
                self.replace(slot, new);
            }
            Ok(is_shorter)
        })?
    }

    fn write_back_slot(&self, key: usize, slot: &mut Slot) -> Result<bool, StoreError> {
        let backing = self.backing.as_ref().ok_or(StoreError::NoFile)?;
        with_buffer(self.config.page_bytes, |page| {
            self.unpack(key, slot, page)?;
            let block = backing.write(page)?;
            self.counters.written_back.fetch_add(1, Relaxed);
            self.replace(slot, Content::Backed(block));
            // The codecs were tried on content that is gone.
            slot.tried_codecs = 0;
            Ok(true)
        })?
    }

    /// Takes the page out of memory: to the file, or to the evictor if the file does not take it.
    fn expel_slot(&self, key: usize, slot: &mut Slot) -> Result<Expelled, StoreError> {
        let refusal = match self.write_back_slot(key, slot) {
            Ok(_) => return Ok(Expelled::WrittenBack),
            Err(refusal @ (StoreError::NoFile | StoreError::FileFull | StoreError::Io(_))) => {
                refusal
            }
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

    /// Replaces the slot's content: by the same page elsewhere, or by none.
    fn replace(&self, slot: &mut Slot, new: Content) {
        self.counters.change(&slot.content, &new);
        let old = core::mem::replace(&mut slot.content, new);
        self.end(old);
    }

    fn for_each(
        &self,
        select: Select,
        mut act: impl FnMut(usize, &mut Slot) -> Result<bool, StoreError>,
    ) -> Result<usize, StoreError> {
        let mut damaged = None;
        let done = self.for_each_while(select, |key, slot| match act(key, slot) {
            // Nobody can read it any more, and those after it can still be done.
            Err(error @ StoreError::Damaged { .. }) => {
                damaged = damaged.or(Some(error));
                Ok((false, true))
            }
            done => Ok((done?, true)),
        })?;
        damaged.map_or(Ok(done), Err)
    }

    /// Calls `act` with each selected page that takes memory, under its slot's lock. `act` returns
    /// whether it did something and whether to go on. Returns how many pages it did something with.
    fn for_each_while(
        &self,
        select: Select,
        mut act: impl FnMut(usize, &mut Slot) -> Result<(bool, bool), StoreError>,
    ) -> Result<usize, StoreError> {
        let now_s = self.now_s.load(Relaxed);
        let whole_s =
            |after: Duration| after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
        let mut done = 0;
        if select == Select::Raw && self.counters.raw.load(Relaxed) == 0 {
            return Ok(done);
        }
        for (key, slot) in self.slots.iter().enumerate() {
            let mut slot = lock(slot);
            let is_meant = match select {
                Select::All => true,
                Select::Idle(after) => {
                    u64::from(now_s.saturating_sub(slot.touched_s)) >= whole_s(after)
                }
                Select::Raw => slot.content.is_raw(),
            };
            if is_meant && slot.content.is_in_memory() {
                let (is_done, goes_on) = act(key, &mut slot)?;
                done += usize::from(is_done);
                if !goes_on {
                    break;
                }
            }
        }
        Ok(done)
    }
}

/// The least ages of the pages that make room, in turn: halves of `now_s`, down to any age. Where none is older
/// than `oldest_s`, looking for older ones would go through all keys in vain.
fn ages(now_s: u32, oldest_s: u32) -> impl Iterator<Item = u32> {
    let halves = std::iter::successors(Some(now_s), |&age_s| (age_s > 0).then_some(age_s / 2));
    halves.skip_while(move |&age_s| age_s > oldest_s)
}

#[cfg(test)]
mod tests {
    use super::ages;

    #[test]
    fn ages_that_no_page_has_are_left_out() {
        let told = |now_s, oldest_s| ages(now_s, oldest_s).collect::<Vec<_>>();
        assert_eq!(told(3600, 100), [56, 28, 14, 7, 3, 1, 0]);
        assert_eq!(told(100, 100), [100, 50, 25, 12, 6, 3, 1, 0]);
        assert_eq!((told(7, 0), told(0, 0)), (vec![0], vec![0]));
    }
}
