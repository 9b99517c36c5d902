//! The table from address to object, by itself: the library's own tests would be recorded.

#[path = "../src/shadow.rs"]
mod shadow;
#[allow(dead_code, reason = "the table needs only part of it")]
#[path = "../src/sys.rs"]
mod sys;

use hectare_trace::{ObjectId, ThreadId};

/// On aarch64 programs and their heaps lie in the upper half of 48 bits, on x86-64 of 47.
#[test]
fn an_object_is_found_wherever_a_program_can_have_it() {
    assert!(shadow::prepare());
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
