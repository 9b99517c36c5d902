extern crate std;

use std::boxed::Box;

use hectare_check::Random;

use super::*;

/// A slab of `class`, listed nowhere, all of whose objects are free.
fn fresh(class: ClassId) -> Box<Slab> {
    // SAFETY: zeroed memory is a valid descriptor.
    let mut slab: Box<Slab> = unsafe { Box::new_zeroed().assume_init() };
    let far_words = NonNull::from(Box::leak(Box::new([0; FAR_WORDS])));
    // SAFETY: leaked, and of no other slab.
    unsafe { slab.open(NonNull::dangling(), far_words, class, false) };
    slab
}

/// As [`fresh`], all of whose objects are out.
fn open(class: ClassId) -> Box<Slab> {
    let mut slab = fresh(class);
    let objects = slab.objects();
    (0..WORDS).for_each(|at| *slab.word_mut(at) = 0);
    slab.summary = 0;
    slab.set_free(0, objects);
    slab
}

#[test]
fn a_word_is_its_objects_one_by_one() {
    let mut random = Random::new(3);
    for class in ClassId::all() {
        for _ in 0..20 {
            let [mut by_word, mut one_by_one] = [open(class), open(class)];
            while by_word.left > 0 {
                let at = random.below(by_word.objects().div_ceil(64));
                let objects = (by_word.objects() - at * 64).min(64);
                let taken = !by_word.word(at) & (u64::MAX >> (64 - objects));
                let bits = taken & (random.bits() | random.bits());
                if bits == 0 {
                    continue;
                }
                let mut expected = Returned::Ok;
                for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                    expected = one_by_one.give((at * 64 + bit) as u32);
                }
                assert_eq!(by_word.give_word(at, bits), expected, "{class:?}, {at}, {bits:#x}");
                assert!((0..WORDS).all(|at| by_word.word(at) == one_by_one.word(at)));
                assert_eq!(by_word.summary, one_by_one.summary);
                assert_eq!(by_word.free(), one_by_one.free());
            }
        }
    }
}

/// A word may have more objects than it takes for the slab to belong elsewhere.
#[test]
fn a_word_may_go_beyond_a_group() {
    let mut slab = open(ClassId::for_bytes(1000));
    slab.choose_list();
    assert_eq!(slab.give_word(0, u64::MAX >> 14), Returned::Moves);
    assert_eq!(slab.free(), 50);
    slab.choose_list();
    assert_eq!(slab.list().group(), 50 * GROUPS / (slab.objects() + 1));
    slab.validate();
}

#[test]
fn what_reaches_into_a_withheld_frame_is_no_object() {
    let memory = std::vec![0_u8; SLAB_BYTES];
    for class in ClassId::all() {
        let mut slab = fresh(class);
        slab.start = memory.as_ptr().expose_provenance();
        let last = slab.withhold_last_frame();
        let objects = (SLAB_BYTES - FRAME_BYTES) / class.object_bytes();
        assert_eq!((slab.objects(), slab.free(), slab.bare_frames()), (objects, objects, 1));
        assert!(
            slab.address_of(objects as u32 - 1).wrapping_add(class.object_bytes()) <= last.as_ptr()
        );
        slab.choose_list();
        slab.validate();
    }
}

#[test]
fn a_free_object_is_not_taken_nor_is_what_lies_behind_the_last() {
    let class = ClassId::for_bytes(100);
    let mut slab = open(class);
    assert_eq!(slab.give(70), Returned::Ok);
    let is_taken = |index: usize| {
        let address = SLAB_BYTES + index * class.object_bytes();
        let start = NonNull::new(core::ptr::without_provenance_mut(address)).expect("not null");
        // SAFETY: only its address is looked at.
        slab.is_taken(unsafe { FreeObject::new(start) })
    };
    let end = slab.objects();
    assert_eq!([69, 70, 71, end - 1, end].map(is_taken), [true, false, true, true, false]);
}
