//! Objects on their way to slabs that are given up.
//!
//! What is freed in such a slab goes there, so that the slab becomes empty, and to no list, from where the next request
//! would take it. One at a time each would take the lock of its class and wait for what its slab is told by; so a thread's go
//! some at a time.

use crate::class::ClassId;
use crate::object::{Batch, FreeObject, Key, Link};

/// Classes whose numbers differ by a multiple of this take turns.
const GROUPS: usize = 8;

/// So many of a class go at once: each may be what keeps a slab from being empty.
const MOST: usize = 16;

/// What a thread has on its way. Nothing, if all zeros.
#[derive(Debug)]
pub(crate) struct Departing([Group; GROUPS]);

/// Objects of one class, which share a list.
#[derive(Debug)]
struct Group {
    head: Option<FreeObject>,
    count: u8,
    class: ClassId,
}

impl Departing {
    /// Adds an object of `class`. Returns what must go first.
    pub(crate) fn add(
        &mut self,
        class: ClassId,
        object: FreeObject,
        key: Key,
    ) -> Option<(ClassId, Batch)> {
        let group = self.group(class);
        let is_full = group.class != class || usize::from(group.count) == MOST;
        let first = if is_full { group.take() } else { None };
        object.link(Link::from(group.head), key);
        *group = Group { head: Some(object), count: group.count + 1, class };
        first
    }

    /// Takes all of `class`.
    pub(crate) fn take(&mut self, class: ClassId) -> Option<Batch> {
        let group = self.group(class);
        if group.class == class { group.take().map(|(_, batch)| batch) } else { None }
    }

    /// How many there are of `class`.
    pub(crate) fn objects(&self, class: ClassId) -> usize {
        let group = &self.0[class.index() % GROUPS];
        if group.class == class { group.count.into() } else { 0 }
    }

    fn group(&mut self, class: ClassId) -> &mut Group {
        &mut self.0[class.index() % GROUPS]
    }
}

impl Group {
    fn take(&mut self) -> Option<(ClassId, Batch)> {
        let head = self.head.take()?;
        Some((self.class, Batch { head, count: core::mem::take(&mut self.count).into() }))
    }
}
