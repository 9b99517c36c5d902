extern crate std;

use std::boxed::Box;
use std::vec::Vec;

use hectare_check::Random;

use super::*;

/// A slab of `class`, on no list. All its objects are free.
fn fresh(class: ClassId) -> Box<Slab> {
    // SAFETY: zeroed memory is a valid descriptor.
    let mut slab: Box<Slab> = unsafe { Box::new_zeroed().assume_init() };
    let words = NonNull::from(Box::leak(Box::new([0_u64; WORDS]))).cast();
    // SAFETY: leaked, and of no other slab.
    unsafe { slab.open(NonNull::dangling(), words, class, false) };
    slab
}

/// As [`fresh`], but all objects are out.
fn open(class: ClassId) -> Box<Slab> {
    let mut slab = fresh(class);
    let objects = slab.objects();
    (0..WORDS).for_each(|at| *slab.word_mut(at) = 0);
    slab.summary = 0;
    slab.set_free(0, objects);
    slab
}

#[test]
fn a_row_is_its_objects_one_by_one() {
    let mut random = Random::new(3);
    for class in ClassId::all() {
        let objects = class.objects() as u32;
        for most in [1, 2, 7, 60, 5000] {
            let [mut by_row, mut one_by_one] = [open(class), open(class)];
            let mut order: Vec<u32> = (0..objects).collect();
            if random.below(2) == 0 {
                (1..order.len()).for_each(|i| order.swap(i, random.below(i + 1)));
            }
            let mut rest = &order[..];
            while !rest.is_empty() {
                let (row, behind) = rest.split_at((1 + random.below(most)).min(rest.len()));
                rest = behind;
                let mut moves = false;
                for &index in row {
                    if one_by_one.has_to_move() {
                        one_by_one.choose_list();
                    }
                    moves |= one_by_one.give(index) == Returned::Moves;
                }
                let mut left = row.iter().copied();
                assert_eq!(by_row.give_row(|| left.next()), (row.len(), true));
                assert_eq!(by_row.has_to_move(), moves, "{class:?}, {row:?}");
                assert!((0..WORDS).all(|at| by_row.word(at) == one_by_one.word(at)));
                assert_eq!(by_row.summary, one_by_one.summary);
                assert_eq!(by_row.free(), one_by_one.free());
                for slab in [&mut by_row, &mut one_by_one] {
                    slab.choose_list();
                    slab.validate();
                }
            }
        }
    }
}

/// What came back before that object is counted.
#[test]
fn a_row_ends_at_an_object_that_is_free() {
    let mut slab = open(ClassId::for_bytes(16));
    assert_eq!(slab.give(70), Returned::Ok);
    let mut numbers = [3, 2000, 69, 70, 71].into_iter();
    assert_eq!(slab.give_row(|| numbers.next()), (3, false));
    assert_eq!((numbers.next(), slab.free()), (Some(71), 4));
    slab.choose_list();
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
