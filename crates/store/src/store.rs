//! Pages by key: put, get, remove.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hectare_pool::{Pool, PoolError};
use xxhash_rust::xxh3::xxh3_64;

use crate::StoreError;
use crate::backing::Backing;
use crate::buffer::with_buffer;
use crate::config::{Config, Settings};
use crate::dedup::Dedup;
use crate::objects::Objects;
use crate::relief::{Memory, Search};
use crate::slot::{CodecId, Content, Packed, Shared, Slot};
use crate::state::{PageKind, PageState};
use crate::stats::{Counters, Stats};

/// Puts between two looks at the pool's footprint while the limit is far off.
const PUTS_A_LOOK: u32 = 16;
/// Limits below this are checked with every put: sixteen puts could exceed an eighth of them.
const SMALL_LIMIT_BYTES: usize = 16 << 20;

/// A compressed page store over a pool.
///
/// Several threads may call every method at once. Pages are copied in and out. If two threads put
/// two pages under one key at the same time, one of the pages is stored.
#[derive(Debug)]
pub struct Store<P: Pool> {
    pub(crate) objects: Objects<P>,
    pub(crate) slots: Box<[Mutex<Slot>]>,
    pub(crate) config: Settings,
    pub(crate) counters: Counters,
    pub(crate) dedup: Option<Dedup>,
    pub(crate) backing: Option<Backing>,
    pub(crate) begun: Instant,
    /// The clock when the store was last tended.
    pub(crate) now_s: AtomicU32,
    pub(crate) search: Search,
    /// Puts until the store looks at the footprint again.
    until_look: AtomicU32,
    /// The bytes of the pool that the last compaction left unused. The thread that makes room holds
    /// the lock.
    pub(crate) relieving: Mutex<usize>,
}

const _: () = assert!(size_of::<Mutex<Slot>>() <= 48, "as Config::pages says");

impl<P: Pool> Store<P> {
    /// An empty store over `pool`, which belongs to it alone. O([`Config::pages`]).
    ///
    /// # Errors
    /// [`StoreError::Config`], [`StoreError::NoTable`] or [`StoreError::BadFile`].
    pub fn new(pool: P, config: Config) -> Result<Self, StoreError> {
        config.check()?;
        let Config { pages, page_bytes, codecs, raw_from_bytes, limit_bytes, .. } = config;
        let backing =
            config.backing.map(|file| Backing::new(file, page_bytes, config.backing_pages));
        let mut slots = Vec::new();
        slots.try_reserve_exact(pages).map_err(|_| StoreError::NoTable { pages })?;
        slots.extend((0..pages).map(|_| Mutex::default()));
        Ok(Self {
            objects: Objects::new(pool),
            slots: slots.into(),
            config: Settings {
                page_bytes,
                codecs,
                raw_from_bytes,
                limit_bytes,
                evict: config.evict,
                policy: config.policy,
            },
            counters: Counters::default(),
            dedup: config.dedup.then(Dedup::new),
            backing,
            begun: Instant::now(),
            now_s: AtomicU32::new(0),
            search: Search::new(),
            until_look: AtomicU32::new(0),
            relieving: Mutex::default(),
        })
    }

    /// The pool, for its own statistics.
    pub const fn pool(&self) -> &P {
        self.objects.pool()
    }

    /// Stores a page under `key`, in place of the page that was there.
    ///
    /// Time: that of hashing and compressing a page and of an [`alloc`](Pool::alloc) of the pool,
    /// whatever the number of pages. With [`Config::dedup`] a page with the same hash as another is
    /// compared with it instead, which inflates the other. Near [`Config::limit_bytes`] a put also
    /// makes some room, in proportion to what it stores. A put that still exceeds the limit takes
    /// O(pages), and the time of a [`compact`](Pool::compact) of the pool.
    ///
    /// # Errors
    /// [`StoreError`]; the page stored under the key before is then still there. Near the limit
    /// pages are written back or evicted, old ones first. The page stored under the key can be
    /// among those that [`Evict`](crate::Evict) takes.
    pub fn put(&self, key: usize, page: &[u8]) -> Result<(), StoreError> {
        let slot = self.slot(key)?;
        self.check_size(page)?;
        let mut new = Slot { touched_s: self.now_s.load(Relaxed), ..Slot::default() };
        if let Some(word) = filling_word(page) {
            new.content = Content::Filled(word);
        } else {
            let hash = xxh3_64(page);
            new.checksum = hash as u32;
            let unplaced = Unplaced { store: self, content: self.pack(page, hash)? };
            self.keep_limit(&unplaced.content)?;
            new.content = unplaced.place();
        }
        let old = self.exchange(slot, new);
        self.end(old);
        Ok(())
    }

    /// Copies the page of `key` to `page`. False if there is none; `page` is then unchanged.
    ///
    /// Time: that of inflating a page, or reading it from the file, and of hashing it, whatever the
    /// number of pages.
    ///
    /// # Errors
    /// [`StoreError::Key`], [`StoreError::PageSize`], and [`StoreError::Pool`] if there is no
    /// memory for a buffer of the thread. [`StoreError::Damaged`] if the content is not what was
    /// put, [`StoreError::Io`] if it is in the file and cannot be read; the content of `page` is
    /// then arbitrary.
    pub fn get(&self, key: usize, page: &mut [u8]) -> Result<bool, StoreError> {
        let slot = self.slot(key)?;
        self.check_size(page)?;
        let mut slot = lock(slot);
        if matches!(slot.content, Content::Absent) {
            return Ok(false);
        }
        slot.touched_s = self.now_s.load(Relaxed);
        self.unpack(key, &slot, page)?;
        Ok(true)
    }

    /// Forgets the page of `key`. False if there is none.
    ///
    /// Time: constant, plus a [`free`](Pool::free) of the pool.
    ///
    /// # Errors
    /// [`StoreError::Key`].
    pub fn remove(&self, key: usize) -> Result<bool, StoreError> {
        let old = self.exchange(self.slot(key)?, Slot::default());
        let was_there = !matches!(old, Content::Absent);
        self.end(old);
        Ok(was_there)
    }

    /// The account. O(1), plus the time for the pool's own account.
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        let pages = counters.pages.load(Relaxed);
        let packed_pages = counters.packed.load(Relaxed);
        let traffic = self.backing.as_ref().map(Backing::traffic).unwrap_or_default();
        let pool_bytes = self.memory().bytes;
        let plain_bytes = counters.plain.load(Relaxed) * self.config.page_bytes;
        Stats {
            pages,
            original_bytes: pages * self.config.page_bytes,
            compressed_bytes: counters.compressed_bytes.load(Relaxed) + plain_bytes,
            pool_bytes,
            table_bytes: size_of_val(&*self.slots) + self.dedup.as_ref().map_or(0, Dedup::bytes),
            limit_bytes: self.config.limit_bytes,
            most_pool_bytes: counters.most_memory_bytes.load(Relaxed),
            same_filled_pages: counters.same_filled.load(Relaxed),
            // An object just made may have no page yet.
            sharing_pages: packed_pages.saturating_sub(counters.objects.load(Relaxed)),
            raw_pages: counters.raw.load(Relaxed),
            raw_pages_ever: counters.raw_ever.load(Relaxed),
            compacted_pages: counters.compacted_bytes.load(Relaxed) / self.config.page_bytes as u64,
            recompressed_pages: counters.recompressed.load(Relaxed),
            written_back_pages: counters.written_back.load(Relaxed),
            evicted_pages: counters.evicted.load(Relaxed),
            file_pages: traffic.held,
            file_reads: traffic.reads,
            failed_reads: traffic.failed_reads,
            failed_writes: traffic.failed_writes,
        }
    }

    /// Calls `each` with the state of every stored page, in the order of the keys. `each` must not
    /// use the store. O([`Config::pages`]).
    pub fn for_each_page(&self, mut each: impl FnMut(PageState)) {
        let now_s = self.now_s.load(Relaxed);
        for (key, slot) in self.slots.iter().enumerate() {
            let slot = lock(slot);
            let kind = match &slot.content {
                Content::Absent => continue,
                Content::Filled(_) => PageKind::SameFilled,
                Content::Backed(_) => PageKind::WrittenBack,
                content => match content.packed().filter(|packed| packed.codec != CodecId::RAW) {
                    None => PageKind::Raw,
                    Some(packed) => PageKind::Compressed {
                        bytes: packed.bytes as usize,
                        codec: usize::from(packed.codec.0),
                        shared: matches!(content, Content::Shared(it) if Arc::strong_count(it) > 1),
                    },
                },
            };
            let codec = match kind {
                PageKind::Compressed { codec, .. } => codec + 1,
                _ => 0,
            };
            each(PageState {
                key,
                touched: Duration::from_secs(slot.touched_s.into()),
                kind,
                is_idle: slot.touched_s < now_s,
                is_incompressible: usize::from(slot.tried_codecs) > codec,
            });
        }
    }

    pub(crate) fn slot(&self, key: usize) -> Result<&Mutex<Slot>, StoreError> {
        self.slots.get(key).ok_or(StoreError::Key { key, pages: self.slots.len() })
    }

    /// Replaces a slot's state. Returns the content that it had.
    fn exchange(&self, slot: &Mutex<Slot>, new: Slot) -> Content {
        let mut slot = lock(slot);
        self.counters.change(&slot.content, &new.content);
        core::mem::replace(&mut *slot, new).content
    }

    fn check_size(&self, page: &[u8]) -> Result<(), StoreError> {
        let (bytes, page_bytes) = (page.len(), self.config.page_bytes);
        if bytes == page_bytes { Ok(()) } else { Err(StoreError::PageSize { bytes, page_bytes }) }
    }

    /// Stores a page that no single word fills, somewhere in memory.
    fn pack(&self, page: &[u8], hash: u64) -> Result<Content, StoreError> {
        if let Some(known) = self.known(hash, page) {
            return Ok(Content::Shared(known));
        }
        match self.compress(page, CodecId(0), self.config.raw_from_bytes)? {
            Some(packed) => Ok(self.own_or_share(packed, hash)),
            None if page.len() > self.objects.max_size_bytes() => plain(page),
            None => {
                let object = self.objects.put(page)?;
                let bytes = page.len() as u32;
                let packed = Packed { object, bytes, codec: CodecId::RAW };
                self.counters.object_begins(&packed);
                Ok(self.own_or_share(packed, hash))
            }
        }
    }

    /// The object that has this content already.
    pub(crate) fn known(&self, hash: u64, page: &[u8]) -> Option<Arc<Shared>> {
        let known = self.dedup.as_ref()?.find(hash)?;
        // In no slot yet: others may end their shares during the comparison, and then this share is
        // the last.
        let known = Unplaced { store: self, content: Content::Shared(known) };
        let is_same = with_buffer(page.len(), |other| match known.content.packed() {
            Some(packed) => Ok(self.unpack_object(packed, other)? && other == page),
            None => Ok(false),
        });
        // If there is no memory for the comparison, the page is stored anew, if there is memory for
        // that.
        if let Ok(Ok::<_, PoolError>(true)) = is_same
            && let Content::Shared(known) = known.place()
        {
            return Some(known);
        }
        None
    }

    pub(crate) fn own_or_share(&self, packed: Packed, hash: u64) -> Content {
        let Some(dedup) = &self.dedup else { return Content::Own(packed) };
        let shared = Arc::new(Shared { packed, hash });
        dedup.insert(&shared);
        Content::Shared(shared)
    }

    /// Compresses the page into an object of less than `below_bytes`, if it becomes that short.
    pub(crate) fn compress(
        &self,
        page: &[u8],
        codec: CodecId,
        below_bytes: usize,
    ) -> Result<Option<Packed>, PoolError> {
        let compressor = &self.config.codecs[usize::from(codec.0)];
        with_buffer(compressor.bound_bytes(page.len()), |out| {
            let most_bytes = self.objects.max_size_bytes();
            let bytes = compressor.compress(page, out);
            // Every object has at least one byte.
            let is_object =
                |&bytes: &usize| (1..below_bytes).contains(&bytes) && bytes <= most_bytes;
            let Some(bytes) = bytes.filter(is_object) else {
                return Ok(None);
            };
            let object = self.objects.put(&out[..bytes])?;
            let packed = Packed { object, bytes: bytes as u32, codec };
            self.counters.object_begins(&packed);
            Ok(Some(packed))
        })?
    }

    /// Unpacks the page of a slot that has one.
    pub(crate) fn unpack(
        &self,
        key: usize,
        slot: &Slot,
        page: &mut [u8],
    ) -> Result<(), StoreError> {
        let is_whole = match &slot.content {
            Content::Absent => false,
            Content::Filled(word) => {
                page.chunks_exact_mut(8)
                    .for_each(|chunk| chunk.copy_from_slice(&word.to_ne_bytes()));
                return Ok(());
            }
            Content::Own(packed) => self.unpack_object(packed, page)?,
            Content::Shared(shared) => self.unpack_object(&shared.packed, page)?,
            Content::Plain(plain) => {
                page.copy_from_slice(plain);
                true
            }
            Content::Backed(block) => {
                let backing = self.backing.as_ref().ok_or(StoreError::NoFile)?;
                backing.read(block, page)?;
                true
            }
        };
        if is_whole && xxh3_64(page) as u32 == slot.checksum {
            Ok(())
        } else {
            Err(StoreError::Damaged { key })
        }
    }

    fn unpack_object(&self, packed: &Packed, page: &mut [u8]) -> Result<bool, PoolError> {
        self.objects.read(&packed.object, |data| {
            if packed.codec == CodecId::RAW {
                page.copy_from_slice(data);
                return true;
            }
            self.config.codecs[usize::from(packed.codec.0)].decompress(data, page)
        })
    }

    /// Ends a content that no slot has any more.
    pub(crate) fn end(&self, content: Content) {
        let packed = match (content, &self.dedup, &self.backing) {
            (Content::Own(packed), ..) => packed,
            (Content::Shared(shared), Some(dedup), _) => match dedup.release(shared) {
                Some(packed) => packed,
                None => return,
            },
            (Content::Backed(block), _, Some(backing)) => return backing.free(block),
            _ => return,
        };
        self.counters.object_ends(&packed);
        self.objects.free(packed.object);
    }

    /// What counts against the limit.
    pub(crate) fn memory(&self) -> Memory {
        let pool = self.objects.stats();
        let plain_bytes = self.counters.plain.load(Relaxed) * self.config.page_bytes;
        let bytes = pool.footprint_bytes() + plain_bytes;
        self.counters.most_memory_bytes.fetch_max(bytes, Relaxed);
        Memory { bytes, unused_bytes: pool.footprint_bytes() - pool.stored_bytes }
    }

    /// Makes room if the limit is exceeded with `new`, which is in no slot yet. Every 16th put
    /// looks at the footprint; every put does while the limit is small or less than an eighth away.
    fn keep_limit(&self, new: &Content) -> Result<(), StoreError> {
        let was = self.until_look.fetch_sub(1, Relaxed);
        if (1..=PUTS_A_LOOK).contains(&was) {
            return Ok(());
        }
        let limit_bytes = self.config.limit_bytes;
        // The pool's footprint includes what the pool holds.
        let beside_bytes = if let Content::Plain(page) = new { page.len() } else { 0 };
        let memory = self.memory();
        let bytes = memory.bytes + beside_bytes;
        let is_far = bytes < limit_bytes / 8 * 7 && limit_bytes >= SMALL_LIMIT_BYTES;
        let puts = if limit_bytes == 0 || is_far { PUTS_A_LOOK - 1 } else { 0 };
        self.until_look.store(puts, Relaxed);
        if limit_bytes == 0 {
            return Ok(());
        }
        self.make_way(bytes, memory.unused_bytes, new.own_bytes());
        let most_bytes = limit_bytes.saturating_sub(beside_bytes);
        if bytes <= limit_bytes || self.relieve(most_bytes).fits {
            return Ok(());
        }
        Err(StoreError::Limit { limit_bytes })
    }
}

impl<P: Pool> Drop for Store<P> {
    /// Ends what is stored: a borrowed pool, or one that knows its pages only by their objects,
    /// would keep it. O(pages).
    fn drop(&mut self) {
        for slot in core::mem::take(&mut self.slots) {
            self.end(slot.into_inner().unwrap_or_else(PoisonError::into_inner).content);
        }
    }
}

/// A content that is in no slot yet. It ends unless a slot gets it, even if a codec or an
/// [`Evict`](crate::Evict) panics while room is made for it.
struct Unplaced<'a, P: Pool> {
    store: &'a Store<P>,
    content: Content,
}

impl<P: Pool> Unplaced<'_, P> {
    /// The content, for a slot.
    fn place(mut self) -> Content {
        core::mem::take(&mut self.content)
    }
}

impl<P: Pool> Drop for Unplaced<'_, P> {
    fn drop(&mut self) {
        self.store.end(core::mem::take(&mut self.content));
    }
}

/// A raw page beside the pool.
fn plain(page: &[u8]) -> Result<Content, StoreError> {
    let mut plain = Vec::new();
    plain.try_reserve_exact(page.len()).map_err(|_| PoolError::OutOfMemory)?;
    plain.extend_from_slice(page);
    Ok(Content::Plain(plain.into()))
}

/// The word that fills a page, if one does.
fn filling_word(page: &[u8]) -> Option<u64> {
    let (first, rest) = page.split_first_chunk::<8>()?;
    (rest == &page[..rest.len()]).then(|| u64::from_ne_bytes(*first))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A slot is replaced as a whole, so a panicking codec leaves it as it was.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
