//! Contents: filled with one word, equal, incompressible, or recompressed.

use super::*;

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
    assert_eq!(store.stats().sharing_pages, 49);
    let shared_pages = || {
        let mut pages = 0;
        store.for_each_page(|state| {
            let is_shared = matches!(state.kind, PageKind::Compressed { shared: true, .. });
            pages += usize::from(is_shared);
        });
        pages
    };
    assert_eq!(shared_pages(), 50);
    for key in 0..49 {
        shadow.remove(&store, key);
    }
    assert_eq!(shared_pages(), 0);
    shadow.check_all(&store);
    shadow.drain(&store);
    // The index forgets objects that are gone, so the content is stored anew.
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
    assert_eq!(store.pool().stats().objects, 20, "beside a pool that has room for them");
    shadow.put(&store, 0, noise(&mut random)).expect("memory");
    let stats = store.stats();
    assert_eq!((stats.raw_pages, stats.raw_pages_ever), (20, 21), "one in place of another");
}

#[test]
fn contents_with_one_hash_are_compared() {
    let store = Store::new(dense(), Config { dedup: true, ..Config::new(2) }).expect("a store");
    let mut random = Random::new(5);
    let (page, other) = (text(&mut random), text(&mut random));
    store.put(0, &page).expect("memory");
    let hash = xxhash_rust::xxh3::xxh3_64(&page);
    assert!(store.known(hash, &other).is_none());
    let known = store.known(hash, &page).expect("it is stored");
    store.end(crate::slot::Content::Shared(known));
    assert_eq!(store.pool().stats().objects, 1);
}

/// LZ4 that calls the first before it compresses a page, and the second before it fills one.
struct Before<C, D>(C, D);

impl<C: Fn() + Send + Sync, D: Fn() + Send + Sync> Codec for Before<C, D> {
    fn name(&self) -> &str {
        "before"
    }

    fn bound_bytes(&self, page_bytes: usize) -> usize {
        Lz4.bound_bytes(page_bytes)
    }

    fn compress(&self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        (self.0)();
        Lz4.compress(page, out)
    }

    fn decompress(&self, data: &[u8], page: &mut [u8]) -> bool {
        (self.1)();
        Lz4.decompress(data, page)
    }
}

/// While a put compares its page with an object, another thread removes the only page that has the
/// object.
#[test]
fn a_codec_that_panics_amid_a_comparison_leaves_no_object_behind() {
    for panics in [false, true] {
        let both = Arc::new(Barrier::new(2));
        let waiting = Arc::clone(&both);
        let wait = move || {
            // Once when the object is compared, once when the page is gone.
            waiting.wait();
            waiting.wait();
            if panics {
                std::panic::resume_unwind(Box::new(()));
            }
        };
        let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Before(|| (), wait))];
        let store = Store::new(dense(), Config { codecs, dedup: true, ..Config::new(2) });
        let store = store.expect("a store");
        let page = text(&mut Random::new(8));
        store.put(0, &page).expect("memory");
        std::thread::scope(|threads| {
            let put = threads.spawn(|| store.put(1, &page));
            both.wait();
            assert_eq!(store.remove(0), Ok(true));
            both.wait();
            assert_eq!(put.join().is_err(), panics);
        });
        assert_eq!(store.stats().pages, usize::from(!panics));
        assert_eq!(store.pool().stats().objects, store.stats().pages);
    }
}

#[test]
fn the_index_keeps_no_entry_of_what_is_gone() {
    let store = Store::new(dense(), Config { dedup: true, ..Config::new(1) }).expect("a store");
    let mut random = Random::new(11);
    for _ in 0..2000 {
        store.put(0, &text(&mut random)).expect("memory");
    }
    let table_bytes = store.stats().table_bytes;
    assert!(table_bytes < 16 << 10, "{table_bytes} bytes for one page");
}

#[test]
fn a_dropped_store_leaves_nothing_in_a_pool() {
    fn check(pool: &impl Pool) {
        let store = Store::new(pool, config(100)).expect("a store");
        let mut random = Random::new(12);
        for key in 0..100 {
            store.put(key, &any_page(&mut random)).expect("memory");
        }
        store.write_back(Select::Raw).expect("a file");
        assert!(pool.stats().objects > 10);
        drop(store);
        assert_eq!((pool.stats().objects, pool.stats().page_bytes), (0, 0));
    }
    check(&Xv::<Os>::new(Os));
    let zs: Zs<Os> = Zs::new(Os).expect("memory");
    check(&zs);
}

#[test]
fn too_many_keys_are_an_error() {
    let made = Store::new(dense(), Config::new(usize::MAX));
    assert_eq!(made.err(), Some(StoreError::NoTable { pages: usize::MAX }));
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
    // Noise is tried only once.
    store.tend_at(Duration::from_secs(500)).expect("memory");
    let mut in_vain = 0;
    store.for_each_page(|state| in_vain += usize::from(state.is_incompressible));
    assert_eq!(in_vain, 20);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn a_codec_tries_a_page_once_and_each_stronger_one_does() {
    let given: [Arc<AtomicU32>; 3] = Default::default();
    let counting = |given: &Arc<AtomicU32>| -> Box<dyn Codec> {
        let given = Arc::clone(given);
        Box::new(Before(move || _ = given.fetch_add(1, Relaxed), || ()))
    };
    let policy = Policy { pressure_percent: 0, ..Policy::default() };
    for codecs in 1..=3 {
        let counting = given[..codecs].iter().map(counting).collect();
        let config = Config { codecs: counting, limit_bytes: 1 << 20, policy, ..Config::new(1) };
        let store = Store::new(dense(), config).expect("a store");
        store.put(0, &noise(&mut Random::new(13))).expect("memory");
        for _ in 0..2 {
            for codec in 1..codecs {
                store.recompress(codec, Select::All).expect("a sound store");
            }
            store.tend_at(Duration::from_secs(60)).expect("a sound store");
        }
        let tried = given.each_ref().map(|given| given.swap(0, Relaxed));
        assert_eq!(tried, [1, u32::from(codecs > 1), u32::from(codecs > 2)]);
    }
}

#[test]
fn a_page_that_does_not_become_shorter_than_the_bound_is_raw() {
    let page = text(&mut Random::new(14));
    let bytes = Lz4.compress(&page, &mut [0; 2 * PAGE]).expect("room");
    for (raw_from_bytes, is_raw) in [(bytes, true), (bytes + 1, false)] {
        let store =
            Store::new(dense(), Config { raw_from_bytes, ..Config::new(1) }).expect("a store");
        store.put(0, &page).expect("memory");
        assert_eq!(store.stats().raw_pages, usize::from(is_raw), "{raw_from_bytes} of {bytes}");
    }
}

/// A codec that leaves out a page's end, from this place on, if it is zero.
struct Beginning(usize);

impl Codec for Beginning {
    fn name(&self) -> &str {
        "beginning"
    }

    fn bound_bytes(&self, page_bytes: usize) -> usize {
        page_bytes
    }

    fn compress(&self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        out[..self.0].copy_from_slice(&page[..self.0]);
        Some(self.0)
    }

    fn decompress(&self, data: &[u8], page: &mut [u8]) -> bool {
        let (beginning, end) = page.split_at_mut(data.len());
        beginning.copy_from_slice(data);
        end.fill(0);
        true
    }
}

#[test]
fn a_page_that_becomes_as_long_as_the_longest_object_is_one() {
    let most_bytes = dense().max_size_bytes();
    let page_bytes = 2 * most_bytes;
    let mut page = noise(&mut Random::new(31)).repeat(page_bytes.div_ceil(PAGE));
    page.truncate(page_bytes);
    page[most_bytes..].fill(0);
    for (bytes, is_raw) in [(most_bytes, false), (most_bytes + 1, true)] {
        let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Beginning(bytes))];
        let config = Config { codecs, ..Config::new(1).of_page_bytes(page_bytes) };
        let store = Store::new(dense(), config).expect("a store");
        store.put(0, &page).expect("memory");
        assert_eq!(store.stats().raw_pages, usize::from(is_raw), "{bytes} bytes");
        let mut read = vec![1; page_bytes];
        assert!(store.get(0, &mut read) == Ok(true) && read == page, "{bytes} bytes");
    }
}

/// No pool has an object of zero bytes.
#[test]
fn a_page_that_a_codec_turns_into_nothing_is_raw() {
    let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Lz4), Box::new(Beginning(0))];
    let recompressed = Store::new(dense(), Config { codecs, ..Config::new(1) }).expect("a store");
    let codecs: Vec<Box<dyn Codec>> = vec![Box::new(Beginning(0))];
    let store = Store::new(dense(), Config { codecs, ..Config::new(1) }).expect("a store");
    let (mut shadow, mut random) = (Shadow::new(), Random::new(15));
    shadow.put(&store, 0, text(&mut random)).expect("memory");
    assert_eq!(store.stats().raw_pages, 1);
    shadow.check_all(&store);
    let mut shadow = Shadow::new();
    shadow.put(&recompressed, 0, text(&mut random)).expect("memory");
    assert_eq!(recompressed.recompress(1, Select::All), Ok(Tended::default()));
    shadow.check_all(&recompressed);
}

#[test]
fn a_codec_fills_the_page_or_refuses() {
    let page = text(&mut Random::new(32));
    let (page, _) = page.split_at(PAGE / 2);
    let codecs: [Box<dyn Codec>; 2] = [Box::new(Lz4), Box::new(Zstd::new(3))];
    for codec in &codecs {
        let mut data = vec![0; codec.bound_bytes(page.len())];
        let bytes = codec.compress(page, &mut data).expect("room");
        data.truncate(bytes);
        let mut read = vec![0; PAGE / 2];
        assert!(codec.decompress(&data, &mut read) && read == page, "{codec:?}");
        assert!(!codec.decompress(&data, &mut [0; PAGE]), "{codec:?} filled half of it");
    }
}

#[test]
fn zstd_has_its_level_and_stores_no_length() {
    let page = text(&mut Random::new(33));
    let compressed_bytes = |level| {
        let codec = Zstd::new(level);
        codec.compress(&page, &mut vec![0; codec.bound_bytes(PAGE)]).expect("room")
    };
    assert!(compressed_bytes(19) < compressed_bytes(1));
    let with_length = zstd::bulk::compress(&page, 3).expect("room");
    assert!(compressed_bytes(3) < with_length.len());
}

#[test]
fn pages_may_have_64_bytes_to_64_kib() {
    for page_bytes in [64, 72, 1 << 16] {
        let config = Config::new(3).of_page_bytes(page_bytes);
        let store = Store::new(dense(), config).expect("a store");
        let noise = noise(&mut Random::new(15)).repeat(16);
        let pages: [Vec<u8>; 3] = [
            vec![7; page_bytes],
            noise[..page_bytes].to_vec(),
            noise[..16].repeat(page_bytes / 8)[..page_bytes].to_vec(),
        ];
        for (key, page) in pages.iter().enumerate() {
            store.put(key, page).expect("memory");
        }
        let stats = store.stats();
        assert_eq!((stats.same_filled_pages, stats.raw_pages), (1, 1), "{page_bytes} bytes");
        let beside_bytes = if page_bytes > store.pool().max_size_bytes() { page_bytes } else { 0 };
        let pool = store.pool().stats();
        assert_eq!(stats.compressed_bytes, pool.stored_bytes + beside_bytes);
        assert_eq!(stats.pool_bytes, pool.footprint_bytes() + beside_bytes);
        let mut read = vec![0; page_bytes];
        for (key, page) in pages.iter().enumerate() {
            assert_eq!(store.get(key, &mut read), Ok(true));
            assert!(read == *page, "page {key} of {page_bytes} bytes");
        }
    }
}

#[test]
fn the_account_has_the_index_of_contents() {
    const PAGES: usize = 1000;
    let [without, with] = [false, true].map(|dedup| {
        let store = Store::new(dense(), Config { dedup, ..Config::new(PAGES) }).expect("a store");
        let mut random = Random::new(16);
        (0..PAGES).for_each(|key| store.put(key, &text(&mut random)).expect("memory"));
        store.stats().table_bytes
    });
    let index_bytes = with - without;
    assert!((16 * PAGES..80 * PAGES).contains(&index_bytes), "{index_bytes} bytes");
}

/// Taking pages out counts only what that frees.
#[test]
fn a_shared_page_frees_nothing_before_the_last() {
    let store = Store::new(dense(), config(2)).expect("a store");
    let page = text(&mut Random::new(8));
    (0..2).for_each(|key| store.put(key, &page).expect("memory"));
    let bytes = store.pool().stats().stored_bytes;
    let told = |key: usize| {
        let slot = crate::store::lock(&store.slots[key]);
        (slot.content.own_bytes(), slot.content.share_bytes())
    };
    assert_eq!((told(0), told(1)), ((0, bytes / 2), (0, bytes / 2)));
    assert_eq!(store.remove(0), Ok(true));
    assert_eq!((told(0), told(1)), ((0, 0), (bytes, bytes)));
}

#[test]
fn shared_contents_stay_shared_when_they_are_recompressed() {
    let store = Store::new(dense(), config(30)).expect("a store");
    let mut shadow = Shadow::new();
    let page = text(&mut Random::new(8));
    (0..30).for_each(|key| shadow.put(&store, key, page.clone()).expect("memory"));
    let again = store.recompress(0, Select::All).expect("memory");
    assert_eq!(again.recompressed_pages, 0, "they are compressed by that one already");
    store.recompress(2, Select::All).expect("memory");
    assert_eq!(store.pool().stats().objects, 1);
    shadow.check_all(&store);
    shadow.drain(&store);
}

#[test]
fn what_a_stronger_codec_has_stored_already_is_shared() {
    let store = Store::new(dense(), config(2)).expect("a store");
    let mut shadow = Shadow::new();
    let page = text(&mut Random::new(9));
    shadow.put(&store, 0, page.clone()).expect("memory");
    store.tend_at(Duration::from_secs(10)).expect("a file");
    shadow.put(&store, 1, page).expect("memory");
    store.recompress(2, Select::Idle(Duration::from_secs(10))).expect("memory");
    assert_eq!(store.pool().stats().objects, 2);
    store.recompress(1, Select::All).expect("memory");
    assert_eq!(store.pool().stats().objects, 1);
    shadow.check_all(&store);
    shadow.drain(&store);
}

/// Pages beside the pool are not compared.
#[test]
fn equal_pages_that_come_into_the_pool_are_stored_once() {
    const LONG: usize = 2 * PAGE;
    let config = config(3).of_page_bytes(LONG);
    let store = Store::new(dense(), config).expect("a store");
    let mut random = Random::new(10);
    let page: Vec<u8> = [text(&mut random), text(&mut random)].concat();
    (0..3).for_each(|key| store.put(key, &page).expect("memory"));
    assert_eq!((store.stats().raw_pages, store.pool().stats().objects), (3, 0));
    store.recompress(2, Select::All).expect("memory");
    assert_eq!((store.stats().raw_pages, store.pool().stats().objects), (0, 1));
    let mut read = vec![0; LONG];
    (0..3).for_each(|key| assert!(store.get(key, &mut read) == Ok(true) && read == page));
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
