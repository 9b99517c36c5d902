//! One size class: its zspages in lists by fullness.
//!
//! Invariants (under the class's lock)
//! 1. A zspage of the class is in the list of its fullness group or, while a thread that holds the
//!    lock works on it, in none. No listed zspage is empty: the thread that takes the last object
//!    out gives the zspage back.
//! 2. The free objects of a zspage are linked by their numbers, each link in the object's first
//!    bytes; `in_use` is the number of the others.
//! 3. An object in use starts with the number of its cell and a tag (for a huge object that number
//!    is in the descriptor), so that compaction finds the cell that names it.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32};

use super::geometry::Geometry;
use crate::span::Span;
use crate::table::{Entry, Table};

/// Empty, ten steps of a tenth each, full: the kernel's groups.
pub(super) const GROUPS: usize = 12;
pub(super) const FULL: usize = GROUPS - 1;
/// Group 10 is nine tenths and more: the fullest group with room.
pub(super) const FULLEST_WITH_ROOM: usize = GROUPS - 2;
pub(super) const LEAST_USED: usize = 1;

const NO_PAGE: u32 = u32::MAX;
const NO_OBJECT: u16 = u16::MAX;
const IN_USE: u32 = 1 << 31;

/// A zspage, by its number in the pool's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZspageId(pub(super) u32);

/// A zspage's descriptor. Written under the lock of its class. The class's number and the base do
/// not change while an object of the zspage is alive; a thread that has pinned a cell reads those
/// two without the lock.
#[derive(Debug)]
#[repr(C, align(32))]
pub(super) struct Zspage {
    base: AtomicPtr<u8>,
    next: AtomicU32,
    prev: AtomicU32,
    /// The cell of a huge object.
    owner: AtomicU32,
    class: AtomicU16,
    in_use: AtomicU16,
    first_free: AtomicU16,
}

// SAFETY: atomics are valid as zero; 32 bytes.
unsafe impl Entry for Zspage {}

impl Zspage {
    #[inline]
    pub(super) fn base(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Acquire))
    }

    #[inline]
    pub(super) fn class(&self) -> usize {
        self.class.load(Acquire) as usize
    }

    pub(super) fn set_base(&self, base: Option<NonNull<u8>>) {
        self.base.store(base.map_or(core::ptr::null_mut(), NonNull::as_ptr), Release);
    }

    #[inline]
    pub(super) fn next(&self) -> Option<ZspageId> {
        let next = self.next.load(Relaxed);
        (next != NO_PAGE).then_some(ZspageId(next))
    }

    /// Links descriptors that are in no list of a class: those of no zspage, and those that
    /// compaction passes by.
    pub(super) fn set_next(&self, next: Option<ZspageId>) {
        self.next.store(next.map_or(NO_PAGE, |id| id.0), Relaxed);
    }

    #[inline]
    pub(super) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed) as usize
    }
}

/// The descriptors of all zspages.
pub(super) struct Zspages<'a> {
    pub(super) table: &'a Table<Zspage>,
    pub(super) page_bytes: usize,
}

impl Zspages<'_> {
    #[inline]
    pub(super) fn get(&self, id: ZspageId) -> &Zspage {
        self.table.get(id.0 as usize)
    }

    /// The memory of a zspage.
    #[inline]
    pub(super) fn span(&self, zspage: &Zspage, geometry: Geometry) -> Span {
        let base = zspage.base().expect("a zspage that was given back");
        // SAFETY: the zspage was taken from the source with this length, and lives.
        unsafe { Span::new(base, geometry.pages * self.page_bytes) }
    }
}

/// What the lock of a class guards.
#[derive(Debug)]
pub(super) struct State {
    heads: [u32; GROUPS],
    /// Zspages in each list.
    pub(super) counts: [u32; GROUPS],
    /// Objects of all zspages, and those in use.
    pub(super) allocated: usize,
    pub(super) in_use: usize,
    pub(super) stored_bytes: usize,
    pub(super) moved: u64,
}

impl State {
    pub(super) const fn new() -> Self {
        Self {
            heads: [NO_PAGE; GROUPS],
            counts: [0; GROUPS],
            allocated: 0,
            in_use: 0,
            stored_bytes: 0,
            moved: 0,
        }
    }

    /// The kernel's group for a zspage with `in_use` of `objects` in use.
    #[inline]
    pub(super) const fn group_of(in_use: usize, objects: usize) -> usize {
        if in_use == 0 {
            0
        } else if in_use == objects {
            FULL
        } else {
            in_use * 10 / objects + 1
        }
    }

    #[inline]
    pub(super) fn head(&self, group: usize) -> Option<ZspageId> {
        let head = self.heads[group];
        (head != NO_PAGE).then_some(ZspageId(head))
    }

    #[inline]
    pub(super) fn insert(&mut self, zspages: &Zspages<'_>, id: ZspageId, group: usize) {
        let zspage = zspages.get(id);
        let head = self.heads[group];
        zspage.next.store(head, Relaxed);
        zspage.prev.store(NO_PAGE, Relaxed);
        if head != NO_PAGE {
            zspages.get(ZspageId(head)).prev.store(id.0, Relaxed);
        }
        self.heads[group] = id.0;
        self.counts[group] += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, zspages: &Zspages<'_>, id: ZspageId, group: usize) {
        let zspage = zspages.get(id);
        let (next, prev) = (zspage.next.load(Relaxed), zspage.prev.load(Relaxed));
        if next != NO_PAGE {
            zspages.get(ZspageId(next)).prev.store(prev, Relaxed);
        }
        if prev == NO_PAGE {
            self.heads[group] = next;
        } else {
            zspages.get(ZspageId(prev)).next.store(next, Relaxed);
        }
        self.counts[group] -= 1;
    }

    /// Makes a zspage of new memory, takes its first object, and lists it.
    pub(super) fn adopt(
        &mut self,
        zspages: &Zspages<'_>,
        id: ZspageId,
        base: NonNull<u8>,
        class: usize,
        geometry: Geometry,
        cell: u32,
    ) -> u16 {
        let zspage = zspages.get(id);
        zspage.class.store(class as u16, Release);
        zspage.set_base(Some(base));
        zspage.in_use.store(0, Relaxed);
        zspage.first_free.store(0, Relaxed);
        let span = zspages.span(zspage, geometry);
        for object in 0..geometry.objects {
            let last = object + 1 == geometry.objects;
            let next = if last { NO_OBJECT } else { object as u16 + 1 };
            span.write_u32(object * geometry.size_bytes, u32::from(next));
        }
        self.allocated += geometry.objects;
        let object = self.take_from(zspage, span, geometry, cell);
        self.insert(zspages, id, Self::group_of(zspage.in_use(), geometry.objects));
        object
    }

    /// Takes an object from the fullest zspage that has a free one.
    #[inline]
    pub(super) fn take(
        &mut self,
        zspages: &Zspages<'_>,
        geometry: Geometry,
        cell: u32,
    ) -> Option<(ZspageId, u16)> {
        let mut groups = (LEAST_USED..=FULLEST_WITH_ROOM).rev();
        let group = groups.find(|&group| self.heads[group] != NO_PAGE)?;
        let id = ZspageId(self.heads[group]);
        let zspage = zspages.get(id);
        let object = self.take_from(zspage, zspages.span(zspage, geometry), geometry, cell);
        let now = Self::group_of(zspage.in_use(), geometry.objects);
        self.regroup(zspages, id, group, now);
        Some((id, object))
    }

    /// Takes an object of a zspage that has a free one; `span` is the zspage's memory.
    #[inline]
    pub(super) fn take_from(
        &mut self,
        zspage: &Zspage,
        span: Span,
        geometry: Geometry,
        cell: u32,
    ) -> u16 {
        let object = zspage.first_free.load(Relaxed);
        assert!(object != NO_OBJECT, "a full zspage in the list of one with room");
        let offset = object as usize * geometry.size_bytes;
        zspage.first_free.store(span.read_u32(offset) as u16, Relaxed);
        if geometry.is_huge() {
            zspage.owner.store(cell, Relaxed);
        } else {
            span.write_u32(offset, cell);
            span.write_u32(offset + 4, IN_USE);
        }
        zspage.in_use.store(zspage.in_use.load(Relaxed) + 1, Relaxed);
        self.in_use += 1;
        object
    }

    /// Gives an object back to its zspage, which stays in its list; `span` is the zspage's memory.
    #[inline]
    pub(super) fn put_to(&mut self, zspage: &Zspage, span: Span, geometry: Geometry, object: u16) {
        let offset = object as usize * geometry.size_bytes;
        span.write_u32(offset, u32::from(zspage.first_free.load(Relaxed)));
        if !geometry.is_huge() {
            span.write_u32(offset + 4, 0);
        }
        zspage.first_free.store(object, Relaxed);
        zspage.in_use.store(zspage.in_use.load(Relaxed) - 1, Relaxed);
        self.in_use -= 1;
    }

    #[inline]
    pub(super) fn regroup(&mut self, zspages: &Zspages<'_>, id: ZspageId, was: usize, now: usize) {
        if was != now {
            self.remove(zspages, id, was);
            self.insert(zspages, id, now);
        }
    }

    /// The cell of the object, if the object is in use. Not for huge objects.
    #[inline]
    pub(super) fn cell_of(span: Span, geometry: Geometry, object: usize) -> Option<u32> {
        let offset = object * geometry.size_bytes;
        (span.read_u32(offset + 4) == IN_USE).then(|| span.read_u32(offset))
    }

    /// How many zspages compaction could free.
    pub(super) const fn freeable_zspages(&self, geometry: Geometry) -> usize {
        (self.allocated - self.in_use) / geometry.objects
    }
}
