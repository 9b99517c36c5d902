//! Which object lives at an address.
//!
//! ```text
//!  address   │ 47 … 26 │ 25 … 3 │ 2 … 0 │
//!                 │         └── entry in a leaf: the object's number, 0 for none
//!                 └── slot in the root: the leaf for 64 MiB of addresses, made when first needed
//! ```
//!
//! A look-up is two dependent loads. Both tables are address space that costs memory only where
//! objects begin, at most as much as the heap itself. A leaf whose first object is small gets
//! filled all over and looked up at random; huge pages save 10 ns an event there (28 instead of 38,
//! random sizes up to 3000 bytes in 4096 slots). A leaf whose first object is large would only
//! waste them. Accesses to entries are relaxed: by invariant 3 of the crate the recorded allocator
//! orders those to the same entry. A forked child gets a copy of the tables with everything else,
//! so the objects that it inherits keep their numbers.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use hectare_trace::ObjectId;

use crate::sys::{self, Grain};

/// A program on x86-64 has 47 bits, one on aarch64 48, with its heap in their upper half.
const ADDRESS_BITS: u32 = 48;
const LEAF_BITS: u32 = 26;
const GRAIN_BITS: u32 = 3;
const ROOT_SLOTS: usize = 1 << (ADDRESS_BITS - LEAF_BITS);
const LEAF_ENTRIES: usize = 1 << (LEAF_BITS - GRAIN_BITS);

/// Objects below this size, in bytes, lie close together: more than 30 of them in the part of the
/// table that one huge page holds.
const SMALL_BYTES: usize = 1 << 16;

/// The leaves, by address and as a list.
struct Root {
    slots: [AtomicPtr<Leaf>; ROOT_SLOTS],
    /// Those made, in the order in which they were.
    made: [AtomicPtr<Leaf>; ROOT_SLOTS],
    count: AtomicUsize,
}

type Leaf = [AtomicU64; LEAF_ENTRIES];

static ROOT: AtomicPtr<Root> = AtomicPtr::new(null_mut());

/// Makes the root table; false when there is no address space for it.
pub(crate) fn prepare() -> bool {
    let Some(root) = sys::reserve(size_of::<Root>(), Grain::Page) else { return false };
    ROOT.store(root.as_ptr().cast(), Ordering::Release);
    true
}

/// Records that `object` of `size` bytes lives at `address`. False if there is no address space for
/// that; such an object would seem to live for ever.
#[inline(always)]
pub(crate) fn set(address: *mut u8, object: ObjectId, size: usize) -> bool {
    let leaf = match leaf(address) {
        Some(leaf) => leaf,
        None => match make_leaf(address, size) {
            Some(leaf) => leaf,
            None => return false,
        },
    };
    leaf[entry(address)].store(object.bits(), Ordering::Relaxed);
    true
}

/// The object at `address`.
#[inline(always)]
pub(crate) fn get(address: *mut u8) -> Option<ObjectId> {
    ObjectId::from_bits(leaf(address)?[entry(address)].load(Ordering::Relaxed))
}

/// Removes the object at `address`, which no longer lives there.
#[inline(always)]
pub(crate) fn take(address: *mut u8) -> Option<ObjectId> {
    let entry = &leaf(address)?[entry(address)];
    let object = entry.load(Ordering::Relaxed);
    entry.store(0, Ordering::Relaxed);
    ObjectId::from_bits(object)
}

#[inline(always)]
fn entry(address: *mut u8) -> usize {
    address.addr() >> GRAIN_BITS & (LEAF_ENTRIES - 1)
}

/// The slot of the leaf for `address`. `None` before [`prepare`], and for addresses of more than 48
/// bits, which a program gets only if it asks for them.
#[inline(always)]
fn slot(address: *mut u8) -> Option<&'static AtomicPtr<Leaf>> {
    root()?.slots.get(address.addr() >> LEAF_BITS)
}

/// The root table; `None` before [`prepare`].
#[inline(always)]
fn root() -> Option<&'static Root> {
    let root = ROOT.load(Ordering::Acquire);
    // SAFETY: null, or the table of `prepare`, which is never unmapped and zero is a valid slot.
    unsafe { root.as_ref() }
}

/// How much memory the leaves take, bytes.
pub(crate) fn resident_bytes() -> usize {
    let Some(root) = root() else { return 0 };
    let made = root.made.iter().take(root.count.load(Ordering::Acquire));
    let leaves = made.filter_map(|leaf| NonNull::new(leaf.load(Ordering::Acquire)));
    leaves.map(|leaf| sys::resident_bytes(leaf.cast(), size_of::<Leaf>())).sum()
}

#[inline(always)]
fn leaf(address: *mut u8) -> Option<&'static Leaf> {
    let leaf = slot(address)?.load(Ordering::Acquire);
    // SAFETY: null, or a table of `make_leaf`, which is never unmapped once in its slot.
    unsafe { leaf.as_ref() }
}

#[cold]
fn make_leaf(address: *mut u8, size: usize) -> Option<&'static Leaf> {
    let _errno = sys::KeepErrno::new();
    let slot = slot(address)?;
    let grain = if size < SMALL_BYTES { Grain::HugePage } else { Grain::Page };
    let made = sys::reserve(size_of::<Leaf>(), grain)?;
    let fresh = made.as_ptr().cast();
    if slot.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first; this mapping was never shown to anyone.
        unsafe { sys::unmap(NonNull::cast(made), size_of::<Leaf>()) };
    } else if let Some(root) = root() {
        // There are as many places as slots, and each slot is filled once.
        let nth = root.count.fetch_add(1, Ordering::AcqRel);
        root.made[nth].store(fresh, Ordering::Release);
    }
    leaf(address)
}
