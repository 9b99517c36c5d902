//! The store against a map of pages, and its account against its slots.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use hectare_check::{Random, seed, soak_operations};
use hectare_pages::{Failing, Os};
use hectare_pool::{Dense, Pool, PoolError, Xv, Zs};

use crate::dedup::Dedup;
use crate::slot::{CodecId, Shared};
use crate::*;

mod contents;
mod limit;

const PAGE: usize = 4096;

/// A file for one test, deleted at once: it exists as long as it is open.
fn scratch_file() -> File {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let name = format!("hectare-store-{}-{number}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(path).expect("the file just made");
    file
}

fn dense() -> Dense<Os> {
    Dense::new(Os)
}

/// Everything on: codecs, contents compared, a file.
fn config(pages: usize) -> Config {
    Config {
        codecs: vec![Box::new(Lz4), Box::new(Zstd::new(3)), Box::new(Zstd::new(12))],
        dedup: true,
        backing: Some(scratch_file()),
        ..Config::new(pages)
    }
}

fn noise(random: &mut Random) -> Vec<u8> {
    (0..PAGE / 8).flat_map(|_| random.bits().to_ne_bytes()).collect()
}

/// Words of a small vocabulary: LZ4 about halves them, zstd does better.
fn text(random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 8] =
        ["page ", "pool ", "store ", "of ", "a ", "frame\n", "handle ", "the "];
    let mut page = Vec::with_capacity(PAGE + 8);
    while page.len() < PAGE {
        page.extend_from_slice(WORDS[random.below(8)].as_bytes());
        if random.one_in(5) {
            page.extend_from_slice(&random.bits().to_ne_bytes()[..3]);
        }
    }
    page.truncate(PAGE);
    page
}

fn any_page(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => vec![random.bits() as u8; PAGE],
        1 => random.bits().to_ne_bytes().repeat(PAGE / 8),
        2 => noise(random),
        // One of a few texts: most of them are stored already.
        3 | 4 => text(&mut Random::new(random.below(6) as u64)),
        _ => text(random),
    }
}

/// What should be in a store, and the account that follows from its slots.
struct Shadow {
    pages: HashMap<usize, Vec<u8>>,
    room: Vec<u8>,
}

impl Shadow {
    fn new() -> Self {
        Self { pages: HashMap::new(), room: vec![0; PAGE] }
    }

    fn put(
        &mut self,
        store: &Store<impl Pool>,
        key: usize,
        page: Vec<u8>,
    ) -> Result<(), StoreError> {
        store.put(key, &page)?;
        self.pages.insert(key, page);
        Ok(())
    }

    fn check(&mut self, store: &Store<impl Pool>, key: usize) {
        self.room.fill(0xEE);
        let found = store.get(key, &mut self.room).expect("a sound store");
        assert_eq!(found, self.pages.contains_key(&key), "page {key}");
        if let Some(page) = self.pages.get(&key) {
            assert!(*page == self.room, "page {key} has another content");
        }
    }

    fn remove(&mut self, store: &Store<impl Pool>, key: usize) {
        let was_there = store.remove(key).expect("a key of the store");
        assert_eq!(was_there, self.pages.remove(&key).is_some(), "page {key}");
    }

    fn check_all(&mut self, store: &Store<impl Pool>) {
        for key in 0..store.slots.len() {
            self.check(store, key);
        }
        self.account(store);
    }

    /// Checks every number of the account that follows from the slots.
    fn account(&self, store: &Store<impl Pool>) {
        let (mut same, mut raw, mut file, mut compressed, mut own_bytes) = (0, 0, 0, 0, 0);
        let mut states = 0;
        store.for_each_page(|state| {
            states += 1;
            match state.kind {
                PageKind::SameFilled => same += 1,
                PageKind::Raw => raw += 1,
                PageKind::WrittenBack => file += 1,
                PageKind::Compressed { bytes, shared, .. } => {
                    compressed += 1;
                    own_bytes += if shared { 0 } else { bytes };
                }
            }
            assert!(self.pages.contains_key(&state.key));
        });
        let stats = store.stats();
        assert_eq!((states, stats.pages), (self.pages.len(), self.pages.len()));
        assert_eq!(stats.original_bytes, self.pages.len() * PAGE);
        assert_eq!((stats.same_filled_pages, stats.raw_pages), (same, raw));
        assert_eq!(stats.file_pages, file);
        let packed_pages = compressed + raw - store.counters.plain.load(Relaxed);
        assert_eq!(stats.sharing_pages, packed_pages - store.pool().stats().objects);
        assert!(stats.compressed_bytes >= own_bytes);
        let plain_bytes = store.counters.plain.load(Relaxed) * PAGE;
        assert_eq!(stats.compressed_bytes - plain_bytes, store.pool().stats().stored_bytes);
        assert!(stats.pool_bytes <= stats.most_pool_bytes);
    }

    /// Removes all pages. Then nothing is left in the pool or the file.
    fn drain(&mut self, store: &Store<impl Pool>) {
        for key in self.pages.keys().copied().collect::<Vec<_>>() {
            self.remove(store, key);
        }
        self.account(store);
        let stats = store.stats();
        assert_eq!((stats.compressed_bytes, stats.file_pages, stats.sharing_pages), (0, 0, 0));
        assert_eq!(store.pool().stats().objects, 0);
    }
}

fn agrees_with_its_shadow<P: Pool>(make: impl Fn() -> P) {
    const KEYS: usize = 60;
    let first = seed(0);
    for seed in first..first + 3 {
        let store = Store::new(make(), config(KEYS)).expect("a store");
        let (mut shadow, mut random) = (Shadow::new(), Random::new(seed));
        let mut now_s = 0;
        for _ in 0..soak_operations(2000) {
            let key = random.below(KEYS);
            match random.below(40) {
                0 => drop(store.recompress(1 + random.below(2), Select::All).expect("memory")),
                1 => drop(store.write_back(Select::Raw).expect("a file")),
                2 => drop(store.write_back(Select::Idle(Duration::from_secs(50))).expect("a file")),
                3 => drop(store.compact()),
                4 | 5 => {
                    now_s += random.below(60) as u64;
                    store.tend_at(Duration::from_secs(now_s)).expect("memory");
                }
                6..12 => shadow.remove(&store, key),
                12..22 => shadow.check(&store, key),
                _ => shadow.put(&store, key, any_page(&mut random)).expect("memory"),
            }
            shadow.check(&store, key);
            shadow.account(&store);
        }
        shadow.check_all(&store);
        shadow.drain(&store);
    }
}

#[test]
fn over_dense_it_agrees_with_its_shadow() {
    agrees_with_its_shadow(dense);
}

#[test]
fn over_zs_it_agrees_with_its_shadow() {
    agrees_with_its_shadow(|| -> Zs<Os> { Zs::new(Os).expect("memory") });
}

#[test]
fn over_xv_it_agrees_with_its_shadow() {
    agrees_with_its_shadow(|| -> Xv<Os> { Xv::new(Os) });
}

#[test]
fn what_cannot_be_is_refused_and_said() {
    let store = Store::new(dense(), Config::new(10)).expect("a store");
    let error = store.put(10, &[0; PAGE]).expect_err("no such key");
    assert_eq!(error.to_string(), "key 10 is not below 10, the number of keys configured");
    let error = store.get(0, &mut [0; 100]).expect_err("no page");
    assert_eq!(error, StoreError::PageSize { bytes: 100, page_bytes: PAGE });
    assert_eq!(store.write_back(Select::All), Ok(Tended::default()));
    store.put(0, &text(&mut Random::new(1))).expect("memory");
    assert_eq!(store.write_back(Select::All), Err(StoreError::NoFile));
    assert_eq!(store.recompress(1, Select::All), Err(StoreError::NoCodec { codec: 1, codecs: 1 }));
    let told = [
        Config { codecs: Vec::new(), ..Config::new(1) },
        Config::new(1).of_page_bytes(100),
        Config::new(1).of_page_bytes(56),
        Config::new(1).of_page_bytes((1 << 16) + 8),
        Config { raw_from_bytes: PAGE + 1, ..Config::new(1) },
    ]
    .map(|bad| Store::new(dense(), bad).expect_err("it is out of range").to_string());
    assert_eq!(
        told,
        [
            "Config::codecs.len() is 0; it can be a number from 1 to 8",
            "Config::page_bytes is 100; it can be a multiple of 8 from 64 to 65536",
            "Config::page_bytes is 56; it can be a multiple of 8 from 64 to 65536",
            "Config::page_bytes is 65544; it can be a multiple of 8 from 64 to 65536",
            "Config::raw_from_bytes is 4097; it can be a number from 1 to 4096",
        ]
    );
}

#[test]
fn refused_memory_leaves_every_page_as_it_was() {
    let mut refused = 0;
    for calls in 0..40 {
        let failing = Failing::new(Os);
        let pool: Dense<_> = Dense::new(&failing);
        let store = Store::new(pool, config(100)).expect("a store");
        let (mut shadow, mut random) = (Shadow::new(), Random::new(11));
        failing.refuse(calls..calls + 500);
        for key in 0..100 {
            if let Err(error) = shadow.put(&store, key, text(&mut random)) {
                assert_eq!(error, StoreError::Pool(PoolError::OutOfMemory));
                refused += 1;
            }
        }
        failing.refuse_all(true);
        let _ = store.recompress(2, Select::All);
        shadow.check_all(&store);
        failing.refuse_all(false);
        shadow.drain(&store);
    }
    assert!(refused > 0);
}

/// A codec that asks for more memory than there is.
struct Greedy;

impl Codec for Greedy {
    fn name(&self) -> &str {
        "greedy"
    }

    fn bound_bytes(&self, _page_bytes: usize) -> usize {
        isize::MAX as usize
    }

    fn compress(&self, _page: &[u8], _out: &mut [u8]) -> Option<usize> {
        None
    }

    fn decompress(&self, _data: &[u8], _page: &mut [u8]) -> bool {
        false
    }
}

#[test]
fn a_buffer_that_cannot_be_had_is_an_error() {
    let config = Config { codecs: vec![Box::new(Lz4), Box::new(Greedy)], ..config(2) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(19));
    shadow.put(&store, 0, text(&mut random)).expect("memory");
    let refused = StoreError::Pool(PoolError::OutOfMemory);
    assert_eq!(store.recompress(1, Select::All), Err(refused));
    shadow.check_all(&store);
    let config = Config { codecs: vec![Box::new(Greedy)], ..Config::new(1) };
    let store = Store::new(dense(), config).expect("a store");
    assert_eq!(store.put(0, &text(&mut random)), Err(refused));
    assert_eq!(store.stats().pages, 0);
}

#[test]
fn a_thread_that_ends_can_use_it_to_the_last() {
    thread_local! {
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    struct Last(Arc<Store<Dense<Os>>>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.put(1, &text(&mut Random::new(21))).expect("memory");
        }
    }
    let store = Arc::new(Store::new(dense(), Config::new(2)).expect("a store"));
    let its = Arc::clone(&store);
    let thread = std::thread::spawn(move || {
        // Set before the buffers, so that they are dropped before it.
        LAST.set(Some(Last(Arc::clone(&its))));
        its.put(0, &text(&mut Random::new(20))).expect("memory");
    });
    thread.join().expect("a sound store");
    let mut shadow = Shadow::new();
    for key in 0..2 {
        shadow.pages.insert(key, text(&mut Random::new(20 + key as u64)));
    }
    shadow.check_all(&store);
}

#[test]
fn statistics_are_in_the_kernels_columns() {
    let store =
        Store::new(dense(), Config { limit_bytes: 1 << 30, ..config(100) }).expect("a store");
    let mut random = Random::new(12);
    store.put(0, &[7; PAGE]).expect("memory");
    store.put(1, &noise(&mut random)).expect("memory");
    store.put(2, &text(&mut random)).expect("memory");
    let stats = store.stats();
    let columns: Vec<usize> =
        stats.mm_stat().split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let expected = [
        3 * PAGE,
        stats.compressed_bytes,
        stats.pool_bytes,
        1 << 30,
        stats.most_pool_bytes,
        1,
        0,
        1,
        1,
    ];
    assert_eq!(columns, expected);
    store.tend_at(Duration::from_secs(5)).expect("memory");
    let mut lines = Vec::new();
    store.for_each_page(|state| lines.push(state.to_string()));
    assert_eq!(lines[0], "           0            0.000000 s..i..");
    assert_eq!(lines[1], "           1            0.000000 ..hi..");
    assert_eq!(lines[2], "           2            0.000000 ...i..");
    assert_eq!(store.get(2, &mut [0; PAGE]), Ok(true));
    store.for_each_page(|state| assert_eq!(state.is_idle, state.key != 2));
    let bytes = (stats.pool_bytes + stats.table_bytes) as f64;
    assert_eq!(stats.density(), bytes / (3 * PAGE) as f64);
    assert_eq!(Stats::default().density(), 0.0);
}

#[test]
fn a_pages_state_is_told_in_the_kernels_letters() {
    let compressed = |codec| PageKind::Compressed { bytes: 1, codec, shared: false };
    for (kind, is_idle, is_incompressible, letters) in [
        (PageKind::SameFilled, false, false, "s....."),
        (PageKind::WrittenBack, true, false, ".w.i.."),
        (PageKind::Raw, false, true, "..h..n"),
        (compressed(0), false, false, "......"),
        (compressed(1), false, false, "....r."),
    ] {
        let touched = Duration::from_micros(12_000_345);
        let state = PageState { key: 7, touched, kind, is_idle, is_incompressible };
        assert_eq!(state.to_string(), format!("           7           12.000345 {letters}"));
    }
}

#[test]
fn many_threads_share_it() {
    const THREADS: usize = 4;
    const KEYS: usize = 64;
    let store = Store::new(dense(), config(THREADS * KEYS)).expect("a store");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                let mut shadow = Shadow::new();
                for _ in 0..soak_operations(3000) {
                    let key = thread * KEYS + random.below(KEYS);
                    match random.below(5) {
                        0 => shadow.remove(store, key),
                        1 | 2 => shadow.check(store, key),
                        _ => shadow.put(store, key, any_page(&mut random)).expect("memory"),
                    }
                }
                for key in thread * KEYS..(thread + 1) * KEYS {
                    shadow.check(store, key);
                    shadow.remove(store, key);
                }
            });
        }
        scope.spawn(|| {
            for now_s in 0..60 {
                store.recompress(1, Select::All).expect("memory");
                store.tend_at(Duration::from_secs(now_s * 100)).expect("a file");
                store.write_back(Select::Raw).expect("a file");
                store.compact();
            }
        });
    });
    Shadow::new().drain(&store);
}

#[test]
fn a_page_is_read_while_the_writer_of_another_holds_its_lock() {
    let store = Store::new(dense(), Config::new(2)).expect("a store");
    let mut shadow = Shadow::new();
    shadow.put(&store, 0, text(&mut Random::new(13))).expect("memory");
    let _writer = store.slots[1].lock().expect("free");
    shadow.check(&store, 0);
}
