//! Pages that small sampled objects share.
//!
//! ```text
//!   page of the heap: │ – │ object │ object │ freed │ object │ room … │     the open one
//!                       └ never the page's start: of an object there, the address says that it is alone
//! ```
//! Objects are cut from the open page one behind the other; freed ones leave holes, and a page goes
//! back to the heap as a whole: so it holds no more memory than objects on pages of their own would,
//! and where most are short-lived one page serves them all.
//!
//! Invariant: the count of a page is that of its objects, and one more while it is open. So the open page
//! stays, and each other goes with its last object.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_pages::PageSource;

use super::table::{Entry, Table};
use crate::class::MIN_ALIGN;

/// The largest object that shares a page, an eighth of the smallest page there is: of larger ones too few
/// would fit for what is left at the end.
pub(crate) const MAX_PACKED_BYTES: usize = 512;

/// The open page, and where its room begins.
#[derive(Debug, Clone, Copy)]
struct Open {
    page: usize,
    used: usize,
}

#[derive(Debug)]
pub(super) struct Packs {
    /// The first word of a value is the page's count.
    table: Table,
    open: Option<Open>,
    /// Of a page, a power of two; 0 before the first.
    page_bytes: usize,
}

impl Packs {
    pub(super) const fn new() -> Self {
        Self { table: Table::new(), open: None, page_bytes: 0 }
    }

    /// Whether `address` lies in a shared page, and not at its start.
    pub(super) fn has(&self, address: usize) -> bool {
        let page = self.page_of(address);
        page != address && self.table.find(page).is_some()
    }

    fn page_of(&self, address: usize) -> usize {
        address & !self.page_bytes.saturating_sub(1)
    }

    /// Takes room for an object of `bytes` aligned to `align`, neither above [`MAX_PACKED_BYTES`], in the open page.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let open = self.open.as_mut()?;
        let [count, _] = &mut self.table.find_mut(open.page)?.value;
        if *count == 1 {
            // All that was there has gone.
            open.used = 0;
        }
        let start = align_up(open.used.max(MIN_ALIGN), align);
        if start + bytes > self.page_bytes {
            return None;
        }
        open.used = start + bytes;
        *count += 1;
        NonNull::new(core::ptr::with_exposed_provenance_mut(open.page + start))
    }

    /// Takes the object at `address` off its page. The page, if it goes back to the heap.
    pub(super) fn leave(&mut self, address: usize) -> Option<NonNull<u8>> {
        let page = self.page_of(address);
        let [count, _] = &mut self.table.find_mut(page)?.value;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.table.remove(page);
        NonNull::new(core::ptr::with_exposed_provenance_mut(page))
    }

    /// Makes `page` the open one. The page that goes back to the heap, if one does: that which was open
    /// before, or this one when memory is out.
    pub(super) fn open(
        &mut self,
        page: NonNull<u8>,
        source: &impl PageSource,
    ) -> Option<NonNull<u8>> {
        if self.table.make_room(source).is_none() {
            return Some(page);
        }
        self.page_bytes = source.page_bytes();
        let page = page.expose_provenance().get();
        self.table.insert(Entry { address: page, value: [1, 0] });
        let before = self.open.replace(Open { page, used: 0 })?;
        self.leave(before.page)
    }
}
