//! What a put takes if every put must make room: a cache of 64 MiB that nobody tends, whose pages
//! are put under random keys. `cargo run --release -p hectare-store --example puts_at_the_limit`

use std::error::Error;
use std::time::{Duration, Instant};

use hectare_pages::{FutexPark, Os};
use hectare_pool::{Dense, Pool, Xv, Zs};
use hectare_store::{Config, Evict, Store};

const LIMIT_BYTES: usize = 64 << 20;
const PUTS: usize = 200_000;

/// A xorshift (Marsaglia, 2003).
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

/// A page of which `noise_bytes` do not compress.
fn page(state: &mut u64, noise_bytes: usize) -> Vec<u8> {
    let noise = std::iter::repeat_with(|| random(state).to_ne_bytes()).flatten();
    let mut page: Vec<u8> = noise.take(noise_bytes).collect();
    page.resize(4096, 0);
    page
}

/// Puts pages until the limit is reached, and then a fixed number more, each timed.
fn run<P: Pool>(
    name: &str,
    pool: P,
    keys: usize,
    threads: usize,
    raw_of_1000: usize,
) -> Result<(), Box<dyn Error>> {
    let evict = Some(Evict::new(|_, _| true));
    let store = Store::new(pool, Config { limit_bytes: LIMIT_BYTES, evict, ..Config::new(keys) })?;
    let mut state = 1;
    let pages: Vec<_> = (0..4000)
        .map(|number| {
            let is_raw = number * 7 % 1000 < raw_of_1000;
            let noise_bytes = if is_raw { 4096 } else { 800 + random(&mut state) % 2800 };
            page(&mut state, noise_bytes)
        })
        .collect();
    let put = |state: &mut u64| {
        let (key, page) = (random(state) % keys, &pages[random(state) % pages.len()]);
        let begun = Instant::now();
        store.put(key, page).expect("room is made");
        begun.elapsed()
    };
    while store.stats().pool_bytes < LIMIT_BYTES / 100 * 98 {
        put(&mut state);
    }
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let work = |thread: usize| {
            let mut state = 1 + thread as u64;
            (0..PUTS / threads).map(|_| put(&mut state)).collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a sound store")).collect()
    });
    let mean_us = times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64;
    times.sort_unstable();
    let stats = store.stats();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_nanos() as f64 / 1000.0;
    let of_limit = |bytes: usize| bytes as f64 / LIMIT_BYTES as f64 * 100.0;
    println!(
        "{name:>6} {keys:>8} {threads:>7} {:>6.1} {mean_us:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>9.1} {:>7.1} {:>9.1}",
        raw_of_1000 as f64 / 10.0,
        at(0.5),
        at(0.99),
        at(0.999),
        times[times.len() - 1].as_nanos() as f64 / 1000.0,
        of_limit(stats.most_pool_bytes),
        of_limit(stats.compressed_bytes),
    );
    Ok(())
}

/// The same, but all pages except thirty are new, and each of the thirty is twice as old as the
/// next. The longest puts are those that must find out which pages are the oldest of all.
fn run_with_new_pages(keys: usize) -> Result<(), Box<dyn Error>> {
    let pool: Dense<Os, FutexPark> = Dense::new(Os);
    let evict = Some(Evict::new(|_, _| true));
    let store = Store::new(pool, Config { limit_bytes: LIMIT_BYTES, evict, ..Config::new(keys) })?;
    let mut state = 1;
    let mut put = |key| {
        let page = page(&mut state, 2000);
        let begun = Instant::now();
        store.put(key, &page).expect("room is made");
        begun.elapsed()
    };
    for key in 0..30 {
        store.tend_at(Duration::from_secs((1 << 31) - (1 << (31 - key))))?;
        put(key);
    }
    store.tend_at(Duration::from_secs(1 << 31))?;
    let mut times: Vec<Duration> = (30..60_000.min(keys)).map(put).collect();
    let first_us = times[..LIMIT_BYTES / 4096].iter().max().map_or(0, Duration::as_micros);
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_nanos() as f64 / 1000.0;
    let longest_us = times[times.len() - 1].as_micros();
    println!(
        "new pages, {keys} keys: p50 {:.1}, p99 {:.1}, p99.9 {:.1}, longest {longest_us}; of the first, far from the limit, {first_us}",
        at(0.5),
        at(0.99),
        at(0.999),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let dense = || -> Dense<Os, FutexPark> { Dense::new(Os) };
    println!(
        "                                   microseconds a put                        % of the limit"
    );
    println!(
        "  pool     keys threads  raw %     mean      p50      p99    p99.9       max    most  contents"
    );
    run("dense", dense(), 1_000_000, 1, 0)?;
    run("dense", dense(), 30_000, 1, 10)?;
    run("dense", dense(), 1_000_000, 2, 10)?;
    run::<Zs<Os, FutexPark>>("zs", Zs::new(Os)?, 1_000_000, 1, 0)?;
    run::<Xv<Os, FutexPark>>("xv", Xv::new(Os), 1_000_000, 1, 0)?;
    [60_000, 1_000_000].into_iter().try_for_each(run_with_new_pages)
}
