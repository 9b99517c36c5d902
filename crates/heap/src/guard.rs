//! Guarded objects: a few allocations, drawn at random, each alone on a page between pages that
//! nobody may touch.
//!
//! ```text
//!   │ sealed │ canary │ object│ sealed │ a freed one: sealed │ sealed │ canary │ object│ …
//!             ◀── a slot's page ─▶      ◀─── the next slot ──▶
//! ```
//! The object ends where its page does, as far as its alignment allows. To read or write behind it
//! faults at that very instruction, and so does touching it after it was freed. A write too near to
//! fault (before the object, or in the few bytes that alignment leaves behind it) changes the
//! canary, and is found when the object is freed. Freed slots are used again in turn, so a freed
//! object stays sealed as long as possible. (After Electric Fence, Perens 1987; sampled as GWP-ASan
//! does it.)
//!
//! Invariant: a slot's page is committed while its object is live, and sealed otherwise, as far as
//! the system allows.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hectare_base::sync::Lock;
use hectare_pages::System;

use crate::heap::becomes_free;
use crate::own_pages::Pages;

/// The most guarded objects at once, live or freed.
const SLOTS: usize = 128;

/// The most callers of an allocation and of a free that are kept.
const TRAIL_FRAMES: usize = 12;

const CANARY: u8 = 0xc5;

/// Return addresses, the innermost first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trail {
    frames: [usize; TRAIL_FRAMES],
    len: usize,
}

impl Trail {
    fn new(frames: &[usize]) -> Self {
        let mut trail = Self::default();
        for (to, from) in trail.frames.iter_mut().zip(frames) {
            *to = *from;
            trail.len += 1;
        }
        trail
    }

    /// The addresses. None if the calls are not known.
    #[must_use]
    pub fn frames(&self) -> &[usize] {
        &self.frames[..self.len.min(TRAIL_FRAMES)]
    }
}

/// What was wrong with an access, or with a pointer that was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Behind the object.
    Overflow,
    /// Before the object.
    Underflow,
    /// In an object that is free.
    UseAfterFree,
    /// Freed a second time.
    DoubleFree,
    /// The pointer is not the object's start.
    Interior,
}

/// A fault, and the object that it concerns.
#[derive(Debug, Clone, Copy)]
pub struct Finding {
    /// What was wrong.
    pub fault: Fault,
    /// The address that was touched, or that was to be freed.
    pub address: usize,
    /// Where the object begins.
    pub object: usize,
    /// How many bytes were asked for.
    pub bytes: usize,
    /// Who allocated it.
    pub allocated: Trail,
    /// Who freed it; empty if it is not free.
    pub freed: Trail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Life {
    Unused = 0,
    Live,
    Freed,
}

/// A slot. Zeroed, it was never used.
#[derive(Debug, Clone, Copy)]
struct Slot {
    life: Life,
    object: usize,
    bytes: usize,
    allocated: Trail,
    freed: Trail,
}

impl Slot {
    #[cold]
    #[inline(never)]
    fn finding(&self, fault: Fault, address: usize) -> Finding {
        let (object, bytes) = (self.object, self.bytes);
        Finding { fault, address, object, bytes, allocated: self.allocated, freed: self.freed }
    }
}

#[derive(Debug)]
struct State {
    start: Option<NonNull<u8>>,
    page_bytes: usize,
    slots: Pages<Slot>,
    /// The slot that was used last.
    last: usize,
}

// SAFETY: the area's pages are reached through the slots, under the lock around the state.
unsafe impl Send for State {}

/// The guarded objects of a heap. All methods may be called by any thread.
#[derive(Debug)]
pub(crate) struct Guard<S: System> {
    /// Where the area lies, readable without the lock. It has 0 bytes before it is opened.
    start: AtomicUsize,
    bytes: AtomicUsize,
    state: Lock<State, S::Park>,
}

impl<S: System> Guard<S> {
    /// No slots yet.
    pub(crate) const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            state: Lock::new(State { start: None, page_bytes: 0, slots: Pages::new(), last: 0 }),
        }
    }

    /// Reserves the slots. `None` when there is no memory or no address space.
    pub(crate) fn open(&self, source: &S) -> Option<()> {
        let mut state = self.state.lock();
        let page = source.page_bytes();
        let bytes = (2 * SLOTS + 1) * page;
        state.slots = Pages::with_capacity(SLOTS, source)?;
        let start = source.reserve(bytes, page).ok()?;
        state.start = Some(start);
        state.page_bytes = page;
        self.start.store(start.addr().get(), Relaxed);
        self.bytes.store(bytes, Relaxed);
        Some(())
    }

    /// Whether `address` lies in the area.
    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.load(Relaxed)) < self.bytes.load(Relaxed)
    }

    /// A zeroed object. `None` if it is larger than a page, if every slot is live, or when out of
    /// memory.
    pub(crate) fn get(
        &self,
        bytes: usize,
        align: usize,
        frames: &[usize],
        source: &S,
    ) -> Option<NonNull<u8>> {
        let mut state = self.state.lock();
        let page = state.page_bytes;
        if bytes > page || align > page {
            return None;
        }
        let index = (1..=SLOTS).map(|step| (state.last + step) % SLOTS).find(|&index| {
            state.slots.entries().get(index).is_some_and(|s| s.life != Life::Live)
        })?;
        let start = state.page_of(index)?;
        // SAFETY: the slot's page, in the area's reservation.
        unsafe { source.commit(start, page) }.ok()?;
        // An object of no bytes takes one: it needs an address of its own in the page.
        let offset = (page - bytes.max(1)) & !(align - 1);
        // SAFETY: the slot's page, committed and nobody's.
        unsafe { start.write_bytes(CANARY, page) };
        // SAFETY: offset + bytes ≤ page.
        let object = unsafe { start.add(offset) };
        // SAFETY: as above: within the page.
        unsafe { object.write_bytes(0, bytes) };
        state.last = index;
        state.slots.entries_mut()[index] = Slot {
            life: Life::Live,
            object: object.addr().get(),
            bytes,
            allocated: Trail::new(frames),
            freed: Trail::default(),
        };
        Some(object)
    }

    /// Takes an object back, and seals it.
    ///
    /// # Errors
    /// What is wrong with the pointer, or what was done to the canary around the object. `None` if
    /// there never was an object near it.
    #[expect(clippy::result_large_err, reason = "a finding ends the process")]
    pub(crate) fn put(
        &self,
        address: usize,
        frames: &[usize],
        source: &S,
    ) -> Result<(), Option<Finding>> {
        let mut state = self.state.lock();
        let (index, fault) = state.at(address).ok_or(None)?;
        if let Some(fault) = fault {
            return Err(Some(state.slots.entries()[index].finding(fault, address)));
        }
        let start = state.page_of(index).ok_or(None)?;
        let page = state.page_bytes;
        // SAFETY: by the invariant the page of a live slot is committed. The object in it is being
        // freed, and only its surroundings are read.
        let bytes = unsafe { core::slice::from_raw_parts(start.as_ptr(), page) };
        let slot = &mut state.slots.entries_mut()[index];
        let offset = slot.object - start.addr().get();
        let (before, behind) = (&bytes[..offset], &bytes[offset + slot.bytes..]);
        if let Some(place) = before.iter().rposition(|&byte| byte != CANARY) {
            return Err(Some(slot.finding(Fault::Underflow, start.addr().get() + place)));
        }
        if let Some(place) = behind.iter().position(|&byte| byte != CANARY) {
            let end = slot.object + slot.bytes;
            return Err(Some(slot.finding(Fault::Overflow, end + place)));
        }
        slot.life = Life::Freed;
        slot.freed = Trail::new(frames);
        // A page that the system will not seal stays open: misuse of it is merely not detected.
        // SAFETY: the page was committed, and its object is freed.
        let _ = unsafe { source.seal(start, page) };
        Ok(())
    }

    /// The size of the object that begins at `address`, as it was asked for.
    ///
    /// # Errors
    /// What is wrong with the pointer, as for [`put`](Self::put).
    #[expect(clippy::result_large_err, reason = "a finding ends the process")]
    pub(crate) fn bytes_of(&self, address: usize) -> Result<usize, Option<Finding>> {
        let state = self.state.lock();
        let (index, fault) = state.at(address).ok_or(None)?;
        let slot = &state.slots.entries()[index];
        fault.map_or(Ok(slot.bytes), |fault| Err(Some(slot.finding(fault, address))))
    }

    /// The bytes of the objects that are live, as they were asked for.
    #[inline(never)]
    pub(crate) fn live_bytes(&self) -> usize {
        if self.bytes.load(Relaxed) == 0 {
            return 0;
        }
        let state = self.state.lock();
        let live = state.slots.entries().iter().filter(|slot| slot.life == Life::Live);
        live.map(|slot| slot.bytes).sum()
    }

    /// What an access that faulted at `address` did wrong. `None` if no guarded object is near, or
    /// if the access was to one that the program has sealed itself. A thread that `may_hold` the
    /// lock does not wait for it: then `None` while the lock is held.
    pub(crate) fn explain(&self, address: usize, may_hold: bool) -> Option<Finding> {
        if !self.contains(address) {
            return None;
        }
        let state = if may_hold { self.state.try_lock()? } else { self.state.lock() };
        let page = (address - self.start.load(Relaxed)) / state.page_bytes.max(1);
        let slot =
            |index: usize| state.slots.entries().get(index).filter(|s| s.life != Life::Unused);
        if page % 2 == 1 {
            let slot = slot(page / 2)?;
            let fault = match slot.life {
                Life::Freed => Fault::UseAfterFree,
                _ if address < slot.object => Fault::Underflow,
                _ if address - slot.object >= slot.bytes => Fault::Overflow,
                _ => return None,
            };
            return Some(slot.finding(fault, address));
        }
        // Between two slots: the nearer one.
        let behind =
            slot(page / 2).map(|s| (s.object.saturating_sub(address), Fault::Underflow, s));
        let before = (page / 2).checked_sub(1).and_then(slot);
        let before = before.map(|s| (address - (s.object + s.bytes), Fault::Overflow, s));
        let (_, fault, slot) =
            [before, behind].into_iter().flatten().min_by_key(|(distance, ..)| *distance)?;
        let fault = if slot.life == Life::Freed { Fault::UseAfterFree } else { fault };
        Some(slot.finding(fault, address))
    }

    /// Whether the lock that [`live_bytes`](Self::live_bytes) takes is free, or soon becomes free.
    pub(crate) fn can_be_asked(&self, source: &S) -> bool {
        becomes_free(&self.state, source)
    }

    /// Holds the lock across a fork.
    pub(crate) fn before_fork(&self) {
        self.state.lock_for_fork();
    }

    /// Releases the lock in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.state.unlock() };
    }
}

impl State {
    /// The page of a slot. `None` before the area is opened.
    fn page_of(&self, index: usize) -> Option<NonNull<u8>> {
        // SAFETY: index < SLOTS, so the page lies in the area.
        self.start.map(|start| unsafe { start.add((2 * index + 1) * self.page_bytes) })
    }

    /// The slot in or before which `address` lies (or behind which, if the next slot was never
    /// used), and why `address` is not the start of a live object. `None` if neither slot was ever
    /// used.
    fn at(&self, address: usize) -> Option<(usize, Option<Fault>)> {
        let page = (address - self.start?.addr().get()) / self.page_bytes;
        let slot = |index: usize| {
            let slot = self.slots.entries().get(index).filter(|slot| slot.life != Life::Unused);
            Some((index, slot?))
        };
        let (index, slot) = slot(page / 2).or_else(|| slot(page.checked_sub(1)? / 2))?;
        let fault = if slot.object != address {
            Some(Fault::Interior)
        } else if slot.life != Life::Live {
            Some(Fault::DoubleFree)
        } else {
            None
        };
        Some((index, fault))
    }
}

#[cfg(test)]
mod tests {
    use hectare_pages::{Os, PageSource};

    use super::*;

    fn opened() -> Guard<Os> {
        let guard = Guard::new();
        guard.open(&Os).expect("memory");
        guard
    }

    fn get(guard: &Guard<Os>, bytes: usize, align: usize) -> NonNull<u8> {
        guard.get(bytes, align, &[11, 12], &Os).expect("a slot")
    }

    /// Why a pointer was refused. `None` if there never was an object near it.
    fn refused<T: core::fmt::Debug>(answer: Result<T, Option<Finding>>) -> Option<Finding> {
        answer.expect_err("it is wrong")
    }

    #[test]
    fn objects_end_where_their_pages_do() {
        let guard = opened();
        let page = Os.page_bytes();
        for (bytes, align) in [(0, 16), (1, 16), (16, 16), (100, 64), (1000, 8), (page, page)] {
            let object = get(&guard, bytes, align);
            assert!(object.addr().get().is_multiple_of(align));
            assert!(page - object.addr().get() % page < bytes + align + 1 || bytes == page);
            assert_eq!(guard.bytes_of(object.addr().get()).ok(), Some(bytes));
            // SAFETY: a live object of so many bytes.
            let contents = unsafe { core::slice::from_raw_parts(object.as_ptr(), bytes) };
            assert!(contents.iter().all(|&byte| byte == 0));
            assert!(guard.put(object.addr().get(), &[], &Os).is_ok());
        }
        assert!(guard.get(page + 1, 16, &[], &Os).is_none());
        assert!(guard.get(1, 2 * page, &[], &Os).is_none());
    }

    #[test]
    fn damage_near_the_object_is_found_when_it_is_freed() {
        let guard = opened();
        for (offset, fault) in [(-1, Fault::Underflow), (100, Fault::Overflow)] {
            let object = get(&guard, 100, 16);
            // SAFETY: in the object's page, though not in the object.
            unsafe { object.offset(offset).write(1) };
            let found = refused(guard.put(object.addr().get(), &[], &Os)).expect("damaged");
            assert_eq!(found.fault, fault);
            assert_eq!(found.address, object.addr().get().wrapping_add_signed(offset));
            assert_eq!((found.bytes, found.allocated.frames()), (100, &[11, 12][..]));
        }
    }

    #[test]
    fn wrong_pointers_are_told_apart() {
        let guard = opened();
        let object = get(&guard, 64, 16).addr().get();
        let interior = refused(guard.put(object + 16, &[], &Os)).expect("wrong");
        assert_eq!(interior.fault, Fault::Interior);
        assert!(guard.put(object, &[21], &Os).is_ok());
        let found = refused(guard.put(object, &[], &Os)).expect("freed");
        assert_eq!((found.fault, found.freed.frames()), (Fault::DoubleFree, &[21][..]));
        let found = refused(guard.bytes_of(object)).expect("freed");
        assert_eq!(found.fault, Fault::DoubleFree);
    }

    /// In all of the area, including behind the last object and where there never was one.
    #[test]
    fn wrong_pointers_are_explained_by_objects_that_were_there() {
        let guard = opened();
        let page = Os.page_bytes();
        let start = guard.start.load(Relaxed);
        let explained = |address| {
            refused(guard.put(address, &[], &Os)).map(|found| (found.fault, found.object))
        };
        assert_eq!(explained(start), None);
        assert!(refused(guard.bytes_of(start + 2 * SLOTS * page)).is_none());
        let object = get(&guard, page, 16).addr().get();
        assert_eq!(object, start + 3 * page, "the second slot is the first that is used");
        let interior = Some((Fault::Interior, object));
        for at in 0..=2 * SLOTS {
            let is_near = (2..5).contains(&at) && at != 3;
            let expected = if is_near { interior } else { None };
            if at != 3 {
                assert_eq!(explained(start + at * page), expected, "page {at}");
            }
        }
        let last = (1..SLOTS).map(|_| get(&guard, page, 16).addr().get()).max().unwrap_or(0);
        let end = start + 2 * SLOTS * page;
        assert_eq!(explained(end), Some((Fault::Interior, last)), "the last sealed page");
    }

    #[test]
    fn faults_are_explained_by_the_nearest_object() {
        let guard = opened();
        let page = Os.page_bytes();
        let (first, second) = (get(&guard, 64, 16).addr().get(), get(&guard, 64, 16).addr().get());
        let explain =
            |address| guard.explain(address, false).map(|found| (found.fault, found.object));
        assert_eq!(explain(first + 64), Some((Fault::Overflow, first)));
        assert_eq!(explain(first + 64 + page / 2 - 64), Some((Fault::Overflow, first)));
        assert_eq!(explain(first - page), Some((Fault::Underflow, first)));
        assert_eq!(explain(second + 64), Some((Fault::Overflow, second)));
        assert!(guard.put(first, &[], &Os).is_ok());
        assert_eq!(explain(first + 8), Some((Fault::UseAfterFree, first)));
        assert_eq!(explain(second), None, "it is whole: the program has sealed it");
        assert_eq!(explain(1 << 20), None);
        assert_eq!(explain(second + 64 + 20 * page), None);
        let _held = guard.state.lock();
        assert!(guard.explain(first + 8, true).is_none(), "by this very thread");
    }

    #[test]
    fn freed_slots_are_used_again_as_late_as_can_be() {
        let guard = opened();
        let first = get(&guard, 16, 16);
        assert!(guard.put(first.addr().get(), &[], &Os).is_ok());
        for _ in 1..SLOTS {
            assert_ne!(get(&guard, 16, 16), first);
        }
        assert_eq!(get(&guard, 16, 16), first);
        assert!(guard.get(16, 16, &[], &Os).is_none(), "all are live");
    }
}
