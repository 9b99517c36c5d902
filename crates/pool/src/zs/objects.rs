//! The life of an object: how it is found, begun, read and ended.

use core::num::NonZeroU64;
use core::ptr::NonNull;

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::Zs;
use super::class::{State, ZspageId};
use crate::pin::PinCell64;
use crate::{Handle, NoObject, Pool, PoolError, PoolStats};

/// Handles keep the object's exact size above the number of its cell.
const SIZE_SHIFT: u32 = 40;
const OBJECT_BITS: u32 = 16;

#[inline]
pub(super) fn place_of(zspage: ZspageId, object: u16) -> u64 {
    u64::from(zspage.0) << OBJECT_BITS | u64::from(object)
}

/// The number of the handle's cell, and the object's size.
#[inline]
const fn open(handle: Handle) -> (u32, usize) {
    let raw = handle.to_raw().get();
    (raw as u32, (raw >> SIZE_SHIFT) as usize)
}

impl<S: PageSource, P: Park> Zs<S, P> {
    /// Where the object is. It cannot move until [`unmap`](Self::unmap). Another thread that maps
    /// it waits.
    ///
    /// # Errors
    /// [`NoObject`] as for [`try_read`](Pool::try_read).
    ///
    /// # Safety
    /// `handle` came from this pool's [`alloc`](Pool::alloc), this thread has not mapped the
    /// object, and no thread frees it before it is unmapped.
    pub unsafe fn map(&self, handle: Handle) -> Result<NonNull<[u8]>, NoObject> {
        let (cell, size_bytes) = open(handle);
        let place = self.cells.pin(cell).ok_or(NoObject { handle })?;
        let (id, object) = (ZspageId((place >> OBJECT_BITS) as u32), place as u16);
        let zspages = self.zspages();
        let zspage = zspages.get(id);
        let geometry = self.classes()[zspage.class()].geometry;
        let span = zspages.span(zspage, geometry);
        let offset = object as usize * geometry.size_bytes + geometry.header_bytes();
        // SAFETY: the object lies within the zspage.
        let start = unsafe { span.base().add(offset) };
        Ok(NonNull::slice_from_raw_parts(start, size_bytes))
    }

    /// Ends what [`map`](Self::map) began.
    ///
    /// # Safety
    /// This thread has mapped the object, and no longer uses what `map` returned.
    pub unsafe fn unmap(&self, handle: Handle) {
        self.cell(open(handle).0).unpin();
    }
}

// Average instructions with ten thousand objects (`hectare bench pools -- --callgrind --range R`):
// a free, an alloc and a write of 8 bytes together take 774 for 512..576, 760 for 3072..3136.
impl<S: PageSource + Sync, P: Park> Pool for Zs<S, P> {
    fn name(&self) -> &'static str {
        "zs"
    }

    fn max_size_bytes(&self) -> usize {
        self.page_bytes
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        if size_bytes == 0 || size_bytes > self.page_bytes {
            return Err(PoolError::Size { bytes: size_bytes, most_bytes: self.page_bytes });
        }
        let cell = self.cells.take(&self.source)?;
        let number = self.class_of(size_bytes);
        let class = &self.classes()[number];
        let (zspages, geometry) = (self.zspages(), class.geometry);
        let mut state = class.state.lock();
        let (zspage, object) = match state.take(&zspages, geometry, cell) {
            Some(taken) => taken,
            None => {
                drop(state);
                let (id, base) = match self.take_zspage(geometry) {
                    Ok(taken) => taken,
                    Err(error) => {
                        self.cells.put(cell);
                        return Err(error);
                    }
                };
                // The object goes to the new zspage even if another thread has made room in the
                // meantime: nobody else would give back a zspage that was never used.
                state = class.state.lock();
                (id, state.adopt(&zspages, id, base, number, geometry, cell))
            }
        };
        state.stored_bytes += size_bytes;
        self.cell(cell).move_to(place_of(zspage, object));
        let raw = (size_bytes as u64) << SIZE_SHIFT | u64::from(cell);
        Ok(Handle::new(NonZeroU64::new(raw).expect("a size is at least 1")))
    }

    // Out of line, `free` takes 12 instructions more.
    #[inline(always)]
    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject> {
        let (cell, size_bytes) = open(handle);
        let place = self.cells.pin(cell).ok_or(NoObject { handle })?;
        let (id, object) = (ZspageId((place >> OBJECT_BITS) as u32), place as u16);
        let zspages = self.zspages();
        let zspage = zspages.get(id);
        let class = &self.classes()[zspage.class()];
        let geometry = class.geometry;
        let mut state = class.state.lock();
        let was = State::group_of(zspage.in_use(), geometry.objects);
        state.put_to(zspage, zspages.span(zspage, geometry), geometry, object);
        state.stored_bytes -= size_bytes;
        let now = State::group_of(zspage.in_use(), geometry.objects);
        if now == 0 {
            state.remove(&zspages, id, was);
            state.allocated -= geometry.objects;
        } else {
            state.regroup(&zspages, id, was, now);
        }
        drop(state);
        if now == 0 {
            self.give_back(id, geometry);
        }
        self.cells.put(cell);
        Ok(())
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        open(handle).1
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        let room = unsafe { self.map(handle) }.unwrap_or_else(|refused| refused.panic());
        debug_assert!(data.len() <= room.len());
        // SAFETY: room for the object, mapped; `data` is borrowed from elsewhere.
        unsafe {
            room.cast::<u8>().copy_from_nonoverlapping(NonNull::from(data).cast(), data.len())
        };
        // SAFETY: mapped above.
        unsafe { self.unmap(handle) };
    }

    unsafe fn try_read(
        &self,
        handle: Handle,
        _bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        let object = unsafe { self.map(handle) }?;
        let _unpin = Unpin { pin: self.cell(open(handle).0) };
        // SAFETY: mapped; by the caller's promise the object was written and is not being written.
        reader(unsafe { object.as_ref() });
        Ok(())
    }

    fn compact(&self) -> usize {
        let zspages = |class| core::iter::from_fn(move || self.free_zspage(class));
        (0..self.class_count).flat_map(zspages).sum::<usize>() * self.page_bytes
    }

    fn compact_some(&self) -> Option<usize> {
        (0..self.class_count).find_map(|class| Some(self.free_zspage(class)? * self.page_bytes))
    }

    fn stats(&self) -> PoolStats {
        let mut stats = PoolStats {
            cell_bytes: self.cells.table.bytes(),
            descriptor_bytes: size_of::<Self>() + self.classes_bytes + self.zspages.bytes(),
            ..PoolStats::default()
        };
        for class in self.classes() {
            let state = class.state.lock();
            let zspages = state.allocated / class.geometry.objects;
            stats.objects += state.in_use;
            stats.stored_bytes += state.stored_bytes;
            stats.page_bytes += zspages * class.geometry.pages * self.page_bytes;
            stats.objects_moved += state.moved;
        }
        let ids = self.ids.lock();
        stats.pages_taken = ids.pages_taken;
        stats.pages_returned = ids.pages_returned;
        stats
    }
}

/// Unpins when dropped, even if a reader panics.
struct Unpin<'a> {
    pin: &'a PinCell64,
}

impl Drop for Unpin<'_> {
    fn drop(&mut self) {
        self.pin.unpin();
    }
}
