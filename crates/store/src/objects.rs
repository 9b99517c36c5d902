//! A pool's objects as owned values: the only file of the crate with `unsafe`.
//!
//! Invariants
//! 1. Only [`Objects::put`] makes an [`Object`], with its content, and only [`Objects::free`] ends
//!    it. An [`Object`] is not cloned, so it names a live object as long as it exists.
//! 2. Nobody writes to an object after `put` has returned it.
//! 3. A store has one `Objects`, and its objects never leave that store.

use hectare_pool::{Handle, Pool, PoolError, PoolStats};

use crate::buffer::with_buffer;

/// A live object of the store's pool.
#[derive(Debug)]
pub(crate) struct Object(Handle);

/// A pool, through which objects are owned.
#[derive(Debug)]
pub(crate) struct Objects<P> {
    pool: P,
}

impl<P: Pool> Objects<P> {
    pub(crate) const fn new(pool: P) -> Self {
        Self { pool }
    }

    pub(crate) const fn pool(&self) -> &P {
        &self.pool
    }

    pub(crate) fn max_size_bytes(&self) -> usize {
        self.pool.max_size_bytes()
    }

    pub(crate) fn put(&self, data: &[u8]) -> Result<Object, PoolError> {
        let handle = self.pool.alloc(data.len())?;
        // SAFETY: live, of that length, and this thread's alone: it was allocated just now.
        unsafe { self.pool.write(handle, data) };
        Ok(Object(handle))
    }

    /// Calls `reader` with the object's bytes. `reader` must not itself read or free an object.
    pub(crate) fn read<R>(
        &self,
        object: &Object,
        reader: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, PoolError> {
        let (mut reader, mut result) = (Some(reader), None);
        let mut once = |bytes: &[u8]| {
            if let Some(reader) = reader.take() {
                result = Some(reader(bytes));
            }
        };
        with_buffer(self.pool.max_size_bytes(), |bounce| {
            // SAFETY: live and not being written, by invariants 1 and 2.
            unsafe { self.pool.read(object.0, bounce, &mut once) };
        })?;
        Ok(result.expect("a pool calls its reader once"))
    }

    pub(crate) fn free(&self, object: Object) {
        // SAFETY: live, and by value: nobody names it any more (invariants 1 and 3).
        unsafe { self.pool.free(object.0) };
    }

    pub(crate) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }
}
