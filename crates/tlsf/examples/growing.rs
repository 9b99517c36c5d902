//! A heap that takes regions from a page source as it needs them and gives free ones back.
//!
//! `cargo run -p hectare-tlsf --example growing`

use hectare_pages::Os;
use hectare_tlsf::{Growing, GrowthPolicy};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = GrowthPolicy { region_bytes: 64 << 10, keep_free_bytes: 0 };
    let mut heap: Growing<Os> = Growing::new(Os, policy);
    let mut blocks = Vec::new();
    for number in 0..1000 {
        let block = heap.memalign(64, 100 + number % 900).ok_or("the system has no memory left")?;
        blocks.push(block);
    }
    println!("with 1000 blocks: {:?}", heap.counts());
    let grown = blocks[0];
    // SAFETY: a block of this heap; the old address is used no more.
    let grown =
        unsafe { heap.realloc(grown, 64, 10_000) }?.ok_or("the system has no memory left")?;
    blocks[0] = grown;
    for block in blocks {
        // SAFETY: a block of this heap that is used no more.
        unsafe { heap.free(block) }?;
    }
    println!("without: {:?}", heap.counts());
    assert_eq!(heap.counts().region_bytes, 0);
    // A second free is refused, while the heap still has the memory.
    let block = heap.malloc(10).ok_or("the system has no memory left")?;
    let kept = heap.malloc(10).ok_or("the system has no memory left")?;
    // SAFETY: a block of this heap that is used no more.
    unsafe { heap.free(block) }?;
    // SAFETY: the program no longer uses the block; the heap says what is wrong with the pointer.
    println!("again: {}", unsafe { heap.free(block) }.unwrap_err());
    // SAFETY: a block of this heap that is used no more.
    unsafe { heap.free(kept) }?;
    Ok(())
}
