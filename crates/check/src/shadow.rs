//! The naive model: which objects are live, at which place, how large, and with which contents.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use crate::payload::Payload;

/// A live object, owned by whoever holds this value.
#[derive(Debug)]
pub struct Object {
    /// Its first byte.
    pub start: NonNull<u8>,
    /// How many bytes were asked for.
    pub bytes: usize,
    /// How many bytes the allocator says it has.
    pub usable_bytes: usize,
    /// The alignment asked for.
    pub align: usize,
    /// Its contents.
    pub payload: Payload,
}

// SAFETY: the object's memory belongs to the holder of the value, on any thread.
unsafe impl Send for Object {}

impl Object {
    /// Panics unless the contents are as they were written.
    pub fn verify(&self) {
        // SAFETY: the object is this value's, and was written when it was made.
        let difference = unsafe { self.payload.first_difference(self.start, self.bytes) };
        assert!(
            difference.is_none(),
            "object {:#x} at {:p} of {} bytes was changed at byte {}",
            self.payload.tag(),
            self.start,
            self.bytes,
            difference.unwrap_or(0)
        );
    }

    fn end(&self) -> usize {
        self.start.addr().get() + self.usable_bytes.max(1)
    }
}

/// The live objects of one thread.
#[derive(Debug, Default)]
pub struct Shadow {
    objects: Vec<Object>,
    /// Start and end of each object, to find overlaps.
    extents: BTreeMap<usize, usize>,
    live_bytes: usize,
    usable_bytes: usize,
}

impl Shadow {
    /// How many objects are live.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether none is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The bytes asked for of all live objects.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// The usable bytes of all live objects.
    #[must_use]
    pub fn usable_bytes(&self) -> usize {
        self.usable_bytes
    }

    /// All live objects, in no order.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter()
    }

    /// The object at `index`, below [`len`](Self::len); removals renumber.
    #[must_use]
    pub fn get(&self, index: usize) -> &Object {
        &self.objects[index]
    }

    /// Enters an object. Panics if it overlaps another or is too small.
    pub fn insert(&mut self, object: Object) {
        let (start, end) = (object.start.addr().get(), object.end());
        assert!(
            object.usable_bytes >= object.bytes,
            "{:p}: {} usable bytes for a request of {}",
            object.start,
            object.usable_bytes,
            object.bytes
        );
        let below = self.extents.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, &other_end)| other_end <= start),
            "{start:#x}..{end:#x} overlaps a live object, {below:#x?}"
        );
        self.extents.insert(start, end);
        self.live_bytes += object.bytes;
        self.usable_bytes += object.usable_bytes;
        self.objects.push(object);
    }

    /// Removes the object at `index` and returns it.
    pub fn remove(&mut self, index: usize) -> Object {
        let object = self.objects.swap_remove(index);
        self.extents.remove(&object.start.addr().get());
        self.live_bytes -= object.bytes;
        self.usable_bytes -= object.usable_bytes;
        object
    }

    /// Verifies the contents of every object.
    pub fn verify_all(&self) {
        self.objects.iter().for_each(Object::verify);
    }
}

/// Panics unless all objects of all shadows are disjoint. O(objects × log).
pub fn assert_disjoint<'a>(objects: impl IntoIterator<Item = &'a Object>) {
    let mut extents: Vec<_> =
        objects.into_iter().map(|object| (object.start.addr().get(), object.end())).collect();
    extents.sort_unstable();
    for pair in extents.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "live objects overlap: {pair:#x?}");
    }
}
