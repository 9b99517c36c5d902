//! Which contents are stored already: an index of shared objects by the hash of their pages.
//!
//! The index holds weak references: an object ends with the last slot that has it, and then its
//! entry goes as well. If two contents have the same hash, the index has the later one.
//!
//! Invariant: code that holds an `Arc<Shared>` gives it to a slot or to [`Dedup::release`]. If it
//! were merely dropped, it could be the last, and would leave its object in the pool for ever.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::slot::{Packed, Shared};

/// Parts of the index, each with its own lock.
const PARTS: usize = 64;

type Part = HashMap<u64, Weak<Shared>, BuildHasherDefault<AsItIs>>;

#[derive(Debug)]
pub(crate) struct Dedup {
    parts: Vec<Mutex<Part>>,
}

impl Dedup {
    pub(crate) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }

    /// The object whose page has this hash: its content is still to be compared.
    pub(crate) fn find(&self, hash: u64) -> Option<Arc<Shared>> {
        self.part(hash).get(&hash)?.upgrade()
    }

    /// Enters the object under its hash. If there is no memory for an entry, nobody finds the
    /// object, and its content may be stored again.
    pub(crate) fn insert(&self, shared: &Arc<Shared>) {
        let mut part = self.part(shared.hash);
        if part.try_reserve(1).is_ok() {
            part.insert(shared.hash, Arc::downgrade(shared));
        }
    }

    /// Ends one slot's share. Returns the object if that share was the last.
    pub(crate) fn release(&self, shared: Arc<Shared>) -> Option<Packed> {
        let hash = shared.hash;
        let Shared { packed, .. } = Arc::into_inner(shared)?;
        let mut part = self.part(hash);
        // Another object may have taken the entry in the meantime.
        if part.get(&hash).is_some_and(|entry| entry.strong_count() == 0) {
            part.remove(&hash);
        }
        Some(packed)
    }

    /// The approximate memory of the index.
    pub(crate) fn bytes(&self) -> usize {
        let entry_bytes = size_of::<(u64, Weak<Shared>)>() + 1;
        let entries: usize = (0..PARTS).map(|part| self.part(part as u64).capacity()).sum();
        entries * entry_bytes
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, Part> {
        // Nothing that can panic happens while the lock is held.
        self.parts[hash as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys are hashes already. Their low bits chose the part, so other bits come first here.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word.rotate_right(PARTS.ilog2());
    }
}
