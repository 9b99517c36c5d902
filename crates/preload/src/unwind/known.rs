//! Rules that were found before. Most stacks share most of their frames, and to find a frame's
//! rules anew takes a binary search of a table that is in no cache.
//!
//! ```text
//!   pc ─▶ plain: a line of the cache each │ odd: few, longer
//! ```
//! Invariant: an entry holds only as long as the bytes that it was made from lie where they did. An
//! object that was unloaded may have made room for another. So each use checks that the list of the
//! entry's object still has as many entries, and that the description still begins as it did.

use core::ops::Range;
use core::ptr::NonNull;

use hectare_base::sync::{Lock, LockGuard, SpinPark};

use super::memory::Memory;
use super::objects::Object;
use super::registers::read;
use super::rows::{Plain, Rules};
use crate::HEAP;

/// Makes a forked child begin with nothing: another thread may be in a walk while the process is
/// copied, and nobody would ever release the copy of its lock. (If the system does not support
/// that, such a child finds the rules of each frame anew.)
pub(super) fn begin() {
    let (start, bytes) = ((&raw const KNOWN).cast_mut(), size_of_val(&KNOWN));
    if !HEAP.keeps_to_plain_calls() && bytes.is_multiple_of(HEAP.page_bytes()) {
        // SAFETY: whole pages of this static. In a child they are zero, which is a free lock around
        // no entries.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_WIPEONFORK) };
    }
}

const PLAIN: usize = 1024;
const ODD: usize = 32;
const STACKS: usize = 16;

/// What was found for one place in the code; all zeros mean nothing.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry<R> {
    pc: usize,
    origin: Origin,
    rules: R,
}

const _: () = assert!(size_of::<Entry<Plain>>() == 64, "a line of the cache");

/// Where rules were found, and what lay there. Packed, so that an entry fits a line on AArch64,
/// too.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, packed(4))]
struct Origin {
    header: usize,
    count: u32,
    /// The description's length, the distance to what it shares, and the code that it describes.
    front: [u32; 4],
}

impl Origin {
    const NONE: Self = Self { header: 0, count: 0, front: [0; 4] };

    /// # Safety
    /// The table of a loaded object lies at `header`.
    unsafe fn of(header: usize, description: usize) -> Self {
        // SAFETY: the caller's promise.
        let count = unsafe { read(header + 8) };
        // SAFETY: the description is one of that table, or was one of an equally long table in its
        // place.
        let front = unsafe { read(description) };
        Self { header, count, front }
    }

    /// Whether all is as it was when the description lay at `description`.
    ///
    /// # Safety
    /// As [`of`](Self::of).
    unsafe fn holds(&self, header: usize, description: usize) -> bool {
        // A table of another length is recognized before the place of its description is read.
        // SAFETY: the caller's promise.
        let count: u32 = unsafe { read(header + 8) };
        self.header == header
            && self.count == count
            // SAFETY: the caller's promise; an equally long table lies where that of the entry did.
            && unsafe { Self::of(header, description) } == *self
    }
}

/// All that was found. It begins at a page's start, so that it can be populated as a whole.
/// Otherwise each page would take two faults, since its entries are read before they are written.
#[repr(C, align(4096))]
struct Entries {
    plain: [Entry<Plain>; PLAIN],
    odd: [Entry<Rules>; ODD],
    /// By thread: what its last walk saw.
    stacks: [Seen; STACKS],
    is_there: bool,
}

/// The pages that a thread has seen to be readable. Its own stack stays readable while it lives. A
/// stack that the program lays out by itself can go; that matters only where tables are wrong, too,
/// since saved frame pointers are followed without these pages.
#[derive(Clone, Copy)]
struct Seen {
    /// An address of the thread's own.
    thread: usize,
    from: usize,
    to: usize,
}

static KNOWN: Lock<Entries, SpinPark> = Lock::new(Entries {
    plain: [Entry { pc: 0, origin: Origin::NONE, rules: Plain::NONE }; PLAIN],
    odd: [Entry { pc: 0, origin: Origin::NONE, rules: Rules::NONE }; ODD],
    stacks: [Seen { thread: 0, from: 0, to: 0 }; STACKS],
    is_there: false,
});

/// Rules as they were noted.
pub(super) enum Noted<'a> {
    Plain(&'a Plain),
    Odd(&'a Rules),
}

/// What is known during a walk.
pub(super) struct Known {
    /// The rules found before, for one walk at a time. A walk that finds another under way (on
    /// another thread, or interrupted by a signal) does without.
    entries: Option<LockGuard<'static, Entries, SpinPark>>,
    /// The object of the last frame, which most often is that of the next, too: an object with code
    /// on the stack stays loaded.
    object: Option<Object>,
}

impl Known {
    #[inline(never)]
    pub(super) fn borrow() -> Self {
        let mut entries = KNOWN.try_lock();
        if let Some(entries) = entries.as_deref_mut().filter(|entries| !entries.is_there) {
            entries.bring();
        }
        Self { entries, object: None }
    }

    /// The object that `pc`, which a frame of this stack executes, lies in.
    pub(super) fn object_of(&mut self, pc: usize) -> Option<Object> {
        let last = self.object.filter(|last| (last.map_start..last.map_end).contains(&pc));
        self.object = last.or_else(|| Object::of(pc));
        self.object
    }

    /// Adds to `memory` what this thread saw in its last walk.
    #[inline(always)]
    pub(super) fn recall(&self, memory: &mut Memory) {
        let thread = this_thread();
        let entries = self.entries.as_deref();
        if let Some(seen) = entries.map(|entries| &entries.stacks[spread(thread) % STACKS])
            && seen.thread == thread
        {
            memory.join(seen.from..seen.to);
        }
    }

    /// Notes what this thread has seen in a walk.
    #[inline(always)]
    pub(super) fn note_memory(&mut self, memory: &Memory) {
        let thread = this_thread();
        let Range { start: from, end: to } = memory.pages();
        if let Some(entries) = self.entries.as_deref_mut() {
            entries.stacks[spread(thread) % STACKS] = Seen { thread, from, to };
        }
    }

    /// The rules at `pc`.
    ///
    /// # Safety
    /// The table of the object that `pc` lies in, which is loaded, lies at `header`.
    pub(super) unsafe fn get(&self, pc: usize, header: usize) -> Option<Noted<'_>> {
        let entries = self.entries.as_deref()?;
        let plain = &entries.plain[spread(pc) % PLAIN];
        if plain.pc == pc {
            let description = header.wrapping_add_signed(plain.rules.description as isize);
            // SAFETY: the caller's promise.
            let holds = unsafe { plain.origin.holds(header, description) };
            return holds.then_some(Noted::Plain(&plain.rules));
        }
        let odd = &entries.odd[spread(pc) % ODD];
        // SAFETY: as above.
        let holds = odd.pc == pc && unsafe { odd.origin.holds(header, odd.rules.description) };
        holds.then_some(Noted::Odd(&odd.rules))
    }

    /// Notes what was found.
    ///
    /// # Safety
    /// `rules` are those at `pc` by the table at `header`.
    pub(super) unsafe fn note(&mut self, pc: usize, header: usize, rules: &Rules) {
        let Some(entries) = self.entries.as_deref_mut() else { return };
        // SAFETY: the caller's promise.
        let origin = unsafe { Origin::of(header, rules.description) };
        if let Some(plain) = Plain::of(rules, header) {
            entries.plain[spread(pc) % PLAIN] = Entry { pc, origin, rules: plain };
        } else {
            entries.odd[spread(pc) % ODD] = Entry { pc, origin, rules: *rules };
        }
    }
}

impl Entries {
    fn bring(&mut self) {
        // SAFETY: this static, data of this library.
        unsafe { HEAP.bring_pages(NonNull::from(&mut *self).cast(), size_of::<Self>()) };
        self.is_there = true;
    }
}

/// An address that tells this thread from all others.
fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::__errno_location() }.addr()
}

/// Spreads the bits of `pc` over the lower half.
fn spread(pc: usize) -> usize {
    ((pc as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}
