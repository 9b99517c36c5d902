//! Collections whose memory is one array. They grow in place, and none takes memory that others
//! need.
//!
//! `cargo run -p hectare-tlsf --example collections`

use std::ptr::NonNull;

use allocator_api2::{boxed::Box, vec::Vec};
use hashbrown::HashMap;
use hectare_tlsf::{Locked, Tlsf};

fn main() -> Result<(), std::boxed::Box<dyn std::error::Error>> {
    let mut memory = [0u128; 4096];
    let mut heap: Tlsf = Tlsf::new();
    // SAFETY: the memory outlives the heap, and nothing else uses it.
    unsafe { heap.add_pool(NonNull::from(&mut memory).cast(), size_of_val(&memory)) }?;
    let heap: Locked<Tlsf> = Locked::new(heap);

    let mut samples = Vec::new_in(&heap);
    samples.extend(0..1000_u32);
    let before = samples.as_ptr();
    // What follows the vector is free, so it grows without a copy.
    samples.try_reserve(5000).map_err(|_| "no room")?;
    assert_eq!(samples.as_ptr(), before);

    let mut names = HashMap::new_in(&heap);
    let sum = samples.iter().sum::<u32>();
    names.insert("sum", Box::try_new_in(sum, &heap).map_err(|_| "no room")?);
    println!("sum {}, {} bytes used", names["sum"], heap.lock().stats().used_bytes);

    // A request for more than the array has is refused; the vector stays as it was.
    assert!(samples.try_reserve(100_000).is_err());
    assert_eq!(samples.len(), 1000);
    drop((samples, names));
    assert_eq!(heap.lock().stats().used_bytes, 0);
    Ok(())
}
