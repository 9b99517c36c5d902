//! The limit: what it keeps, what it evicts, and what goes to the file.

use super::*;
use hectare_pool::{Handle, NoObject, PoolStats};

/// A cache, which drops pages at its limit.
fn cache(limit_bytes: usize, keys: usize) -> Config {
    Config { limit_bytes, evict: Some(Evict::new(|_, _| true)), ..Config::new(keys) }
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
    // This also holds if the put replaces another page: the old page stays.
    assert!(shadow.put(&store, 5, noise(&mut random)).is_err());
    shadow.check_all(&store);
    // What the pool took for refused pages is kept for the next ones.
    assert!(store.stats().pool_bytes <= limit_bytes + 2 * PAGE);
    for key in 0..20 {
        shadow.remove(&store, key);
    }
    shadow.put(&store, 5, noise(&mut random)).expect("there is room again");
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn after_a_refusal_what_is_removed_makes_room() {
    let (limit_bytes, pages) = (4 << 20, 2000);
    let config = Config { limit_bytes, ..Config::new(pages) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(17);
    let page = noise(&mut random);
    let stored = (0..pages).find(|&key| store.put(key, &noise(&mut random)).is_err());
    let stored = stored.expect("4 MiB do not hold 2000 pages");
    // One page in 32, so no two are adjacent.
    (0..stored).step_by(32).for_each(|key| assert_eq!(store.remove(key), Ok(true)));
    store.put(0, &page).expect("there is room again");
    assert!(store.stats().pool_bytes <= limit_bytes);
}

/// The pages are longer than what the pool can hold, so they lie beside it.
#[test]
fn a_page_beside_the_pool_is_within_the_limit_as_well() {
    const LONG: usize = 1 << 16;
    for with_file in [false, true] {
        let limit_bytes = LONG * 5 / 2;
        let backing = with_file.then(scratch_file);
        let config = Config { limit_bytes, backing, ..Config::new(5).of_page_bytes(LONG) };
        let store = Store::new(dense(), config).expect("a store");
        let mut random = Random::new(24);
        for key in 0..5 {
            let page: Vec<u8> = (0..LONG / PAGE).flat_map(|_| noise(&mut random)).collect();
            assert_eq!(store.put(key, &page).is_ok(), with_file || key < 2, "page {key}");
            assert!(store.stats().pool_bytes <= limit_bytes, "page {key}");
        }
    }
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
    // It refuses every seventh page.
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

/// Counts how often it is compacted as a whole.
struct Compacted<P>(P, AtomicU32);

impl<P: Pool> Pool for Compacted<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn max_size_bytes(&self) -> usize {
        self.0.max_size_bytes()
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        self.0.alloc(size_bytes)
    }

    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        unsafe { self.0.try_free(handle) }
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.0.size_bytes(handle) }
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.0.write(handle, data) };
    }

    unsafe fn try_read(
        &self,
        handle: Handle,
        bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        unsafe { self.0.try_read(handle, bounce, reader) }
    }

    fn compact(&self) -> usize {
        self.1.fetch_add(1, Relaxed);
        self.0.compact()
    }

    fn compact_some(&self) -> Option<usize> {
        self.0.compact_some()
    }

    fn stats(&self) -> PoolStats {
        self.0.stats()
    }
}

/// Compaction goes through all objects, and gains nothing before a page has gone.
#[test]
fn a_cache_at_its_limit_is_not_compacted_for_every_few_pages() {
    let (limit_bytes, pages) = (1 << 20, 10_000);
    let config = cache(limit_bytes, pages);
    let store = Store::new(Compacted(dense(), AtomicU32::new(0)), config).expect("a store");
    let mut random = Random::new(31);
    (0..pages).for_each(|key| store.put(key, &text(&mut random)).expect("room is made"));
    let (evicted, compactions) = (store.stats().evicted_pages, store.pool().1.load(Relaxed));
    assert!(u64::from(compactions) * 128 < evicted, "{compactions} times for {evicted} pages");
    assert!(evicted > 9000, "{evicted} of {pages} pages");
}

/// Nor does each removed page cause a compaction while puts are refused.
#[test]
fn refused_puts_compact_once_in_a_sixty_fourth() {
    let (limit_bytes, pages) = (4 << 20, 2000);
    let config = Config { limit_bytes, ..Config::new(pages) };
    let store = Store::new(Compacted(dense(), AtomicU32::new(0)), config).expect("a store");
    let mut random = Random::new(43);
    let mut put = |key| store.put(key, &noise(&mut random));
    let stored = (0..pages).find(|&key| put(key).is_err()).expect("4 MiB do not hold 2000 pages");
    let before = store.pool().1.load(Relaxed);
    let mut removed = (0..stored).step_by(3);
    let is_kept = |key| {
        assert_eq!(store.remove(key), Ok(true));
        put(key).is_ok()
    };
    let pages = 1 + removed.position(is_kept).expect("room once");
    assert!((8..24).contains(&pages), "{pages} removed of {stored}");
    assert_eq!(store.pool().1.load(Relaxed) - before, 1, "times compacted as a whole");
}

/// Memory that the pool holds for no object takes what is put, up to a point.
#[test]
fn near_the_limit_many_holes_are_filled_before_pages_are_taken_out() {
    let (limit_bytes, keys) = (8 << 20, 10_000);
    let config = cache(limit_bytes, keys);
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(44);
    let mut put = |key| store.put(key, &text(&mut random)).expect("room is made");
    let near = |key: &usize| {
        put(*key);
        store.stats().pool_bytes > limit_bytes - limit_bytes / 64
    };
    let pages = (0..keys).find(near).expect("as many pages");
    let evicted = || store.stats().evicted_pages;
    put(pages + 1);
    let before = evicted();
    let remove = |key| assert!(store.remove(key).is_ok(), "page {key}");
    (0..pages).step_by(100).for_each(remove);
    put(pages + 2);
    assert!(evicted() > before, "a hundredth is not enough");
    let before = evicted();
    (0..pages).filter(|key| key % 100 == 50 || key % 20 == 7).for_each(remove);
    for put_pages in 0..pages / 64 {
        put(pages + 3 + put_pages);
        assert_eq!(evicted(), before, "after {put_pages} of {pages} pages");
    }
}

/// Names and heads make up a tenth of such a pool. They never take a page.
#[test]
fn what_small_objects_cost_is_not_taken_for_holes() {
    let (limit_bytes, keys) = (2 << 20, 40_000);
    let config = cache(limit_bytes, keys);
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(45);
    let evicted = (0..keys).find_map(|key| {
        let mut page = vec![0; PAGE];
        page[..64].copy_from_slice(&noise(&mut random)[..64]);
        store.put(key, &page).expect("room is made");
        Some(store.stats()).filter(|stats| stats.evicted_pages > 0)
    });
    let stats = evicted.expect("more than there is room for");
    let unused_bytes = stats.pool_bytes - stats.compressed_bytes;
    assert!(unused_bytes > stats.pool_bytes / 16, "{stats:?}");
    assert!(stats.pool_bytes < limit_bytes - limit_bytes / 256 * 3, "{stats:?}");
}

/// Most keys of a large table may have no page.
#[test]
fn puts_into_a_sparse_table_share_the_work_as_well() {
    let (limit_bytes, keys) = (1 << 20, 200_000);
    let config = cache(limit_bytes, keys);
    let store = Store::new(Compacted(dense(), AtomicU32::new(0)), config).expect("a store");
    let mut random = Random::new(46);
    for _ in 0..5000 {
        let key = random.below(keys);
        store.put(key, &text(&mut random)).expect("room is made");
    }
    let stats = store.stats();
    assert!(stats.most_pool_bytes <= limit_bytes && stats.evicted_pages > 4000, "{stats:?}");
    assert_eq!(store.pool().1.load(Relaxed), 0, "times compacted as a whole");
}

/// A put does work to make room in proportion to what it puts. The puts after it do what it leaves.
fn puts_share_the_work(pool: impl Pool, most_moved: u64, least_percent: usize) {
    const KEYS: usize = 20_000;
    let limit_bytes = 8 << 20;
    let config = cache(limit_bytes, KEYS);
    let store = Store::new(Compacted(pool, AtomicU32::new(0)), config).expect("a store");
    let mut random = Random::new(37);
    let (mut before, mut looks_before) = ((0, 0), 0);
    let mut put_many = || {
        for _ in 0..KEYS / 2 {
            let page = if random.one_in(50) { noise(&mut random) } else { text(&mut random) };
            store.put(random.below(KEYS), &page).expect("room is made");
            let (stats, pool) = (store.stats(), store.pool().stats());
            let (evicted, moved) = (stats.evicted_pages - before.0, pool.objects_moved - before.1);
            // Twice a page of noise, in pages of text.
            assert!(evicted <= 6, "{evicted} pages evicted by one put");
            assert!(moved <= most_moved, "{moved} objects moved by one put");
            assert!(stats.pool_bytes <= limit_bytes, "{stats:?}");
            let looks = store.search.looks();
            // A sixth of the keys have a page.
            assert!(looks - looks_before <= 256 * 8 + 128, "{} keys", looks - looks_before);
            (before, looks_before) = ((stats.evicted_pages, pool.objects_moved), looks);
        }
    };
    // The pages put here go to another shard than those that another thread has put before.
    std::thread::scope(|scope| scope.spawn(&mut put_many).join().expect("a sound store"));
    put_many();
    assert_eq!(store.pool().1.load(Relaxed), 0, "times compacted as a whole");
    let stats = store.stats();
    assert!(stats.evicted_pages > 10_000, "{stats:?}");
    assert!(stats.compressed_bytes > limit_bytes / 100 * least_percent, "{stats:?}");
}

#[test]
fn puts_share_the_work_of_making_room() {
    // A free also does a step while the shard compacts.
    puts_share_the_work(dense(), (32 + 6 + 1) * 64, 93);
    let zs: Zs<Os> = Zs::new(Os).expect("memory");
    puts_share_the_work(zs, 32 * 256, 85);
    // Two pages of text do not fit one page of this pool.
    puts_share_the_work(Xv::<Os>::new(Os), 0, 50);
}

/// Most keys of a large table may have no page. To go through all of them for each few pages took a
/// thousand times as long as the rest of a put.
#[test]
fn where_no_page_is_raw_room_is_made_without_a_look_at_every_key() {
    let (limit_bytes, pages) = (1 << 20, 1000);
    let config = cache(limit_bytes, pages);
    let store = Arc::new(Store::new(dense(), config).expect("a store"));
    let writer = Arc::clone(&store);
    let (done, is_done) = std::sync::mpsc::channel();
    let _last_key = store.slots[pages - 1].lock().expect("free");
    std::thread::spawn(move || {
        let mut random = Random::new(29);
        let put = |key| writer.put(key, &text(&mut random)).expect("room is made");
        (0..pages - 1).for_each(put);
        done.send(writer.stats()).expect("the test waits");
    });
    let stats = is_done.recv_timeout(Duration::from_secs(60)).expect("it waits for the last key");
    assert!(stats.evicted_pages > 0 && stats.raw_pages_ever == 0, "{stats:?}");
    assert!(stats.most_pool_bytes <= limit_bytes + 2 * PAGE, "{stats:?}");
}

#[test]
fn of_many_raw_pages_no_more_go_than_a_put_needs() {
    let (limit_bytes, pages) = (4 << 20, 3000);
    let config = cache(limit_bytes, pages);
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(39);
    for key in 0..pages {
        let before = store.stats().evicted_pages;
        store.put(key, &noise(&mut random)).expect("room is made");
        let evicted = store.stats().evicted_pages - before;
        assert!(evicted <= 2, "{evicted} pages evicted by one put");
    }
    let stats = store.stats();
    assert_eq!((stats.raw_pages_ever, stats.raw_pages), (pages as u64, stats.pages));
    assert!(stats.pages > limit_bytes / PAGE / 100 * 90, "{stats:?}");
}

#[test]
fn without_a_key_there_is_no_page_to_take_out() {
    let store = Store::new(dense(), cache(1, 0)).expect("a store");
    assert_eq!(store.tend_at(Duration::from_secs(5)), Ok(Tended::default()));
}

/// A hand that goes round for old pages must also come to the newest pages.
#[test]
fn new_pages_go_where_no_old_one_is_left() {
    let limit_bytes = 256 << 10;
    let config = cache(limit_bytes, 1000);
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(38);
    store.tend_at(Duration::from_secs(1_000_000)).expect("a sound store");
    (0..1000).for_each(|key| store.put(key, &text(&mut random)).expect("room is made"));
    assert!(store.stats().pool_bytes <= limit_bytes);
    // And if the evictor takes no page, no put asks it for ever.
    let config = Config { limit_bytes, evict: Some(Evict::new(|_, _| false)), ..Config::new(1000) };
    let store = Store::new(dense(), config).expect("a store");
    store.tend_at(Duration::from_secs(1_000_000)).expect("a sound store");
    let refused = (0..1000).find_map(|key| store.put(key, &text(&mut random)).err());
    assert_eq!(refused, Some(StoreError::Limit { limit_bytes }));
}

/// How often the first long put goes round all keys. A few pages are old, each twice as old as the
/// next; each round used to take one or two of them.
fn rounds_of_the_first_long_put(takes: fn(usize) -> bool, seconds_a_put: u32) -> usize {
    const KEYS: usize = 8000;
    const OLD: usize = 31;
    let evict = Some(Evict::new(move |key, _| takes(key)));
    let config = Config { limit_bytes: 8 << 20, evict, ..Config::new(KEYS) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(47);
    for key in 0..OLD {
        store.now_s.store((1 << OLD) - (1 << (OLD - key)), Relaxed);
        store.put(key, &text(&mut random)).expect("memory");
    }
    store.now_s.store(1 << OLD, Relaxed);
    let put = |key| {
        store.now_s.fetch_add(seconds_a_put, Relaxed);
        let before = store.search.looks();
        // The put is refused if no page is left that goes.
        _ = store.put(key, &text(&mut random));
        store.search.looks() - before
    };
    let long = (OLD..KEYS).map(put).find(|&looks| looks > KEYS);
    long.expect("a put's share is not enough") / KEYS
}

#[test]
fn one_put_goes_round_all_keys_a_few_times() {
    // One round for pages that are old enough already, one for the ages of the others, one for the
    // oldest of these.
    let rounds = rounds_of_the_first_long_put(|_| true, 0);
    assert!(rounds <= 3, "{rounds} rounds");
    // If most are refused, also rounds for younger and younger pages.
    let rounds = rounds_of_the_first_long_put(|key| key % 512 == 511, 1);
    assert!((3..=9).contains(&rounds), "{rounds} rounds");
}

#[test]
fn who_goes_on_until_the_limit_is_kept_offers_each_page_once() {
    const KEYS: usize = 400;
    let offers = Arc::new(Mutex::new([0; KEYS]));
    let evict = {
        let offers = Arc::clone(&offers);
        Evict::new(move |key, _| {
            offers.lock().expect("sound")[key] += 1;
            key % 8 == 1
        })
    };
    let config = Config { evict: Some(evict), ..Config::new(KEYS) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(48);
    for key in 0..KEYS {
        store.now_s.store(5 * key as u32, Relaxed);
        store.put(key, &text(&mut random)).expect("memory");
    }
    assert_eq!(store.stats().raw_pages, 0);
    assert!(!store.relieve(store.memory().bytes / 2).fits, "an eighth goes");
    assert_eq!(*offers.lock().expect("sound"), [1; KEYS]);
}

/// After so little, compaction is not worth it, but it is the last resort.
#[test]
fn where_only_a_little_goes_the_pool_is_compacted_for_that() {
    let takes = Arc::new(AtomicBool::new(false));
    let evict = {
        let takes = Arc::clone(&takes);
        Evict::new(move |key, _| key == 3 && takes.load(Relaxed))
    };
    let config = Config { evict: Some(evict), ..Config::new(400) };
    let store = Store::new(Compacted(dense(), AtomicU32::new(0)), config).expect("a store");
    let mut random = Random::new(49);
    (0..400).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    assert!(!store.relieve(0).fits);
    let before = store.pool().1.load(Relaxed);
    takes.store(true, Relaxed);
    store.search.is_in_vain.store(false, Relaxed);
    assert!(!store.relieve(0).fits);
    assert_eq!((store.stats().evicted_pages, store.pool().1.load(Relaxed) - before), (1, 1));
}

/// To unpack and offer all pages took a refused put a thousand times as long as a kept one.
#[test]
fn what_was_offered_in_vain_is_offered_again_little_by_little() {
    let (limit_bytes, keys) = (4 << 20, 4000);
    let offers = Arc::new((AtomicUsize::new(0), AtomicBool::new(false)));
    let evict = {
        let offers = Arc::clone(&offers);
        Evict::new(move |_, _| {
            offers.0.fetch_add(1, Relaxed);
            offers.1.load(Relaxed)
        })
    };
    let config = Config { limit_bytes, evict: Some(evict), ..Config::new(keys) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(41);
    let page = text(&mut random);
    let pages =
        (0..keys).find(|&key| store.put(key, &text(&mut random)).is_err()).expect("a limit");
    assert!(offers.0.load(Relaxed) >= pages, "the first that is refused asks for all {pages}");
    let refused = Err(StoreError::Limit { limit_bytes });
    let mut most_offers = 0;
    for _ in 0..20 {
        offers.0.store(0, Relaxed);
        assert_eq!(store.put(0, &page), refused);
        most_offers = most_offers.max(offers.0.load(Relaxed));
    }
    assert!((1..=256 * keys.div_ceil(pages)).contains(&most_offers), "{most_offers} by one put");
    offers.0.store(0, Relaxed);
    store.tend_at(Duration::from_secs(1)).expect("a sound store");
    assert!(offers.0.load(Relaxed) >= pages, "who tends it asks for all");
    assert_eq!(store.put(0, &page), refused);
    offers.1.store(true, Relaxed);
    // The hand may be where there are no pages.
    assert!(
        (0..keys / 256).any(|_| store.put(0, &page).is_ok()),
        "room is made once pages are taken"
    );
    assert!(!store.search.is_in_vain.load(Relaxed), "a put goes on where its share is too little");
    (0..keys).for_each(|key| store.put(key, &text(&mut random)).expect("room is made"));
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
    assert_eq!(store.write_back(Select::Raw), Err(StoreError::FileFull { pages: 5 }));
    assert_eq!(store.stats().file_pages, 5);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn a_file_that_cannot_be_written_is_told_and_loses_nothing() {
    let config = Config { backing: Some(full_device()), ..Config::new(2) };
    let store = Store::new(dense(), config).expect("a store");
    let mut shadow = Shadow::new();
    shadow.put(&store, 1, text(&mut Random::new(6))).expect("memory");
    for failures in 1..3 {
        let refused = StoreError::Io(std::io::ErrorKind::StorageFull);
        assert_eq!(store.write_back(Select::All), Err(refused));
        let stats = store.stats();
        assert_eq!((stats.failed_writes, stats.file_pages), (failures, 0));
    }
    shadow.check_all(&store);
    shadow.drain(&store);
}

fn full_device() -> File {
    OpenOptions::new().read(true).write(true).open("/dev/full").expect("Linux has it")
}

#[test]
fn what_a_failing_device_does_not_take_is_evicted() {
    let limit_bytes = 256 << 10;
    let config = Config { backing: Some(full_device()), ..cache(limit_bytes, 500) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(20);
    (0..500).for_each(|key| store.put(key, &text(&mut random)).expect("room is made"));
    let stats = store.stats();
    assert!(stats.evicted_pages > 0 && stats.failed_writes > 0 && stats.pool_bytes <= limit_bytes);
}

#[test]
fn tend_tells_of_a_device_that_fails_under_pressure() {
    let limit_bytes = 1 << 20;
    let policy = Policy { write_back_after: None, pressure_percent: 25, ..Policy::default() };
    let config = Config { limit_bytes, policy, backing: Some(full_device()), ..Config::new(200) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(21));
    (0..200).for_each(|key| shadow.put(&store, key, text(&mut random)).expect("memory"));
    let failed = StoreError::Io(std::io::ErrorKind::StorageFull);
    assert_eq!(store.tend_at(Duration::from_secs(1)), Err(failed));
    shadow.check_all(&store);
}

#[test]
fn tend_tells_of_a_damaged_page_under_pressure() {
    let limit_bytes = 1 << 20;
    let policy = Policy { pressure_percent: 25, ..Policy::default() };
    let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Lz4)];
    let config = Config { limit_bytes, policy, codecs, ..config(200) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(48);
    (0..200).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    for key in [3, 5] {
        store.slots[key].lock().expect("a sound lock").checksum ^= 1;
    }
    let told = store.tend_at(Duration::from_secs(1));
    assert_eq!(told, Err(StoreError::Damaged { key: 3 }));
    assert!(store.stats().pool_bytes <= limit_bytes / 4, "the others have gone");
}

#[test]
fn a_put_that_panics_while_room_is_made_leaves_nothing_behind() {
    let limit_bytes = 64 << 10;
    let evict = Some(Evict::new(|_, _| std::panic::resume_unwind(Box::new(()))));
    let config = Config { limit_bytes, evict, dedup: true, ..Config::new(100) };
    let store = Store::new(dense(), config).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(22));
    let panics = (0..100).filter(|&key| {
        let page = text(&mut random);
        let put = std::panic::AssertUnwindSafe(|| shadow.put(&store, key, page));
        std::panic::catch_unwind(put).is_err()
    });
    assert!(panics.count() > 0);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn a_file_that_is_not_open_for_both_is_refused_at_once() {
    let program = std::env::current_exe().expect("a program");
    let read_only = File::open(program).expect("a file");
    let write_only = OpenOptions::new().write(true).open("/dev/null").expect("Linux has it");
    let (_, pipe) = std::io::pipe().expect("a pipe");
    for file in [read_only, write_only, File::from(std::os::fd::OwnedFd::from(pipe))] {
        let config = Config { backing: Some(file), ..Config::new(2) };
        let error = Store::new(dense(), config).expect_err("no file to write pages back to");
        assert!(error.to_string().contains("Config::backing"), "{error}");
    }
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
fn raw_pages_go_first_however_new_they_are() {
    let limit_bytes = 256 << 10;
    let store = Store::new(dense(), Config { limit_bytes, ..config(100) }).expect("a store");
    let mut random = Random::new(15);
    for key in 0..100 {
        store.now_s.store(key as u32, Relaxed);
        let page = if key < 60 { text(&mut random) } else { noise(&mut random) };
        store.put(key, &page).expect("room is made");
    }
    let mut written = Vec::new();
    store.for_each_page(|state| {
        written.extend((state.kind == PageKind::WrittenBack).then_some(state.key))
    });
    assert!(!written.is_empty() && written.iter().all(|&key| key >= 60), "{written:?}");
}

#[test]
fn from_some_part_of_the_limit_on_room_is_made_while_nobody_asks() {
    let limit_bytes = 1 << 20;
    let policy = Policy { pressure_percent: 25, ..Policy::default() };
    let store =
        Store::new(dense(), Config { limit_bytes, policy, ..config(200) }).expect("a store");
    let mut random = Random::new(16);
    (0..200).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    assert!(store.stats().pool_bytes > limit_bytes / 4);
    let tended = store.tend_at(Duration::from_secs(1)).expect("a file");
    let stats = store.stats();
    assert!(stats.pool_bytes <= limit_bytes / 4);
    assert_eq!(tended.written_back_pages as u64, stats.written_back_pages);
    assert!(tended.written_back_pages > 0);
}

/// This holds although only every 16th put looks while the limit is far off.
#[test]
fn near_a_large_limit_every_put_looks() {
    let limit_bytes = (16 << 20) + 9 * PAGE;
    // Such a page is longer than an object of this pool, so the size of a page counts.
    let pool: Xv<Os> = Xv::new(Os);
    let config = Config { limit_bytes, ..Config::new(5000) };
    let store = Store::new(pool, config).expect("a store");
    let mut random = Random::new(28);
    let refused = (0..5000).find_map(|key| store.put(key, &noise(&mut random)).err());
    assert_eq!(refused, Some(StoreError::Limit { limit_bytes }));
    let stats = store.stats();
    assert!(stats.pool_bytes <= limit_bytes && stats.most_pool_bytes <= limit_bytes);
    assert!(stats.pool_bytes > limit_bytes - 2 * PAGE);
}

#[test]
fn no_more_goes_to_the_file_than_makes_room() {
    let limit_bytes = 2 << 20;
    let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Lz4)];
    let config = Config { limit_bytes, codecs, ..config(2000) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(34);
    let mut keys = 0..2000;
    while store.stats().pool_bytes <= limit_bytes / 100 * 91 {
        store.put(keys.next().expect("room"), &text(&mut random)).expect("memory");
    }
    let tended = store.tend_at(Duration::from_secs(1)).expect("a file");
    assert!((1..200).contains(&tended.written_back_pages), "{tended:?} of {}", keys.start);
    assert!(keys.start > 500);
}

/// A look notes the most memory there was.
#[test]
fn far_from_a_limit_every_16th_put_looks() {
    for (limit_bytes, puts_a_look) in [(0, 16), (16 << 20, 16), ((16 << 20) - 1, 1)] {
        let config = Config { limit_bytes, ..Config::new(64) };
        let store = Store::new(dense(), config).expect("a store");
        let mut random = Random::new(29);
        let looks = (0..64).filter(|&key| {
            store.counters.most_memory_bytes.store(0, Relaxed);
            store.put(key, &text(&mut random)).expect("memory");
            store.counters.most_memory_bytes.load(Relaxed) > 0
        });
        assert!(looks.eq((0..64).step_by(puts_a_look)), "a limit of {limit_bytes} bytes");
    }
}

#[test]
fn what_was_compacted_and_the_most_memory_are_told() {
    let pool: Zs<Os> = Zs::new(Os).expect("memory");
    let store = Store::new(pool, Config::new(300)).expect("a store");
    let mut random = Random::new(30);
    (0..300).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    let most_bytes = store.stats().pool_bytes;
    (0..300).filter(|key| key % 3 > 0).for_each(|key| assert_eq!(store.remove(key), Ok(true)));
    let bytes = store.compact();
    let stats = store.stats();
    assert!(bytes > 0 && stats.pool_bytes < most_bytes);
    assert_eq!(stats.compacted_pages, (bytes / PAGE) as u64);
    assert_eq!(stats.most_pool_bytes, most_bytes);
}

#[test]
fn what_leaves_the_file_makes_room_in_it() {
    let file = scratch_file();
    let backing = Some(file.try_clone().expect("a descriptor"));
    let store =
        Store::new(dense(), Config { backing, backing_pages: 3, ..config(3) }).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(31));
    for _ in 0..3 {
        (0..3).for_each(|key| shadow.put(&store, key, noise(&mut random)).expect("memory"));
        assert_eq!(store.write_back(Select::All).expect("room").written_back_pages, 3);
        shadow.check_all(&store);
        (0..3).for_each(|key| shadow.remove(&store, key));
    }
    assert_eq!(file.metadata().expect("a file").len(), 3 * PAGE as u64);
}

#[test]
fn what_compaction_makes_room_for_stays_in_memory() {
    let limit_bytes = 1 << 20;
    let policy = Policy { pressure_percent: 50, ..Policy::default() };
    let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Lz4)];
    let config = Config { limit_bytes, policy, codecs, ..config(300) };
    let pool: Zs<Os> = Zs::new(Os).expect("memory");
    let store = Store::new(pool, config).expect("a store");
    let mut random = Random::new(25);
    (0..300).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    (0..300).filter(|key| key % 3 > 0).for_each(|key| assert_eq!(store.remove(key), Ok(true)));
    assert!(store.stats().pool_bytes > limit_bytes / 2);
    assert_eq!(store.tend_at(Duration::from_secs(1)), Ok(Tended::default()));
    assert!(store.stats().pool_bytes <= limit_bytes / 2);
}

#[test]
fn under_pressure_stronger_codecs_come_before_the_file() {
    let limit_bytes = 1 << 20;
    let policy = Policy { pressure_percent: 35, ..Policy::default() };
    let store =
        Store::new(dense(), Config { limit_bytes, policy, ..config(200) }).expect("a store");
    let mut random = Random::new(26);
    (0..200).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    assert!(store.stats().pool_bytes > limit_bytes / 100 * 35);
    let tended = store.tend_at(Duration::from_secs(1)).expect("a file");
    assert_eq!(tended, Tended { recompressed_pages: 200, written_back_pages: 0 });
    assert!(store.stats().pool_bytes <= limit_bytes / 100 * 35);
}

#[test]
fn a_damaged_page_keeps_no_other_in_memory() {
    let limit_bytes = 256 << 10;
    let store = Store::new(dense(), Config { limit_bytes, ..config(500) }).expect("a store");
    let mut random = Random::new(13);
    store.put(0, &text(&mut random)).expect("memory");
    store.slots[0].lock().expect("a sound lock").checksum ^= 1;
    for key in 1..500 {
        store.now_s.store(key as u32, Relaxed);
        store.put(key, &text(&mut random)).expect("room is made");
    }
    assert_eq!(store.get(0, &mut [0; PAGE]), Err(StoreError::Damaged { key: 0 }));
}

#[test]
fn a_damaged_page_keeps_tend_from_no_other() {
    let store = Store::new(dense(), config(10)).expect("a store");
    let mut random = Random::new(18);
    (0..10).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    store.slots[3].lock().expect("a sound lock").checksum ^= 1;
    let damaged = Err(StoreError::Damaged { key: 3 });
    assert_eq!(store.tend_at(Duration::from_secs(60)), damaged);
    assert_eq!(store.stats().recompressed_pages, 9);
    assert_eq!(store.tend_at(Duration::from_secs(3600)), damaged);
    assert_eq!(store.stats().written_back_pages, 9);
}

#[test]
fn tend_tells_the_first_of_two_failures_and_needs_no_file() {
    for backing in [Some(full_device()), None] {
        let has_file = backing.is_some();
        let store = Store::new(dense(), Config { backing, ..config(2) }).expect("a store");
        let mut random = Random::new(32);
        (0..2).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
        if has_file {
            store.slots[1].lock().expect("a sound lock").checksum ^= 1;
        }
        let told = store.tend_at(Duration::from_secs(3600));
        if has_file {
            assert_eq!(told, Err(StoreError::Damaged { key: 1 }));
            assert_eq!(store.stats().failed_writes, 1);
        } else {
            assert_eq!(told, Ok(Tended { recompressed_pages: 2, written_back_pages: 0 }));
        }
    }
}

#[test]
fn a_full_file_keeps_tend_from_no_eviction() {
    let limit_bytes = 1 << 20;
    let evict = Some(Evict::new(|_, _| true));
    let policy = Policy { pressure_percent: 25, ..Policy::default() };
    let config = Config { limit_bytes, evict, policy, backing_pages: 3, ..config(200) };
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(19);
    (0..200).for_each(|key| store.put(key, &noise(&mut random)).expect("memory"));
    assert_eq!(store.tend_at(Duration::from_secs(3600)), Err(StoreError::FileFull { pages: 3 }));
    assert!(store.stats().pool_bytes <= limit_bytes / 4);
}

#[test]
fn what_was_recompressed_and_written_back_was_not_incompressible() {
    let store = Store::new(dense(), config(10)).expect("a store");
    let mut random = Random::new(14);
    (0..10).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
    assert_eq!(store.recompress(2, Select::All).expect("memory").recompressed_pages, 10);
    assert_eq!(store.write_back(Select::All).expect("a file").written_back_pages, 10);
    store.for_each_page(|state| assert!(!state.is_incompressible, "{state}"));
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
fn tend_goes_by_the_clock_of_the_store() {
    let policy = Policy { write_back_after: Some(Duration::ZERO), ..Policy::default() };
    let store = Store::new(dense(), Config { policy, ..config(1) }).expect("a store");
    store.put(0, &text(&mut Random::new(27))).expect("memory");
    assert_eq!(store.tend().expect("a file").written_back_pages, 1);
    // If two threads tend the store, the later one may come first.
    store.tend_at(Duration::from_secs(5)).expect("a file");
    store.tend_at(Duration::from_secs(3)).expect("a file");
    store.put(0, &text(&mut Random::new(27))).expect("memory");
    store.for_each_page(|state| assert_eq!(state.touched, Duration::from_secs(5)));
}

#[test]
fn a_page_is_idle_when_all_of_the_time_has_passed() {
    let store = Store::new(dense(), config(1)).expect("a store");
    store.put(0, &text(&mut Random::new(23))).expect("memory");
    store.tend_at(Duration::from_secs(1)).expect("a file");
    for (millis, pages) in [(1001, 0), (1999, 0), (1000, 1)] {
        let idle = Select::Idle(Duration::from_millis(millis));
        let done = store.write_back(idle).expect("a file");
        assert_eq!(done.written_back_pages, pages, "{millis} ms");
    }
}

#[test]
fn any_percentage_is_pressure_at_the_limit_at_most() {
    let limit_bytes = 1 << 20;
    // The first percentage times the limit is 100 times 2^64.
    let percentages = [(100 << 44, true), (usize::MAX, true), (101, true), (100, true), (0, false)];
    for (percent, leaves_them) in percentages {
        let policy = Policy { pressure_percent: percent, ..Policy::default() };
        let config = Config { policy, ..cache(limit_bytes, 20) };
        let store = Store::new(dense(), config).expect("a store");
        let (mut shadow, mut random) = (Shadow::new(), Random::new(18));
        for key in 0..20 {
            shadow.put(&store, key, noise(&mut random)).expect("memory");
        }
        store.tend_at(Duration::from_secs(1)).expect("a sound store");
        assert_eq!(store.stats().pages == 20, leaves_them, "{percent} %");
    }
}
