//! Rules that were found before: most stacks share most of their frames, and to find a frame's rules
//! anew is a binary search of a table that is in no cache.
//!
//! Invariant: an entry holds only as long as the bytes that it was made from lie where they did. An
//! object that was unloaded may have made place for another: so each use looks whether the list of its
//! object still has as many entries, and the description still begins as it did.

use hectare_base::sync::{Lock, LockGuard, SpinPark};

use super::objects::Object;
use super::registers::read;
use super::rows::{Row, Rules};

const ENTRIES: usize = 1024;

/// What was found for one place in the code; all zeros: nothing.
#[derive(Clone, Copy)]
struct Entry {
    pc: usize,
    origin: Origin,
    rules: Rules,
}

/// Where rules were found, and what lay there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Origin {
    header: usize,
    count: u32,
    /// The description's length, the distance to what it shares, and the code that it is of.
    front: [u32; 4],
}

impl Origin {
    /// # Safety
    /// The table of an object that is there lies at `header`.
    unsafe fn of(header: usize, description: usize) -> Self {
        // SAFETY: the caller's promise.
        let count = unsafe { read(header + 8) };
        // SAFETY: the description is one of that table, or was one of a table as long in its place.
        let front = unsafe { read(description) };
        Self { header, count, front }
    }
}

/// What is known during a walk.
pub(super) struct Known {
    /// The rules found before, for one walk at a time: one that finds another under way, on another thread or
    /// interrupted by a signal, does without.
    entries: Option<LockGuard<'static, [Entry; ENTRIES], SpinPark>>,
    /// That of the last frame, most often that of the next: none goes that code on the stack is of.
    object: Option<Object>,
}

impl Known {
    pub(super) fn borrow() -> Self {
        const NOTHING: Entry = Entry {
            pc: 0,
            origin: Origin { header: 0, count: 0, front: [0; 4] },
            rules: Rules { row: Row::UNKNOWN, description: 0, return_slot: 0, is_signal: false },
        };
        static KNOWN: Lock<[Entry; ENTRIES], SpinPark> = Lock::new([NOTHING; ENTRIES]);
        Self { entries: KNOWN.try_lock(), object: None }
    }

    /// The object that `pc`, which a frame of this stack executes, lies in.
    pub(super) fn object_of(&mut self, pc: usize) -> Option<Object> {
        let last = self.object.filter(|last| (last.map_start..last.map_end).contains(&pc));
        self.object = last.or_else(|| Object::of(pc));
        self.object
    }

    fn entry(&mut self, pc: usize) -> Option<&mut Entry> {
        let spread = (pc as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.entries.as_mut().map(|entries| &mut entries[spread as usize % ENTRIES])
    }

    /// The rules at `pc`.
    ///
    /// # Safety
    /// The table of the object that `pc` lies in, which is there, lies at `header`.
    pub(super) unsafe fn get(&mut self, pc: usize, header: usize) -> Option<&Rules> {
        let entry =
            self.entry(pc).filter(|entry| entry.pc == pc && entry.origin.header == header)?;
        // A table of another length is told before the place of its description is read.
        // SAFETY: the caller's promise.
        let count: u32 = unsafe { read(header + 8) };
        let is_as_it_was = count == entry.origin.count
            // SAFETY: the caller's promise; a table as long lies where that of the entry did.
            && unsafe { Origin::of(header, entry.rules.description) } == entry.origin;
        is_as_it_was.then_some(&entry.rules)
    }

    /// Notes what was found.
    ///
    /// # Safety
    /// `rules` are those at `pc` by the table at `header`.
    pub(super) unsafe fn note(&mut self, pc: usize, header: usize, rules: Rules) {
        if let Some(entry) = self.entry(pc) {
            // SAFETY: the caller's promise.
            *entry = Entry { pc, origin: unsafe { Origin::of(header, rules.description) }, rules };
        }
    }
}
