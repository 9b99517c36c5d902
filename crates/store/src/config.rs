//! The configuration of a store.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::StoreError;
use crate::codec::{Codec, Lz4};
use crate::tend::Policy;

/// The configuration of a [`Store`](crate::Store).
#[derive(Debug)]
pub struct Config {
    /// The number of keys, which start at 0. A key costs 48 bytes, used or not.
    pub pages: usize,
    /// The size of every page: a multiple of 8, 64 to 65536. If a page does not become short enough
    /// for the pool's longest object, usually a page of the system, it is kept raw beside the pool.
    pub page_bytes: usize,
    /// The codecs, 1 to 8: the first compresses every page that is put, the others recompress.
    pub codecs: Vec<Box<dyn Codec>>,
    /// A page that does not compress to less than this is kept raw; 1 to `page_bytes`. For another
    /// page size, set both by [`of_page_bytes`](Self::of_page_bytes).
    pub raw_from_bytes: usize,
    /// Whether pages with the same content are stored once, unless they are kept beside the pool.
    /// This costs some 80 bytes for each distinct content.
    pub dedup: bool,
    /// The most that the pool, together with the raw pages beside it, may take, in bytes; 0: no
    /// limit. Neither the slots and the index of contents
    /// ([`Stats::table_bytes`](crate::Stats::table_bytes)) nor each thread's buffers count.
    ///
    /// With a file or an [`Evict`], puts make room from 1/64 below the limit on, each a little, so
    /// that none has to wait for much. If that was not enough, one put goes on until the limit is
    /// kept. Without a file or an [`Evict`], a put that exceeds the limit is refused. Memory that
    /// the pool took for a refused page is kept for the next one. There is room again once
    /// compaction is worth it: when about a sixty-fourth has been removed. With a limit of 16 MiB
    /// or more, while an eighth is left, only every 16th put looks at the memory.
    pub limit_bytes: usize,
    /// A file or device that pages are written back to. It must be open for reading and writing,
    /// but not for appending, which would send each write to its end. It belongs to the store
    /// alone, which writes from its start on.
    pub backing: Option<File>,
    /// How many pages the file may hold.
    pub backing_pages: usize,
    /// What takes pages that do not fit the limit if there is no file, or the file does not take
    /// them: it is full, or its device fails.
    pub evict: Option<Evict>,
    /// What [`Store::tend`](crate::Store::tend) does.
    pub policy: Policy,
}

/// Takes over pages when room must be made: a cache drops them, a pager writes them wherever it
/// likes.
///
/// It is given the key and the page, and says whether it took the page; if so, the store no longer
/// has it. Each call is for one page, under the page's lock, by a thread whose put needs the room
/// or that tends the store. Several such threads may call it at once for different pages. It must
/// not use the store, nor take a lock that a caller of [`Store::put`](crate::Store::put) or
/// [`Store::tend`](crate::Store::tend) holds.
///
/// Once it was offered all pages and has taken none, a put without room is refused after it was
/// offered some hundred of them, until it takes one. Tending the store offers it all of them again.
pub struct Evict(Box<Taker>);

type Taker = dyn Fn(usize, &[u8]) -> bool + Send + Sync;

impl Evict {
    /// An [`Evict`] that calls `take`.
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

/// Finds out whether the file can be read and written at any offset, without doing either.
fn is_open_for_both(file: &File) -> bool {
    /// "Bad file descriptor" and "Illegal seek"; any other error here may not recur later.
    const REFUSALS: [i32; 2] = [9, 29];
    [file.read_at(&mut [], 0), file.write_at(&[], 0)].iter().all(|result| match result {
        Ok(_) => true,
        Err(error) => !error.raw_os_error().is_some_and(|number| REFUSALS.contains(&number)),
    })
}

fn in_range(
    name: &'static str,
    value: usize,
    (least, most): (usize, usize),
    multiple_of: usize,
) -> Result<(), StoreError> {
    if (least..=most).contains(&value) && value.is_multiple_of(multiple_of) {
        Ok(())
    } else {
        Err(StoreError::Config { name, value, least, most, multiple_of })
    }
}

/// To save less than a sixteenth is not worth the decompression.
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

    /// The same for pages of `page_bytes`, which are kept raw from the same fraction of their size
    /// on.
    #[must_use]
    pub fn of_page_bytes(self, page_bytes: usize) -> Self {
        Self { page_bytes, raw_from_bytes: raw_from_bytes(page_bytes), ..self }
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        in_range("page_bytes", self.page_bytes, (64, 1 << 16), 8)?;
        in_range("codecs.len()", self.codecs.len(), (1, 8), 1)?;
        in_range("raw_from_bytes", self.raw_from_bytes, (1, self.page_bytes), 1)?;
        if !self.backing.as_ref().is_none_or(is_open_for_both) {
            return Err(StoreError::BadFile);
        }
        Ok(())
    }
}

/// The parts of a [`Config`] that stay as given.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) page_bytes: usize,
    pub(crate) codecs: Vec<Box<dyn Codec>>,
    pub(crate) raw_from_bytes: usize,
    pub(crate) limit_bytes: usize,
    pub(crate) evict: Option<Evict>,
    pub(crate) policy: Policy,
}
