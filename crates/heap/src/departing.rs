//! Departing objects: freed objects on their way to given-up slabs.
//!
//! An object freed in a given-up slab goes back there, so that the slab becomes empty. It does not
//! go to a list, from which the next request would take it. If objects went one at a time, each
//! would take the lock of its class and wait for its slab's descriptor. So a thread's objects go
//! some at a time. What is left goes when the thread ends, and when memory is out or is asked back.

use crate::batch::Batch;
use crate::class::ClassId;
use crate::object::{FreeObject, Key, Link};

/// Classes whose numbers differ by a multiple of this take turns.
const GROUPS: usize = 8;

/// No more objects of a class wait than this, nor than a [batch](ClassId::batch) has, since each
/// may be what keeps a slab from being empty.
const MOST: usize = 16;

/// The departing objects of a thread. None, if all zeros.
#[derive(Debug)]
pub(crate) struct Departing([Group; GROUPS]);

/// Departing objects of one class, in one list.
#[derive(Debug)]
struct Group {
    head: Option<FreeObject>,
    count: u8,
    class: ClassId,
}

impl Departing {
    /// Adds an object of `class`. Returns the batch that must go first, if there was no room.
    pub(crate) fn add(
        &mut self,
        class: ClassId,
        object: FreeObject,
        key: Key,
    ) -> Option<(ClassId, Batch)> {
        let group = self.group(class);
        let is_full = group.class != class || usize::from(group.count) == MOST.min(class.batch());
        let first = if is_full { group.take() } else { None };
        object.link(Link::from(group.head), key);
        *group = Group { head: Some(object), count: group.count.wrapping_add(1), class };
        first
    }

    /// Takes all objects of `class`.
    pub(crate) fn take(&mut self, class: ClassId) -> Option<Batch> {
        let group = self.group(class);
        if group.class == class { group.take().map(|(_, batch)| batch) } else { None }
    }

    /// Takes all objects of some class. `None` if there are no objects.
    pub(crate) fn take_any(&mut self) -> Option<(ClassId, Batch)> {
        self.0.iter_mut().find_map(Group::take)
    }

    /// How many objects of `class` there are.
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

#[cfg(test)]
mod tests {
    extern crate std;
    use core::ptr::NonNull;
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    fn listed(batch: Batch) -> Vec<FreeObject> {
        let objects: Vec<_> =
            core::iter::successors(Some(batch.head), |object| object.next()).collect();
        assert_eq!(objects.len(), batch.count);
        objects
    }

    #[test]
    fn sixteen_of_a_class_go_at_once_and_fewer_make_room_for_another() {
        let mut memory = Box::new([[0_u128; 2]; 2 * MOST + 1]);
        // SAFETY: each object is 32 bytes of its own, aligned to 16.
        let objects = memory
            .each_mut()
            .map(|object| unsafe { FreeObject::new(NonNull::from(object).cast()) });
        let class = ClassId::for_bytes(32);
        let numbered =
            |index| ClassId::all().find(|class| class.index() == index).expect("a class");
        let (beside, rival) = (numbered(class.index() + 1), numbered(class.index() + GROUPS));
        let key = Key(1);
        let mut departing =
            Departing([const { Group { head: None, count: 0, class: ClassId::NONE } }; GROUPS]);
        for &object in &objects[..MOST] {
            assert!(departing.add(class, object, key).is_none());
        }
        let (full, batch) = departing.add(class, objects[MOST], key).expect("a full list");
        assert_eq!((full, listed(batch).len()), (class, MOST));
        assert!(departing.add(beside, objects[MOST + 1], key).is_none(), "a list of its own");
        let (first, batch) = departing.add(rival, objects[MOST + 2], key).expect("a list");
        assert_eq!((first, listed(batch)), (class, [objects[MOST]].into()));
        let counts = [class, beside, rival].map(|class| departing.objects(class));
        assert_eq!(counts, [0, 1, 1]);
        assert!(departing.take(class).is_none());
        assert_eq!(listed(departing.take(rival).expect("one")), [objects[MOST + 2]]);
        assert!(departing.take(rival).is_none());
        assert_eq!(departing.take_any().map(|(class, _)| class), Some(beside));
        assert!(departing.take_any().is_none());
        let largest = ClassId::all().last().expect("a class");
        assert!(largest.batch() < MOST);
        for &object in &objects[..largest.batch()] {
            assert!(departing.add(largest, object, key).is_none());
        }
        let batch = departing.add(largest, objects[MOST], key).expect("a full list");
        assert_eq!(listed(batch.1).len(), largest.batch());
    }
}
