//! Zspages and their numbers: taken from the source, and given back to it.

use core::ptr::NonNull;

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::Zs;
use super::class::ZspageId;
use super::geometry::Geometry;
use crate::PoolError;

/// The numbers of zspages, and counts of what was ever taken for them.
#[derive(Debug)]
pub(super) struct Ids {
    used: u32,
    free: Option<ZspageId>,
    pub(super) pages_taken: u64,
    pub(super) pages_returned: u64,
}

impl Ids {
    pub(super) const fn new() -> Self {
        Self { used: 0, free: None, pages_taken: 0, pages_returned: 0 }
    }
}

impl<S: PageSource, P: Park> Zs<S, P> {
    /// Takes memory for one more zspage of this shape. Called without a class's lock, since asking
    /// the system for memory is slow.
    #[cold]
    pub(super) fn take_zspage(
        &self,
        geometry: Geometry,
    ) -> Result<(ZspageId, NonNull<u8>), PoolError> {
        let bytes = geometry.pages * self.page_bytes;
        let base = self.source.get(bytes, self.page_bytes).map_err(|_| PoolError::OutOfMemory)?;
        match self.take_id(geometry.pages) {
            Ok(id) => Ok((id, base)),
            Err(error) => {
                // SAFETY: taken just now, seen by no other thread.
                unsafe { self.source.release(base, bytes) };
                Err(error)
            }
        }
    }

    fn take_id(&self, pages: usize) -> Result<ZspageId, PoolError> {
        let mut ids = self.ids.lock();
        let id = match ids.free {
            Some(id) => {
                ids.free = self.zspages().get(id).next();
                id
            }
            None => {
                if ids.used as usize == self.zspages.end() {
                    self.zspages.grow(&self.source).map_err(|_| PoolError::OutOfMemory)?;
                }
                let id = ids.used;
                ids.used = id.checked_add(1).ok_or(PoolError::Full)?;
                ZspageId(id)
            }
        };
        ids.pages_taken += pages as u64;
        Ok(id)
    }

    /// Gives back the memory of a zspage that is empty and in no list.
    #[cold]
    pub(super) fn give_back(&self, id: ZspageId, geometry: Geometry) {
        let zspages = self.zspages();
        let zspage = zspages.get(id);
        if let Some(base) = zspage.base() {
            // SAFETY: taken in `take_zspage` with this length; no object of it is in use.
            unsafe { self.source.release(base, geometry.pages * self.page_bytes) };
        }
        zspage.set_base(None);
        let mut ids = self.ids.lock();
        zspage.set_next(ids.free);
        ids.free = Some(id);
        ids.pages_returned += geometry.pages as u64;
    }
}
