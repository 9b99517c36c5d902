//! The live sampled objects: a hash table of their addresses, open addressing with linear probing.
//!
//! Invariants
//! 1. The table's length is a power of two, and a quarter of it is empty: so every search ends.
//! 2. Between where a sample's search begins and where it stands no entry is empty.

use hectare_pages::PageSource;

use super::spread;
use super::stacks::StackPlace;
use crate::own_pages::Pages;

/// A live sampled object. An address of 0: no sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(super) address: usize,
    pub(super) bytes: usize,
    pub(super) stack: StackPlace,
}

#[derive(Debug)]
pub(super) struct Samples {
    table: Pages<Sample>,
    count: usize,
}

/// How many entries the first table has.
const FIRST_ENTRIES: usize = 1024;

impl Samples {
    pub(super) const fn new() -> Self {
        Self { table: Pages::new(), count: 0 }
    }

    /// Sees to it that one more sample leaves a quarter of the table empty; `None` when memory is out.
    pub(super) fn make_room(&mut self, source: &impl PageSource) -> Option<()> {
        let capacity = self.table.capacity();
        if (self.count + 1) * 4 <= capacity * 3 {
            return Some(());
        }
        let mut wider = Pages::with_capacity((capacity * 2).max(FIRST_ENTRIES), source)?;
        for &sample in self.table.entries().iter().filter(|sample| sample.address != 0) {
            insert(wider.entries_mut(), sample);
        }
        self.table.release(source);
        self.table = wider;
        Some(())
    }

    /// Enters a sample whose address is not in the table; there must be room.
    pub(super) fn insert(&mut self, sample: Sample) {
        insert(self.table.entries_mut(), sample);
        self.count += 1;
    }

    /// The sample of `address`.
    pub(super) fn find(&self, address: usize) -> Option<&Sample> {
        let table = self.table.entries();
        find(table, address).map(|at| &table[at])
    }

    /// Takes the sample of `address` out, and closes the gap (Knuth, volume 3, 6.4, algorithm R).
    pub(super) fn remove(&mut self, address: usize) -> Option<Sample> {
        let table = self.table.entries_mut();
        let mut gap = find(table, address)?;
        let mask = table.len() - 1;
        let removed = table[gap];
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            if table[at].address == 0 {
                break;
            }
            // An entry whose search begins behind the gap stays.
            let distance = |from: usize| at.wrapping_sub(from) & mask;
            if distance(home(table, table[at].address)) >= distance(gap) {
                table[gap] = table[at];
                gap = at;
            }
        }
        table[gap].address = 0;
        self.count -= 1;
        Some(removed)
    }
}

/// Where the search for `address` begins.
fn home(table: &[Sample], address: usize) -> usize {
    spread(address) >> 20 & (table.len() - 1)
}

fn insert(table: &mut [Sample], sample: Sample) {
    let mut at = home(table, sample.address);
    while table[at].address != 0 {
        at = (at + 1) & (table.len() - 1);
    }
    table[at] = sample;
}

/// Where the sample of `address` stands.
fn find(table: &[Sample], address: usize) -> Option<usize> {
    if table.is_empty() {
        return None;
    }
    let mut at = home(table, address);
    while table[at].address != address {
        if table[at].address == 0 {
            return None;
        }
        at = (at + 1) & (table.len() - 1);
    }
    Some(at)
}
