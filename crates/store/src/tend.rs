//! What the store does with pages while nobody asks for them: stronger codecs for idle pages, the
//! file for idle or incompressible ones, and [making room](crate::relief) when the limit is near.

use std::ops::AddAssign;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hectare_pool::Pool;
use xxhash_rust::xxh3::xxh3_64;

use crate::StoreError;
use crate::buffer::with_buffer;
use crate::relief::Relief;
use crate::slot::{CodecId, Content, Slot};
use crate::store::{Store, lock};

/// What [`Store::tend`] does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// A page not touched for this long is recompressed by the last codec, if there are several;
    /// `None`: only on request.
    pub recompress_after: Option<Duration>,
    /// A page not touched for this long is written back, if there is a file.
    pub write_back_after: Option<Duration>,
    /// Room is made from this percentage of the limit on. 100 and more: only when the limit is
    /// exceeded, or by puts, which begin 1/64 below it.
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

/// Which pages a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// All pages in memory.
    All,
    /// Pages not touched for this long, rounded up to seconds of the store's clock.
    Idle(Duration),
    /// Pages that are kept raw.
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

impl<P: Pool> Store<P> {
    /// Does what the [`Policy`] asks for. Call it every second or so, from one thread. O(pages).
    ///
    /// # Errors
    /// The first [`StoreError`]. All other work was done: a damaged page or a full file does not
    /// keep other pages in memory.
    pub fn tend(&self) -> Result<Tended, StoreError> {
        self.tend_at(self.begun.elapsed())
    }

    /// As [`tend`](Self::tend), by the caller's clock, which starts with the store and never goes
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
        if self.config.limit_bytes > 0 && self.memory().bytes > pressure_bytes {
            if last_codec > 0 {
                note(self.recompress(last_codec, Select::All));
            }
            // An [`Evict`](crate::Evict) that did not take a page may take it now.
            self.search.is_in_vain.store(false, Relaxed);
            let Relief { written_back_pages, failed, .. } = self.relieve(pressure_bytes);
            note(Ok(Tended { written_back_pages, ..Tended::default() }));
            note(failed.map_or(Ok(Tended::default()), Err));
        }
        failed.map_or(Ok(tended), Err)
    }

    /// Compresses pages anew by codec `codec` (its number in
    /// [`Config::codecs`](crate::Config::codecs)), if that makes them shorter. Looks at every key,
    /// and compresses each page selected that was not tried with this codec or a later one.
    ///
    /// # Errors
    /// [`StoreError::NoCodec`], or the error of the first page that failed. If that page is
    /// damaged, the others are still compressed.
    pub fn recompress(&self, codec: usize, select: Select) -> Result<Tended, StoreError> {
        let codecs = self.config.codecs.len();
        if codec >= codecs {
            return Err(StoreError::NoCodec { codec, codecs });
        }
        let codec = CodecId(codec as u8);
        let pages = self.for_each(select, |key, slot| self.recompress_slot(key, slot, codec))?;
        Ok(Tended { recompressed_pages: pages, ..Tended::default() })
    }

    /// Writes pages to the file and frees their memory. Looks at every key, and writes each page
    /// selected.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::FileFull`], or the error of the first page that
    /// failed. If that page is damaged, the others are still written.
    pub fn write_back(&self, select: Select) -> Result<Tended, StoreError> {
        let pages = self.for_each(select, |key, slot| self.write_back_slot(key, slot))?;
        Ok(Tended { written_back_pages: pages, ..Tended::default() })
    }

    /// Compacts the pool, as [`Pool::compact`]: O(objects). Returns the bytes given back.
    pub fn compact(&self) -> usize {
        let bytes = self.pool().compact();
        self.counters.compacted_bytes.fetch_add(bytes as u64, Relaxed);
        bytes
    }

    /// Does a part of a compaction, if there is something to do.
    pub(crate) fn compact_some(&self) -> Option<usize> {
        let bytes = self.pool().compact_some()?;
        self.counters.compacted_bytes.fetch_add(bytes as u64, Relaxed);
        Some(bytes)
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
                // The object may be one that a stronger codec made.
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

    pub(crate) fn write_back_slot(&self, key: usize, slot: &mut Slot) -> Result<bool, StoreError> {
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

    /// Replaces the slot's content: by the same page elsewhere, or by no page.
    pub(crate) fn replace(&self, slot: &mut Slot, new: Content) {
        self.counters.change(&slot.content, &new);
        let old = core::mem::replace(&mut slot.content, new);
        self.end(old);
    }

    /// Calls `act` with each selected page that takes memory, under its slot's lock. `act` returns
    /// whether it did something. Returns for how many pages it did.
    fn for_each(
        &self,
        select: Select,
        mut act: impl FnMut(usize, &mut Slot) -> Result<bool, StoreError>,
    ) -> Result<usize, StoreError> {
        let now_s = self.now_s.load(Relaxed);
        let whole_s =
            |after: Duration| after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
        let (mut done, mut damaged) = (0, None);
        for (key, slot) in self.slots.iter().enumerate() {
            let mut slot = lock(slot);
            let is_meant = match select {
                Select::All => true,
                Select::Idle(after) => {
                    u64::from(now_s.saturating_sub(slot.touched_s)) >= whole_s(after)
                }
                Select::Raw => slot.content.is_raw(),
            };
            if !is_meant || !slot.content.is_in_memory() {
                continue;
            }
            match act(key, &mut slot) {
                Ok(is_done) => done += usize::from(is_done),
                // Nobody can read this page any more, and the pages after it can still be handled.
                Err(error @ StoreError::Damaged { .. }) => damaged = damaged.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(done), Err)
    }
}
