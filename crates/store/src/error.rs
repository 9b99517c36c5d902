//! Why the store refused.

use std::fmt;
use std::io;

use hectare_pool::PoolError;

/// Why a [`Store`](crate::Store) refused. Everything stored before is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreError {
    /// The key is not below [`Config::pages`](crate::Config::pages).
    Key {
        /// The key asked for.
        key: usize,
        /// How many keys there are.
        pages: usize,
    },
    /// The size of a page or buffer is not [`Config::page_bytes`](crate::Config::page_bytes).
    PageSize {
        /// The size given.
        bytes: usize,
        /// The size that every page has.
        page_bytes: usize,
    },
    /// A value of the configuration is out of its range.
    Config {
        /// The name of the value in [`Config`](crate::Config).
        name: &'static str,
        /// The value given.
        value: usize,
        /// The smallest value allowed.
        least: usize,
        /// The largest value allowed.
        most: usize,
        /// The value must be a multiple of this.
        multiple_of: usize,
    },
    /// There is no memory for the table of keys.
    NoTable {
        /// [`Config::pages`](crate::Config::pages).
        pages: usize,
    },
    /// The file for written-back pages is not open for reading and writing, or cannot be sought in.
    BadFile,
    /// The memory limit is reached, and not enough could be written back, evicted or compacted to
    /// stay within it.
    Limit {
        /// [`Config::limit_bytes`](crate::Config::limit_bytes).
        limit_bytes: usize,
    },
    /// The pool has no room. This error also reports "out of memory" for a page beside the pool or
    /// a buffer of the thread. Small allocations on the program's heap do not give this error:
    /// making a store, a thread's first call, each content with
    /// [`Config::dedup`](crate::Config::dedup), and what codecs allocate themselves
    /// ([`Zstd`](crate::Zstd): a context for each thread). If these fail, they abort or panic.
    Pool(PoolError),
    /// The stored content has changed since then, in memory or in the file.
    Damaged {
        /// The key whose content is lost.
        key: usize,
    },
    /// The file for written-back pages failed.
    Io(io::ErrorKind),
    /// The store was given no file to write pages back to.
    NoFile,
    /// The file for written-back pages holds as many pages as it may.
    FileFull {
        /// How many pages it may hold: [`Config::backing_pages`](crate::Config::backing_pages), at
        /// most 2^32 − 1.
        pages: usize,
    },
    /// The store has no codec of that number.
    NoCodec {
        /// The number asked for.
        codec: usize,
        /// How many codecs the store has; their numbers start at 0.
        codecs: usize,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Key { key, pages } => {
                write!(f, "key {key} is not below {pages}, the number of keys configured")
            }
            Self::PageSize { bytes, page_bytes } => {
                write!(f, "a page of {bytes} bytes was given; this store's have {page_bytes}")
            }
            Self::Config { name, value, least, most, multiple_of } => {
                write!(f, "Config::{name} is {value}; it can be ")?;
                match multiple_of {
                    1 => f.write_str("a number")?,
                    _ => write!(f, "a multiple of {multiple_of}")?,
                }
                write!(f, " from {least} to {most}")
            }
            Self::NoTable { pages } => {
                write!(f, "there is no memory for a table of {pages} keys (Config::pages)")
            }
            Self::BadFile => f.write_str(
                "the file for written-back pages (Config::backing) is not open for reading and \
                 writing, or cannot be sought in",
            ),
            Self::Limit { limit_bytes } => write!(
                f,
                "the limit of {limit_bytes} bytes is reached: remove pages, raise the limit, or \
                 give the store a file to write idle pages back to (Config::backing) or someone \
                 to take them (Config::evict)"
            ),
            Self::Pool(error) => write!(f, "the pool refused: {error}"),
            Self::Damaged { key } => {
                write!(f, "the content of page {key} has changed since it was stored")
            }
            Self::Io(kind) => write!(f, "the file for written-back pages failed: {kind}"),
            Self::NoFile => {
                f.write_str("there is no file to write pages back to (Config::backing)")
            }
            Self::FileFull { pages } => write!(
                f,
                "the file for written-back pages is full with {pages} of them: remove pages, or raise \
                 Config::backing_pages"
            ),
            Self::NoCodec { codec, codecs } => write!(
                f,
                "there is no codec {codec} to recompress with; this store has {codecs}, numbered \
                 from 0 (Config::codecs)"
            ),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<PoolError> for StoreError {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}
