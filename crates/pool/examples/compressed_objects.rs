//! Objects of any size in a dense pool; half of them are freed, and the pool is compacted. Prints
//! what the pool costs at each moment.
//! `cargo run --release -p hectare-pool --example compressed_objects`

use std::error::Error;

use hectare_pages::{FutexPark, Os};
use hectare_pool::{Dense, Handle, Pool};

fn show(moment: &str, pool: &impl Pool) {
    let stats = pool.stats();
    let overhead = stats.footprint_bytes() as f64 / stats.stored_bytes as f64 - 1.0;
    println!("{moment}: {} objects, {:+.1} % over their bytes", stats.objects, overhead * 100.0);
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool: Dense<Os, FutexPark> = Dense::new(Os);
    let mut objects: Vec<(Handle, Vec<u8>)> = Vec::new();
    for number in 0..10_000_usize {
        let content = vec![number as u8; 100 + number * 7919 % 3000];
        let handle = pool.alloc(content.len())?;
        // SAFETY: just allocated with that length.
        unsafe { pool.write(handle, &content) };
        objects.push((handle, content));
    }
    show("stored", &pool);
    let (kept, freed): (Vec<_>, Vec<_>) =
        objects.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
    for (_, (handle, _)) in freed {
        // SAFETY: live, and forgotten here.
        unsafe { pool.free(handle) };
    }
    show("half freed", &pool);
    pool.compact();
    show("compacted", &pool);
    let mut bounce = vec![0; pool.max_size_bytes()];
    for (_, (handle, content)) in &kept {
        // SAFETY: live and written; its handle is the same wherever the object lies now.
        unsafe { pool.read(*handle, &mut bounce, &mut |bytes| assert_eq!(bytes, content)) };
    }
    Ok(())
}
