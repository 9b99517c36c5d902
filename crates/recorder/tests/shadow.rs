//! The table from address to object, by itself: the library's own tests would be recorded.

#[path = "../src/shadow.rs"]
mod shadow;
#[allow(dead_code, reason = "the table needs only part of it")]
#[path = "../src/sys.rs"]
mod sys;

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use hectare_trace::{ObjectId, ThreadId};

/// All tests of this process share the table.
fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| assert!(shadow::prepare()));
}

/// On aarch64 programs and their heaps lie in the upper half of 48 bits, on x86-64 of 47.
#[test]
fn an_object_is_found_wherever_a_program_can_have_it() {
    prepare();
    let addresses = [0x10_0000, 0x7fff_f7e0_1230, 0xaaaa_b000_0010, 0xffff_ffff_eff8_usize];
    let objects = addresses.map(|address| {
        let object = ObjectId::new(ThreadId(1), address as u64);
        assert!(shadow::set(std::ptr::without_provenance_mut(address), object, 16));
        (std::ptr::without_provenance_mut(address), object)
    });
    for (address, object) in objects {
        assert_eq!(shadow::get(address), Some(object), "{address:p}");
        assert_eq!(shadow::take(address), Some(object), "{address:p}");
        assert_eq!(shadow::get(address), None, "{address:p}");
    }
}

#[test]
fn what_the_table_takes_is_known() {
    prepare();
    let before = shadow::resident_bytes();
    let base = 0x1234_0000_0000_usize;
    for page in 0..1000 {
        let address = std::ptr::without_provenance_mut(base + page * 4096);
        assert!(shadow::set(address, ObjectId::new(ThreadId(3), page as u64), 1 << 20));
    }
    let taken = shadow::resident_bytes() - before;
    // Other tests add a page for each part of the table meanwhile.
    assert!((1000 * 4096..=1000 * 4096 + (64 << 20)).contains(&taken), "{taken} bytes");
}

/// Each part of the table, of 64 MiB of addresses, is made by whoever needs it first.
#[test]
fn two_threads_that_make_one_part_of_the_table_find_both_their_objects() {
    prepare();
    let came = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 1..=2 {
            let came = &came;
            // Polls, so that neither is woken later than the other.
            let meet = |nth: usize| {
                came.fetch_add(1, Ordering::AcqRel);
                while came.load(Ordering::Acquire) < 2 * nth {
                    std::thread::yield_now();
                }
            };
            scope.spawn(move || {
                for part in 1000_usize..4000 {
                    let nth = 2 * (part - 1000) + 1;
                    let address = part * (64 << 20) + thread as usize * 4096;
                    let address = std::ptr::without_provenance_mut(address);
                    let object = ObjectId::new(ThreadId(thread), part as u64);
                    meet(nth);
                    assert!(shadow::set(address, object, 1 << 20));
                    meet(nth + 1);
                    assert_eq!(shadow::get(address), Some(object), "{address:p}");
                }
            });
        }
    });
}
