//! The file that pages are written back to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hectare_pool::PoolError;

use crate::StoreError;

/// A page of the file, by its number. It belongs to one slot until it is freed.
#[derive(Debug)]
pub(crate) struct Block(u32);

#[derive(Debug)]
pub(crate) struct Backing {
    file: File,
    page_bytes: usize,
    most_blocks: u32,
    blocks: Mutex<Blocks>,
    reads: AtomicU64,
    writes: AtomicU64,
    failed_reads: AtomicU64,
    failed_writes: AtomicU64,
}

#[derive(Debug, Default)]
struct Blocks {
    /// It has capacity for all blocks there are, so freeing one allocates nothing.
    free: Vec<u32>,
    end: u32,
}

/// How much the file is and was used, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) held: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) failed_reads: u64,
    pub(crate) failed_writes: u64,
}

impl Backing {
    pub(crate) fn new(file: File, page_bytes: usize, most_pages: usize) -> Self {
        Self {
            file,
            page_bytes,
            most_blocks: most_pages.try_into().unwrap_or(u32::MAX),
            blocks: Mutex::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            failed_reads: AtomicU64::new(0),
            failed_writes: AtomicU64::new(0),
        }
    }

    pub(crate) fn write(&self, page: &[u8]) -> Result<Block, StoreError> {
        let block = self.take()?;
        if let Err(error) = self.file.write_all_at(page, self.offset(&block)) {
            self.failed_writes.fetch_add(1, Relaxed);
            self.free(block);
            return Err(error.into());
        }
        self.writes.fetch_add(1, Relaxed);
        Ok(block)
    }

    pub(crate) fn read(&self, block: &Block, page: &mut [u8]) -> Result<(), StoreError> {
        if let Err(error) = self.file.read_exact_at(page, self.offset(block)) {
            self.failed_reads.fetch_add(1, Relaxed);
            return Err(error.into());
        }
        self.reads.fetch_add(1, Relaxed);
        Ok(())
    }

    pub(crate) fn free(&self, block: Block) {
        self.lock().free.push(block.0);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let held = {
            let blocks = self.lock();
            u64::from(blocks.end) - blocks.free.len() as u64
        };
        Traffic {
            held,
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            failed_reads: self.failed_reads.load(Relaxed),
            failed_writes: self.failed_writes.load(Relaxed),
        }
    }

    fn take(&self) -> Result<Block, StoreError> {
        let mut blocks = self.lock();
        if let Some(block) = blocks.free.pop() {
            return Ok(Block(block));
        }
        if blocks.end == self.most_blocks {
            return Err(StoreError::FileFull { pages: blocks.end as usize });
        }
        let blocks_then = blocks.end as usize + 1;
        blocks.free.try_reserve(blocks_then).map_err(|_| PoolError::OutOfMemory)?;
        blocks.end += 1;
        Ok(Block(blocks.end - 1))
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        // Nothing that can panic happens while the lock is held.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offset(&self, block: &Block) -> u64 {
        u64::from(block.0) * self.page_bytes as u64
    }
}
