//! Codecs: what compresses pages.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use lz4::block;
use zstd::bulk::{Compressor, Decompressor};

/// A way to compress pages. Several threads use it at once.
pub trait Codec: Send + Sync {
    /// A short name for tables.
    fn name(&self) -> &str;

    /// The most bytes that a page of `page_bytes` can become.
    fn bound_bytes(&self, page_bytes: usize) -> usize;

    /// Compresses `page` to the start of `out`, which has [`bound_bytes`](Self::bound_bytes).
    /// Returns how many bytes the result has, or `None` if the page cannot be compressed. The store
    /// keeps the page raw then, or if it becomes zero bytes.
    fn compress(&self, page: &[u8], out: &mut [u8]) -> Option<usize>;

    /// Fills `page` with what [`compress`](Self::compress) turned into `data`. False if `data` is
    /// no such result; the content of `page` is then arbitrary.
    fn decompress(&self, data: &[u8], page: &mut [u8]) -> bool;
}

impl fmt::Debug for dyn Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// LZ4: fast both ways. This is the C library's implementation, which encodes a tenth and decodes a
/// quarter faster than a safe one, and which the kernel's zram uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lz4;

impl Codec for Lz4 {
    fn name(&self) -> &str {
        "lz4"
    }

    fn bound_bytes(&self, page_bytes: usize) -> usize {
        block::compress_bound(page_bytes).unwrap_or(0)
    }

    fn compress(&self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        block::compress_to_buffer(page, None, false, out).ok()
    }

    fn decompress(&self, data: &[u8], page: &mut [u8]) -> bool {
        let size = page.len().try_into().ok();
        block::decompress_to_buffer(data, size, page).is_ok_and(|bytes| bytes == page.len())
    }
}

/// Zstandard at a given level, with a dictionary if one is given: denser than LZ4, and slower.
pub struct Zstd {
    name: String,
    level: i32,
    dictionary: Vec<u8>,
    /// Contexts that no thread uses now. A thread that finds none makes one.
    idle: Mutex<Vec<Context>>,
}

struct Context {
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
}

impl Zstd {
    /// Level `level`: 1 … 22, or negative for faster ones (out-of-range levels are clamped).
    #[must_use]
    pub fn new(level: i32) -> Self {
        Self::with_dictionary(level, Vec::new())
    }

    /// The same with a dictionary: content that pages are likely to have in common, or what
    /// `zstd --train` made of samples. An empty dictionary counts as none.
    #[must_use]
    pub fn with_dictionary(level: i32, dictionary: Vec<u8>) -> Self {
        let with = if dictionary.is_empty() { "" } else { "+dictionary" };
        let name = format!("zstd-{level}{with}");
        Self { name, level, dictionary, idle: Mutex::new(Vec::new()) }
    }

    fn context(&self) -> Option<Context> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.or_else(|| self.new_context().ok())
    }

    #[cold]
    fn new_context(&self) -> std::io::Result<Context> {
        let mut compressor = Compressor::with_dictionary(self.level, &self.dictionary)?;
        // The page's size and dictionary are known, so the data need not contain them.
        compressor.include_contentsize(false)?;
        compressor.include_dictid(false)?;
        let decompressor = Decompressor::with_dictionary(&self.dictionary)?;
        Ok(Context { compressor, decompressor })
    }

    fn with_context<R>(&self, act: impl FnOnce(&mut Context) -> R) -> Option<R> {
        let mut context = self.context()?;
        let result = act(&mut context);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // If there is no memory to keep it, it is dropped.
        if idle.try_reserve(1).is_ok() {
            idle.push(context);
        }
        Some(result)
    }
}

impl fmt::Debug for Zstd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Codec for Zstd {
    fn name(&self) -> &str {
        &self.name
    }

    fn bound_bytes(&self, page_bytes: usize) -> usize {
        zstd::zstd_safe::compress_bound(page_bytes)
    }

    fn compress(&self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        self.with_context(|context| context.compressor.compress_to_buffer(page, out).ok())?
    }

    fn decompress(&self, data: &[u8], page: &mut [u8]) -> bool {
        let filled = self.with_context(|context| {
            context.decompressor.decompress_to_buffer(data, &mut *page).ok()
        });
        filled == Some(Some(page.len()))
    }
}
