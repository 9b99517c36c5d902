//! A compressed page store in forty lines: a megabyte of text in pages, a limit on memory, a file
//! for what does not fit. `cargo run --release -p hectare-store --example page_cache`

use std::error::Error;
use std::fs::OpenOptions;

use hectare_pages::{FutexPark, Os};
use hectare_pool::Dense;
use hectare_store::{Config, Lz4, Select, Store, Zstd};

const PAGES: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join("hectare-page-cache");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let pool: Dense<Os, FutexPark> = Dense::new(Os);
    let config = Config {
        codecs: vec![Box::new(Lz4), Box::new(Zstd::new(9))],
        limit_bytes: 256 << 10,
        backing: Some(file),
        ..Config::new(PAGES)
    };
    let store = Store::new(pool, config)?;

    let page = |key: usize| -> Vec<u8> {
        let line = |n: usize| format!("{:08} page {key}, line {n}\n", (key * 131 + n * n) % 99_991);
        (0..).flat_map(|n| line(n).into_bytes()).take(4096).collect()
    };
    for key in 0..PAGES {
        store.put(key, &page(key))?;
    }
    println!("put:          {}", store.stats().mm_stat());
    store.recompress(1, Select::All)?;
    println!("recompressed: {}", store.stats().mm_stat());

    let mut read = vec![0; 4096];
    for key in 0..PAGES {
        assert!(store.get(key, &mut read)? && read == page(key));
    }
    println!("file:         {}", store.stats().bd_stat());
    std::fs::remove_file(path)?;
    Ok(())
}
