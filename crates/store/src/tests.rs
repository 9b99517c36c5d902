//! The store against a map of pages, and its account against its slots.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hectare_check::{Random, seed, soak_operations};
use hectare_pages::{Failing, Os};
use hectare_pool::{Dense, Pool, PoolError, Xv, Zs};

use crate::dedup::Dedup;
use crate::slot::{CodecId, Shared};
use crate::*;

const PAGE: usize = 4096;

/// A file for one test, deleted at once: it lives as long as it is open.
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

/// Words of a small vocabulary: LZ4 halves it about, zstd does better.
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
        // One of few: most are stored already.
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

    /// Every number of the account that the slots tell.
    fn account(&self, store: &Store<impl Pool>) {
        let (mut same, mut raw, mut file, mut sharing, mut own_bytes) = (0, 0, 0, 0, 0);
        let mut states = 0;
        store.for_each_page(|state| {
            states += 1;
            match state.kind {
                PageKind::SameFilled => same += 1,
                PageKind::Raw => raw += 1,
                PageKind::WrittenBack => file += 1,
                PageKind::Compressed { shared: true, .. } => sharing += 1,
                PageKind::Compressed { bytes, .. } => own_bytes += bytes,
            }
            assert!(self.pages.contains_key(&state.key));
        });
        let stats = store.stats();
        assert_eq!((states, stats.pages), (self.pages.len(), self.pages.len()));
        assert_eq!(stats.original_bytes, self.pages.len() * PAGE);
        assert_eq!((stats.same_filled_pages, stats.raw_pages), (same, raw));
        assert_eq!(stats.file_pages, file);
        assert!(stats.sharing_pages >= sharing);
        assert!(stats.compressed_bytes >= own_bytes);
        let plain_bytes = store.counters.plain.load(Relaxed) * PAGE;
        assert_eq!(stats.compressed_bytes - plain_bytes, store.pool().stats().stored_bytes);
        assert!(stats.pool_bytes <= stats.most_pool_bytes);
    }

    /// Without pages nothing is left in the pool or the file.
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
    assert_eq!(store.recompress(1, Select::All), Err(StoreError::NoCodec { codec: 1 }));
    for bad in [
        Config { codecs: Vec::new(), ..Config::new(1) },
        Config { page_bytes: 100, ..Config::new(1) },
        Config { raw_from_bytes: PAGE + 1, ..Config::new(1) },
    ] {
        assert!(matches!(Store::new(dense(), bad), Err(StoreError::Config(_))));
    }
}

#[test]
fn same_filled_pages_take_no_memory() {
    let store = Store::new(dense(), Config::new(100)).expect("a store");
    let mut shadow = Shadow::new();
    for key in 0..100 {
        let word = (key as u64 * 0x0101).to_ne_bytes();
        shadow.put(&store, key, word.repeat(PAGE / 8)).expect("memory");
    }
    shadow.check_all(&store);
    let stats = store.stats();
    assert_eq!((stats.same_filled_pages, store.pool().stats().objects), (100, 0));
}

#[test]
fn equal_contents_are_stored_once() {
    let store = Store::new(dense(), Config { dedup: true, ..Config::new(50) }).expect("a store");
    let mut shadow = Shadow::new();
    let page = text(&mut Random::new(1));
    for key in 0..50 {
        shadow.put(&store, key, page.clone()).expect("memory");
    }
    assert_eq!(store.pool().stats().objects, 1);
    assert_eq!(store.stats().sharing_pages, 50);
    for key in 0..49 {
        shadow.remove(&store, key);
    }
    shadow.check_all(&store);
    shadow.drain(&store);
    // The index forgets what is gone: the content begins anew.
    shadow.put(&store, 3, page).expect("memory");
    assert_eq!(store.pool().stats().objects, 1);
}

#[test]
fn incompressible_pages_are_kept_raw() {
    let store = Store::new(dense(), Config::new(20)).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(2));
    for key in 0..20 {
        shadow.put(&store, key, noise(&mut random)).expect("memory");
    }
    shadow.check_all(&store);
    let stats = store.stats();
    assert_eq!((stats.raw_pages, stats.raw_pages_ever), (20, 20));
    assert_eq!(stats.compressed_bytes, 20 * PAGE);
}

#[test]
fn the_limit_is_kept_and_what_was_there_stays() {
    let limit_bytes = 256 << 10;
    let config = Config { limit_bytes, ..Config::new(1000) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(3));
    let refused = (0..1000).find_map(|key| shadow.put(&store, key, text(&mut random)).err());
    assert_eq!(refused, Some(StoreError::Limit { limit_bytes }));
    assert!(shadow.pages.len() > 64, "{} pages in 256 KiB", shadow.pages.len());
    // In place of another as well: the old page stays.
    assert!(shadow.put(&store, 5, noise(&mut random)).is_err());
    shadow.check_all(&store);
    // What the pool took for pages that were refused it keeps for the next.
    assert!(store.stats().pool_bytes <= limit_bytes + 2 * PAGE);
    for key in 0..20 {
        shadow.remove(&store, key);
    }
    shadow.put(&store, 5, noise(&mut random)).expect("there is room again");
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn with_a_file_the_limit_writes_old_pages_back() {
    let limit_bytes = 256 << 10;
    let config = Config { limit_bytes, ..config(1000) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(4));
    for key in 0..1000 {
        store.now_s.store(key as u32, Relaxed);
        shadow.put(&store, key, text(&mut random)).expect("room is made");
        assert!(store.stats().pool_bytes <= limit_bytes);
    }
    let mut in_memory = Vec::new();
    store.for_each_page(|state| {
        in_memory.extend((state.kind != PageKind::WrittenBack).then_some(state.key))
    });
    assert!(in_memory.len() > 20 && in_memory.iter().all(|&key| key > 500), "{in_memory:?}");
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn without_a_file_the_limit_evicts_old_pages() {
    let limit_bytes = 256 << 10;
    let evicted = Arc::new(Mutex::new(HashMap::new()));
    let taken = Arc::clone(&evicted);
    // Every seventh page is not to be had.
    let evict = Evict::new(move |key, page| {
        let takes = key % 7 != 0;
        if takes {
            let before = taken.lock().expect("a sound map").insert(key, page.to_vec());
            assert!(before.is_none(), "page {key} was evicted twice");
        }
        takes
    });
    let config = Config { limit_bytes, evict: Some(evict), ..Config::new(700) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(14));
    for key in 0..700 {
        store.now_s.store(key as u32, Relaxed);
        shadow.put(&store, key, text(&mut random)).expect("room is made");
        assert!(store.stats().pool_bytes <= limit_bytes);
    }
    let evicted = std::mem::take(&mut *evicted.lock().expect("a sound map"));
    for (&key, page) in &evicted {
        assert!(shadow.pages.remove(&key).expect("a page that was put") == *page, "page {key}");
    }
    let newest_evicted = evicted.keys().max().expect("something was evicted");
    let oldest_kept = shadow.pages.keys().filter(|&key| key % 7 != 0).min();
    assert!(oldest_kept.is_some_and(|kept| kept + 200 > *newest_evicted), "the older go first");
    assert_eq!(store.stats().evicted_pages, evicted.len() as u64);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn what_is_not_taken_stays_and_the_limit_is_told() {
    let limit_bytes = 64 << 10;
    let evict = Some(Evict::new(|_, _| false));
    let config = Config { evict, limit_bytes, backing_pages: 3, ..config(100) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(15));
    let refused = (0..100).find_map(|key| shadow.put(&store, key, text(&mut random)).err());
    assert_eq!(refused, Some(StoreError::Limit { limit_bytes }));
    assert_eq!((store.stats().file_pages, store.stats().evicted_pages), (3, 0));
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn a_full_file_is_told_and_loses_nothing() {
    let store = Store::new(dense(), Config { backing_pages: 5, ..config(20) }).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(5));
    (0..20).for_each(|key| shadow.put(&store, key, noise(&mut random)).expect("memory"));
    assert_eq!(store.write_back(Select::Raw), Err(StoreError::FileFull));
    assert_eq!(store.stats().file_pages, 5);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn a_file_that_cannot_be_written_is_told_and_loses_nothing() {
    let read_only = File::open(std::env::current_exe().expect("a program")).expect("a file");
    let config = Config { backing: Some(read_only), ..Config::new(2) };
    let store = Store::new(dense(), config).expect("a store");
    let mut shadow = Shadow::new();
    shadow.put(&store, 1, text(&mut Random::new(6))).expect("memory");
    for failures in 1..3 {
        assert!(matches!(store.write_back(Select::All), Err(StoreError::Io(_))));
        let stats = store.stats();
        assert_eq!((stats.failed_writes, stats.file_pages), (failures, 0));
    }
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn of_two_contents_with_one_hash_the_index_keeps_the_later() {
    const HASH: u64 = 7;
    let store = Store::new(dense(), Config::new(1)).expect("a store");
    let page = text(&mut Random::new(6));
    let object = || {
        let packed = store.compress(&page, CodecId(0), PAGE).expect("memory").expect("short");
        Arc::new(Shared { packed, hash: HASH })
    };
    let (dedup, [earlier, later]) = (Dedup::new(), [object(), object()]);
    [&earlier, &later].into_iter().for_each(|shared| dedup.insert(shared));
    assert!(dedup.release(earlier).is_some());
    let found = dedup.find(HASH).expect("the later one");
    assert!(Arc::ptr_eq(&found, &later));
    assert!(dedup.release(found).is_none(), "it is shared still");
    assert!(dedup.release(later).is_some());
    assert!(dedup.find(HASH).is_none());
}

#[test]
fn damage_in_the_file_is_told() {
    let file = scratch_file();
    let backing = Some(file.try_clone().expect("a descriptor"));
    let store = Store::new(dense(), Config { backing, ..Config::new(2) }).expect("a store");
    store.put(1, &text(&mut Random::new(6))).expect("memory");
    store.write_back(Select::All).expect("a file");
    file.write_all_at(b"?", 100).expect("a file");
    assert_eq!(store.get(1, &mut [0; PAGE]), Err(StoreError::Damaged { key: 1 }));
    file.set_len(0).expect("a file");
    let error = store.get(1, &mut [0; PAGE]).expect_err("no file");
    assert_eq!(error, StoreError::Io(std::io::ErrorKind::UnexpectedEof));
    assert_eq!(store.stats().io_stat(), "       1        0        0        0");
}

#[test]
fn a_stronger_codec_makes_idle_pages_smaller() {
    let store = Store::new(dense(), config(200)).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(7));
    for key in 0..200 {
        let page = if key < 20 { noise(&mut random) } else { text(&mut random) };
        shadow.put(&store, key, page).expect("memory");
    }
    let before = store.stats().compressed_bytes;
    store.tend_at(Duration::from_secs(59)).expect("memory");
    assert_eq!(store.stats().compressed_bytes, before, "nothing is a minute old");
    (0..100).for_each(|key| shadow.check(&store, key));
    let tended = store.tend_at(Duration::from_secs(61)).expect("memory");
    assert_eq!(tended, Tended { recompressed_pages: 100, written_back_pages: 0 });
    assert!(store.stats().compressed_bytes < before * 9 / 10);
    // Noise is tried once.
    store.tend_at(Duration::from_secs(500)).expect("memory");
    let mut in_vain = 0;
    store.for_each_page(|state| in_vain += usize::from(state.is_incompressible));
    assert_eq!(in_vain, 20);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn shared_contents_stay_shared_when_they_are_recompressed() {
    let store = Store::new(dense(), config(30)).expect("a store");
    let mut shadow = Shadow::new();
    let page = text(&mut Random::new(8));
    (0..30).for_each(|key| shadow.put(&store, key, page.clone()).expect("memory"));
    store.recompress(2, Select::All).expect("memory");
    assert_eq!(store.pool().stats().objects, 1);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn idle_pages_go_to_the_file_by_policy() {
    let store = Store::new(dense(), config(10)).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(9));
    (0..10).for_each(|key| shadow.put(&store, key, text(&mut random)).expect("memory"));
    store.tend_at(Duration::from_secs(3000)).expect("a file");
    (0..4).for_each(|key| shadow.check(&store, key));
    let tended = store.tend_at(Duration::from_secs(3600)).expect("a file");
    assert_eq!(tended.written_back_pages, 6);
    assert_eq!(store.stats().bd_stat(), "       6        0        6");
    shadow.check_all(&store);
    assert_eq!(store.stats().file_reads, 6);
}

#[test]
fn a_dictionary_makes_pages_smaller() {
    let mut random = Random::new(10);
    let dictionary: Vec<u8> = (0..4).flat_map(|_| text(&mut random)).collect();
    let pages: Vec<_> = (0..50).map(|_| text(&mut random)).collect();
    let [without, with] = [Vec::new(), dictionary].map(|dictionary| {
        let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Zstd::with_dictionary(3, dictionary))];
        let store = Store::new(dense(), Config { codecs, ..Config::new(50) }).expect("a store");
        let mut shadow = Shadow::new();
        for (key, page) in pages.iter().enumerate() {
            shadow.put(&store, key, page.clone()).expect("memory");
        }
        shadow.check_all(&store);
        store.stats().compressed_bytes
    });
    assert!(with < without, "{with} bytes with a dictionary, {without} without");
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
