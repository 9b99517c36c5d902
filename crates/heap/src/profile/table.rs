//! A hash table of addresses: open addressing with linear probing.
//!
//! Invariants
//! 1. The table's length is a power of two, and a quarter of it is empty, so every search ends.
//! 2. No entry between where an entry's search begins and where it stands is empty.

use hectare_pages::PageSource;

use crate::own_pages::Pages;
use crate::random::spread;

/// What is known of an address. Zeros are no entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) address: usize,
    pub(super) value: [usize; 2],
}

#[derive(Debug)]
pub(super) struct Table {
    entries: Pages<Entry>,
    count: usize,
}

/// How many places the table has once the first entry comes.
const FIRST_CAPACITY: usize = 512;

impl Table {
    /// An empty table, which owns nothing yet. All zeros.
    pub(super) const fn new() -> Self {
        Self { entries: Pages::new(), count: 0 }
    }

    /// Ensures that one more entry leaves a quarter of the table empty. `None` when out of memory.
    pub(super) fn make_room(&mut self, source: &impl PageSource) -> Option<()> {
        let capacity = self.entries.capacity();
        if (self.count + 1) * 4 <= capacity * 3 {
            return Some(());
        }
        let mut wider = Pages::with_capacity((capacity * 2).max(FIRST_CAPACITY), source)?;
        for &entry in self.entries.entries().iter().filter(|entry| entry.address != 0) {
            insert(wider.entries_mut(), entry);
        }
        self.entries.release(source);
        self.entries = wider;
        Some(())
    }

    /// Enters an entry whose address is not in the table. There must be room.
    pub(super) fn insert(&mut self, entry: Entry) {
        insert(self.entries.entries_mut(), entry);
        self.count += 1;
    }

    /// The entry of `address`.
    pub(super) fn find(&self, address: usize) -> Option<&Entry> {
        let entries = self.entries.entries();
        find(entries, address).map(|at| &entries[at])
    }

    /// As [`find`](Self::find), mutable except for its address.
    pub(super) fn find_mut(&mut self, address: usize) -> Option<&mut Entry> {
        let entries = self.entries.entries_mut();
        find(entries, address).map(|at| &mut entries[at])
    }

    /// Takes out the entry of `address`, and closes the gap (Knuth, volume 3, 6.4, algorithm R).
    pub(super) fn remove(&mut self, address: usize) -> Option<Entry> {
        let entries = self.entries.entries_mut();
        let mut gap = find(entries, address)?;
        let mask = entries.len() - 1;
        let removed = entries[gap];
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            if entries[at].address == 0 {
                break;
            }
            // An entry whose search begins behind the gap stays.
            let distance = |from: usize| at.wrapping_sub(from) & mask;
            if distance(home(entries, entries[at].address)) >= distance(gap) {
                entries[gap] = entries[at];
                gap = at;
            }
        }
        entries[gap].address = 0;
        self.count -= 1;
        Some(removed)
    }
}

/// Where the search for `address` begins.
fn home(entries: &[Entry], address: usize) -> usize {
    spread(address) >> 20 & (entries.len() - 1)
}

fn insert(entries: &mut [Entry], entry: Entry) {
    let mut at = home(entries, entry.address);
    while entries[at].address != 0 {
        at = (at + 1) & (entries.len() - 1);
    }
    entries[at] = entry;
}

/// Where the entry of `address` stands.
fn find(entries: &[Entry], address: usize) -> Option<usize> {
    if entries.is_empty() {
        return None;
    }
    let mut at = home(entries, address);
    while entries[at].address != address {
        if entries[at].address == 0 {
            return None;
        }
        at = (at + 1) & (entries.len() - 1);
    }
    Some(at)
}
