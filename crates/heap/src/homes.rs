//! A bin's lists: its slabs that have room, by home and by how full they are.
//!
//! If two CPUs take turns at one slab, their batches of it interleave. A processor that goes
//! through a batch prefetches what lies behind it, and so takes lines away from the other CPU, over
//! and over. So CPUs have homes, and a slab belongs to the home that was last served from it.
//!
//! ```text
//!   first  home 0:  fullest ─▶ slab ─▶ slab …   │ … │ emptiest
//!   more   home 1:  …                                          only where several CPUs take from some slabs
//!          home 2:  …
//! ```
//! Each group has two lists. The first has the *ripe* slabs, in which a look for holes may find
//! some (`slab/idle.rs`). So a look visits no other slabs.
//!
//! Invariant: a slab is on the list that its `list` names, and on no other.

use core::ptr::NonNull;

use crate::slab::{Slab, SlabRef};

/// How many groups slabs are sorted into by fullness: group 0 has the fullest.
pub(crate) const GROUPS: usize = 8;

/// How many lists a home has: two for each group.
const LISTS: usize = 2 * GROUPS;

/// How many homes there are, a power of two.
const HOMES: usize = 4;

/// The home of the CPU numbered `cpu`.
pub(crate) fn home_of(cpu: usize) -> Home {
    Home((cpu % HOMES) as u8)
}

/// A home of CPUs, less than [`HOMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home(u8);

impl Home {
    /// The only home, unless there are several.
    const FIRST: Self = Self(0);
}

/// The name of a list: place × [`HOMES`] + home. The place among the home's lists is 2 × group, and
/// 1 more if the slabs are not ripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListName(u8);

const _: () = assert!(LISTS * HOMES <= u64::BITS as usize, "one bit a list in a word");

impl ListName {
    /// The list of the first home's fullest slabs that are ripe.
    pub(crate) const FIRST: Self = Self(0);

    fn new(place: usize, home: Home) -> Self {
        Self((place * HOMES) as u8 + home.0)
    }

    fn home(self) -> Home {
        Home(self.0 % HOMES as u8)
    }

    fn place(self) -> usize {
        usize::from(self.0) / HOMES % LISTS
    }

    /// The group of its slabs, by fullness.
    #[cfg(test)]
    pub(crate) fn group(self) -> usize {
        self.place() / 2
    }

    /// Whether its slabs are ripe.
    pub(crate) fn is_ripe(self) -> bool {
        self.place().is_multiple_of(2)
    }

    /// The list of the same home for slabs of `group`, ripe or not.
    pub(crate) fn with_group(self, group: usize, is_ripe: bool) -> Self {
        Self::new(2 * group + usize::from(!is_ripe), self.home())
    }

    /// The list of `home` for slabs that are as full and as ripe.
    pub(crate) fn with_home(self, home: Home) -> Self {
        Self::new(self.place(), home)
    }

    /// Its bit.
    fn bit(self) -> u64 {
        1_u64.wrapping_shl(self.0.into())
    }
}

/// Which slabs are visited.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    All,
    /// Those that are [ripe](Slab::is_ripe).
    Ripe,
}

type OfHome = [Option<SlabRef>; LISTS];
type MoreHomes = [OfHome; HOMES - 1];

/// The lists of all homes. Guarded by the lock of the bin.
#[derive(Debug)]
pub(crate) struct Lists {
    /// A bit for each list that is not empty, by its name. Lists of fuller slabs have lower bits.
    listed: u64,
    first: OfHome,
    /// Memory of the bin's own, for good, once there is more than one home.
    more: Option<NonNull<MoreHomes>>,
}

// SAFETY: `more` is memory of the lists' own.
unsafe impl Send for Lists {}

impl Lists {
    /// How many bytes [`divide`](Self::divide) needs.
    pub(crate) const MORE_BYTES: usize = size_of::<MoreHomes>();

    pub(crate) const fn new() -> Self {
        Self { listed: 0, first: [None; LISTS], more: None }
    }

    /// Whether there is more than one home.
    pub(crate) fn are_divided(&self) -> bool {
        self.more.is_some()
    }

    /// From now on each home has lists of its own.
    ///
    /// # Safety
    /// `memory` is zeroed, the caller's, aligned to words and as long as [`MORE_BYTES`](Self::MORE_BYTES).
    pub(crate) unsafe fn divide(&mut self, memory: NonNull<u8>) {
        self.more = Some(memory.cast());
    }

    fn homes(&self) -> impl Iterator<Item = Home> + use<> {
        (0..if self.are_divided() { HOMES as u8 } else { 1 }).map(Home)
    }

    fn of_home(&mut self, home: Home) -> &mut OfHome {
        match self.more {
            // SAFETY: the lists' own memory, borrowed with them; a home is less than HOMES.
            Some(mut more) if home != Home::FIRST => unsafe {
                &mut more.as_mut()[usize::from(home.0 - 1) % (HOMES - 1)]
            },
            _ => &mut self.first,
        }
    }

    fn head(&mut self, list: ListName) -> &mut Option<SlabRef> {
        &mut self.of_home(list.home())[list.place()]
    }

    /// The fullest slab of `home`.
    pub(crate) fn fullest_of(&mut self, home: Home) -> Option<SlabRef> {
        /// The bits of the first home's lists.
        const FIRST: u64 = u64::MAX / ((1 << HOMES) - 1);
        self.first_of(self.listed & FIRST << home.0)
    }

    /// The fullest slab of all homes.
    pub(crate) fn fullest(&mut self) -> Option<SlabRef> {
        self.first_of(self.listed)
    }

    #[inline(never)]
    fn first_of(&mut self, lists: u64) -> Option<SlabRef> {
        if lists == 0 {
            return None;
        }
        *self.head(ListName(lists.trailing_zeros() as u8))
    }

    /// Puts a slab that is on no list on the list where it belongs.
    #[inline(never)]
    pub(crate) fn insert(&mut self, name: SlabRef, slab: &mut Slab) {
        slab.choose_list();
        let first = self.head(slab.list());
        slab.previous = None;
        slab.next = *first;
        if let Some(second) = *first {
            // SAFETY: a listed slab is this bin's, whose lock is held. It is not `slab`, which was
            // on no list.
            unsafe { second.get() }.previous = Some(name);
        }
        *first = Some(name);
        self.listed |= slab.list().bit();
    }

    /// Takes a slab off its list.
    #[inline(never)]
    pub(crate) fn remove(&mut self, name: SlabRef, slab: &mut Slab) {
        match slab.previous {
            // SAFETY: a neighbour on a list of this bin, whose lock is held; not `slab` itself.
            Some(previous) => unsafe { previous.get() }.next = slab.next,
            None => {
                let first = self.head(slab.list());
                debug_assert!(*first == Some(name));
                *first = slab.next;
                if slab.next.is_none() {
                    self.listed &= !slab.list().bit();
                }
            }
        }
        if let Some(next) = slab.next {
            // SAFETY: as above.
            unsafe { next.get() }.previous = slab.previous;
        }
    }

    /// Calls `visit` for `which` slabs of the groups from `least` on, until it returns `false`.
    /// Slabs that belong to another list afterwards are moved. Returns what the last call did.
    pub(crate) fn all_from(
        &mut self,
        least: usize,
        which: Which,
        mut visit: impl FnMut(&mut Slab) -> bool,
    ) -> bool {
        let step = match which {
            Which::All => 1,
            Which::Ripe => 2,
        };
        for home in self.homes() {
            for place in (2 * least..LISTS).step_by(step) {
                let mut next = self.of_home(home)[place];
                while let Some(name) = next {
                    // SAFETY: a listed slab is this bin's, and its lock is held.
                    let slab = unsafe { name.get() };
                    next = slab.next;
                    if let Some(next) = next {
                        next.prefetch();
                    }
                    if !visit(slab) {
                        return false;
                    }
                    if slab.is_ripe() == slab.list().is_ripe() {
                        // It stays on its list, but may have to move at another number of free
                        // objects.
                        slab.choose_list();
                    } else {
                        self.remove(name, slab);
                        self.insert(name, slab);
                    }
                }
            }
        }
        true
    }

    /// Panics unless the invariant holds, and that of each slab. Returns how many objects are free. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&mut self) -> usize {
        let mut free_objects = 0;
        let names = |home| (0..LISTS).map(move |place| ListName::new(place, home));
        for list in self.homes().flat_map(names) {
            let mut next = *self.head(list);
            assert_eq!(self.listed & list.bit() != 0, next.is_some(), "a list's bit");
            let mut previous = None;
            while let Some(name) = next {
                // SAFETY: a listed slab is this bin's, and the bin is borrowed: its lock is held.
                let slab = unsafe { name.get() };
                slab.validate();
                assert!(slab.free() > 0 && !slab.is_empty(), "a full or an empty slab is listed");
                assert_eq!(slab.list(), list, "a slab is on the wrong list");
                assert_eq!(slab.previous, previous, "a broken backward link");
                free_objects += slab.free();
                previous = next;
                next = slab.next;
            }
        }
        free_objects
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::class::ClassId;
    use crate::gathered::Gathered;
    use crate::slab::{FarWords, FreshSlab, Returned, SlabEntry};

    const CLASS: ClassId = ClassId::for_bytes(1024);

    /// Slabs just opened, which have no memory.
    fn slabs(count: usize) -> Vec<SlabRef> {
        let descriptors = Box::leak(Box::<[SlabEntry]>::new_zeroed_slice(count));
        let open = |entry: &mut core::mem::MaybeUninit<SlabEntry>| {
            // SAFETY: zeros are a descriptor, which stays for good.
            let name = unsafe { SlabRef::new(NonNull::from(entry).cast()) };
            let far_words = NonNull::<FarWords>::dangling();
            let start = NonNull::dangling();
            let name = FreshSlab { name, far_words, start, bare: false }.open(CLASS);
            // SAFETY: there is no other reference. One object is in use: only such slabs are listed.
            unsafe { name.get() }.take(1, &mut Gathered::new(), 1);
            name
        };
        descriptors.iter_mut().map(open).collect()
    }

    fn insert(lists: &mut Lists, name: SlabRef, home: Home) {
        // SAFETY: there is no other reference.
        let slab = unsafe { name.get() };
        slab.move_to(home);
        lists.insert(name, slab);
    }

    fn visited(lists: &mut Lists) -> usize {
        let mut visited = 0;
        assert!(lists.all_from(1, Which::All, |slab| {
            visited += 1;
            slab.list().group() == GROUPS - 1
        }));
        visited
    }

    #[test]
    fn the_slabs_of_all_homes_are_found() {
        let mut lists = Lists::new();
        let [first, other] = slabs(2)[..] else { unreachable!() };
        insert(&mut lists, first, Home::FIRST);
        insert(&mut lists, other, Home::FIRST);
        assert_eq!(visited(&mut lists), 2);
        // The last slab of its list is taken off and begins the list another time.
        // SAFETY: there is no other reference.
        lists.remove(first, unsafe { first.get() });
        insert(&mut lists, first, Home::FIRST);
        lists.validate();
        let memory = Box::leak(Box::<MoreHomes>::new_zeroed());
        // SAFETY: zeroed, of that length, and nobody else's.
        unsafe { lists.divide(NonNull::from(memory).cast()) };
        let of_homes = slabs(HOMES);
        for (cpu, &name) in of_homes.iter().enumerate() {
            insert(&mut lists, name, home_of(cpu));
            assert_eq!(lists.fullest_of(home_of(cpu)), Some(name));
        }
        assert_eq!(visited(&mut lists), 2 + HOMES);
        let mut visits = 0;
        assert!(!lists.all_from(1, Which::All, |_| {
            visits += 1;
            visits < 4
        }));
        assert_eq!(visits, 4, "it ends where it is told to");
        for &name in &of_homes[1..] {
            assert_eq!(lists.fullest(), lists.fullest_of(Home::FIRST), "of alike ones the first");
            // SAFETY: there is no other reference.
            lists.remove(name, unsafe { name.get() });
        }
        // The slab in the middle of its list.
        // SAFETY: as above.
        lists.remove(other, unsafe { other.get() });
        assert_eq!((visited(&mut lists), lists.validate()), (2, 2 * (CLASS.objects() - 1)));
        for name in [first, of_homes[0]] {
            // SAFETY: as above.
            lists.remove(name, unsafe { name.get() });
        }
        assert_eq!(lists.fullest(), None);
        insert(&mut lists, of_homes[1], home_of(1));
        assert_eq!(lists.fullest(), Some(of_homes[1]), "whoever's it is");
    }

    /// Gives back the object numbered `index`, as the bin does.
    fn give(lists: &mut Lists, name: SlabRef, index: u32) {
        // SAFETY: there is no other reference.
        let slab = unsafe { name.get() };
        let was_full = slab.free() == 0;
        match slab.give(index) {
            Returned::Ok => {}
            Returned::Moves => {
                if !was_full {
                    lists.remove(name, slab);
                }
                lists.insert(name, slab);
            }
            Returned::Corrupt => panic!("{index} is free"),
        }
    }

    /// How many slabs a look visits.
    fn looked_at(lists: &mut Lists) -> usize {
        let mut visits = 0;
        assert!(lists.all_from(1, Which::Ripe, |slab| {
            slab.scavenge(&mut |_, _| {});
            visits += 1;
            true
        }));
        lists.validate();
        visits
    }

    #[test]
    fn a_look_visits_a_slab_when_a_quarter_has_gone_since_the_last() {
        let mut lists = Lists::new();
        let name = slabs(1)[0];
        // SAFETY: there is no other reference.
        unsafe { name.get() }.take(CLASS.objects(), &mut Gathered::new(), 1);
        let mut looked = Vec::new();
        for index in 0..CLASS.objects() as u32 - 1 {
            give(&mut lists, name, index);
            if looked_at(&mut lists) > 0 {
                looked.push(CLASS.objects() - 1 - index as usize);
            }
        }
        assert_eq!(looked, [31, 23, 17, 12, 9, 6, 4, 3, 2, 1], "in use each time, of 64");
    }

    #[test]
    fn a_look_visits_fuller_slabs_that_are_given_up() {
        let mut lists = Lists::new();
        let name = slabs(1)[0];
        // SAFETY: there is no other reference.
        unsafe { name.get() }.take(CLASS.objects(), &mut Gathered::new(), 1);
        (0..20).for_each(|index| give(&mut lists, name, index));
        assert_eq!(looked_at(&mut lists), 0);
        lists.all_from(1, Which::All, |slab| slab.give_up() != 0);
        lists.validate();
        assert_eq!((looked_at(&mut lists), looked_at(&mut lists)), (1, 0));
    }

    #[test]
    fn a_slab_that_is_given_up_too_full_for_a_look_ripens_as_others_do() {
        let mut lists = Lists::new();
        let name = slabs(1)[0];
        // SAFETY: there is no other reference.
        unsafe { name.get() }.take(CLASS.objects(), &mut Gathered::new(), 1);
        (0..10).for_each(|index| give(&mut lists, name, index));
        lists.all_from(1, Which::All, |slab| slab.give_up() != 0);
        assert_eq!(looked_at(&mut lists), 0);
        (10..15).for_each(|index| give(&mut lists, name, index));
        assert_eq!(looked_at(&mut lists), 0);
        give(&mut lists, name, 15);
        assert_eq!((looked_at(&mut lists), looked_at(&mut lists)), (1, 0), "a quarter has gone");
    }
}
