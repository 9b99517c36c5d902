//! What a store is made with.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::StoreError;
use crate::codec::{Codec, Lz4};
use crate::tend::Policy;

/// What a [`Store`](crate::Store) is made with.
#[derive(Debug)]
pub struct Config {
    /// Keys go from 0 to this. A key costs 48 bytes whether it is used or not.
    pub pages: usize,
    /// The size of every page: a multiple of 8, 64 to 65536. What the codecs leave longer than the
    /// pool's longest object, mostly a page of the system, is kept raw beside the pool.
    pub page_bytes: usize,
    /// What compresses: the first all that is put, the others what is recompressed. 1 to 8.
    pub codecs: Vec<Box<dyn Codec>>,
    /// A page that does not become shorter than this is kept raw.
    pub raw_from_bytes: usize,
    /// Whether pages with the same content are stored once. It costs some 80 bytes for each
    /// content.
    pub dedup: bool,
    /// The most that the pool may take, in bytes, with raw pages beside it; 0: no limit. The slots and the
    /// index of contents are not in it ([`Stats::table_bytes`](crate::Stats::table_bytes)), nor each thread's
    /// buffers. It is looked at with every 16th put, from 16 MiB on, and passed by 0.4 % at most as measured with one thread (64 MiB +0.35 %,
    /// 256 MiB +0.31 %, 1 and 8 MiB by less than a page). What it took for a page that was refused
    /// it keeps for the next one. After a refusal there is room again when compaction is worth it: when
    /// about a sixty-fourth has been removed.
    pub limit_bytes: usize,
    /// A file, or device, that pages are written back to, open for reading and writing; not for
    /// appending, by which each write would go to its end. It is the store's alone, which begins to
    /// write at its start.
    pub backing: Option<File>,
    /// How many pages the file may hold.
    pub backing_pages: usize,
    /// Who takes pages that the limit has no room for, where there is no file or it is full.
    pub evict: Option<Evict>,
    /// What [`Store::tend`](crate::Store::tend) does.
    pub policy: Policy,
}

/// Takes pages over when room must be made: a cache drops them, a pager writes them where it likes.
///
/// It is given the key and the page, and says whether it took it: then the store has it no longer.
/// It is called under the page's lock, by the thread whose put needs the room or that tends the
/// store, for one page at a time, and must not use the store.
pub struct Evict(Box<Taker>);

type Taker = dyn Fn(usize, &[u8]) -> bool + Send + Sync;

impl Evict {
    /// One that calls `take`.
    pub fn new(take: impl Fn(usize, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Box::new(take))
    }

    pub(crate) fn takes(&self, key: usize, page: &[u8]) -> bool {
        (self.0)(key, page)
    }
}

impl fmt::Debug for Evict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evict").finish_non_exhaustive()
    }
}

/// Whether the file can be read and written at any place; told by doing neither.
fn is_open_for_both(file: &File) -> bool {
    /// "Bad file descriptor", "Illegal seek"; what else goes wrong here may go well later.
    const REFUSALS: [i32; 2] = [9, 29];
    [file.read_at(&mut [], 0), file.write_at(&[], 0)].iter().all(|result| match result {
        Ok(_) => true,
        Err(error) => !error.raw_os_error().is_some_and(|number| REFUSALS.contains(&number)),
    })
}

/// What saves less than a sixteenth is not worth the way back.
const fn raw_from_bytes(page_bytes: usize) -> usize {
    page_bytes / 16 * 15
}

impl Config {
    /// Pages of 4096 bytes, LZ4 alone, no limit, no file, contents not compared.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self {
            pages,
            page_bytes: 4096,
            codecs: vec![Box::new(Lz4)],
            raw_from_bytes: raw_from_bytes(4096),
            dedup: false,
            limit_bytes: 0,
            backing: None,
            backing_pages: usize::MAX,
            evict: None,
            policy: Policy::default(),
        }
    }

    /// The same for pages of `page_bytes`; from the same share of them on they are kept raw.
    #[must_use]
    pub fn of_page_bytes(self, page_bytes: usize) -> Self {
        Self { page_bytes, raw_from_bytes: raw_from_bytes(page_bytes), ..self }
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let is_size = (64..=1 << 16).contains(&self.page_bytes);
        if !is_size || !self.page_bytes.is_multiple_of(8) {
            return Err(StoreError::Config("page_bytes is a multiple of 8 from 64 to 65536"));
        }
        if !(1..=8).contains(&self.codecs.len()) {
            return Err(StoreError::Config("there are 1 to 8 codecs"));
        }
        if !(1..=self.page_bytes).contains(&self.raw_from_bytes) {
            return Err(StoreError::Config(
                "raw_from_bytes is 1 to page_bytes (Config::of_page_bytes sets both)",
            ));
        }
        if !self.backing.as_ref().is_none_or(is_open_for_both) {
            return Err(StoreError::Config(
                "the file (Config::backing) is not open for reading and writing, or cannot be sought in",
            ));
        }
        Ok(())
    }
}

/// What of a [`Config`] stays as it was given.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) page_bytes: usize,
    pub(crate) codecs: Vec<Box<dyn Codec>>,
    pub(crate) raw_from_bytes: usize,
    pub(crate) limit_bytes: usize,
    pub(crate) evict: Option<Evict>,
    pub(crate) policy: Policy,
}
