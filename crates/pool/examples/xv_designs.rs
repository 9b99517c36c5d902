//! What xv's layout leaves open, measured. A model of the pool with its choices as parameters runs
//! the flips of `hectare bench stress`. The example prints each design's peak overhead over Ideal,
//! everything counted, with its difference to the chosen design. The model of the chosen design
//! must take exactly the pages that the pool takes. First it prints what pages could hold at best:
//! all objects of the peak packed anew, the largest first, each where least room is left.
//!
//! `cargo run --release -p hectare-pool --example xv_designs -- 200 page` (how many seeds, by
//! default 20; only designs with that in their name)

use hectare_pages::Os;
use hectare_pool::{Pool, Xv};

const PAGE_BYTES: usize = 4096;
const MIN_LISTED: usize = 32;
/// The pool's own structure without list heads and bitmap.
const OTHER_BYTES: usize = 72;

#[derive(Clone, Copy)]
struct Design {
    name: &'static str,
    /// Bytes before each object, the unit that objects are rounded to, and what a page loses by it.
    layout: (usize, usize, usize),
    step_bytes: usize,
    tries: usize,
    /// The closest of those tried, not the first that is large enough.
    closest: bool,
    /// The design avoids rests between these two: see `Lists::find`.
    avoided: (usize, usize),
    place: Place,
    oldest_first: bool,
    search: Search,
}

#[derive(Clone, Copy, PartialEq)]
enum Search {
    /// Some blocks of two lists: as many as a pool has time for.
    Bounded,
    /// All free blocks, for the closest one by the same rule.
    Everything,
    /// All free blocks; of blocks that the rule finds equally good, one of the fullest page.
    FullestPage,
    /// The same, but one of the emptiest page.
    EmptiestPage,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Front,
    BesideSmaller,
    BesideLarger,
}

const CHOSEN: Design = Design {
    name: "chosen",
    layout: (4, 4, 0),
    step_bytes: 32,
    tries: 8,
    closest: true,
    avoided: (384, 1024),
    place: Place::BesideSmaller,
    oldest_first: false,
    search: Search::Bounded,
};

const OTHERS: [Design; 16] = [
    Design { name: "always at the front", place: Place::Front, ..CHOSEN },
    Design { name: "beside the larger neighbour", place: Place::BesideLarger, ..CHOSEN },
    Design { name: "first that is large enough, of 8", closest: false, ..CHOSEN },
    Design { name: "closest of 4", tries: 4, ..CHOSEN },
    Design { name: "closest of 16", tries: 16, ..CHOSEN },
    Design {
        name: "lists every 8 B, first of 4",
        closest: false,
        step_bytes: 8,
        tries: 4,
        ..CHOSEN
    },
    Design { name: "lists every 16 B", step_bytes: 16, ..CHOSEN },
    Design { name: "lists every 64 B, closest of 16", step_bytes: 64, tries: 16, ..CHOSEN },
    Design { name: "any rest", avoided: (PAGE_BYTES, PAGE_BYTES), ..CHOSEN },
    Design { name: "rests of 256 to 1024 B avoided", avoided: (256, 1024), ..CHOSEN },
    Design { name: "rests of 384 to 768 B avoided", avoided: (384, 768), ..CHOSEN },
    Design { name: "heads of 2 B", layout: (2, 4, 4), ..CHOSEN },
    Design { name: "oldest block of a list first", oldest_first: true, ..CHOSEN },
    Design { name: "of all blocks, the closest", search: Search::Everything, ..CHOSEN },
    Design { name: "of all blocks, in the fullest page", search: Search::FullestPage, ..CHOSEN },
    Design { name: "of all blocks, in the emptiest page", search: Search::EmptiestPage, ..CHOSEN },
];

impl Design {
    const fn lists(&self) -> usize {
        PAGE_BYTES / self.step_bytes
    }

    const fn own_bytes(&self) -> usize {
        OTHER_BYTES + self.lists() * 8 + self.lists() / 8
    }
}

#[derive(Clone, Copy)]
struct Block {
    offset: usize,
    bytes: usize,
    is_free: bool,
}

/// The pool without its contents: the blocks of each page in order, and the lists.
struct Model {
    design: Design,
    pages: Vec<Vec<Block>>,
    empty: Vec<usize>,
    lists: Vec<Vec<Listed>>,
    /// Free bytes of each page.
    free_bytes: Vec<usize>,
}

/// The number of a page, and an offset in it.
type Address = (usize, usize);

/// A free block in a list, and the bytes of the largest object that it has room for.
#[derive(Clone, Copy)]
struct Listed {
    at: Address,
    room: usize,
}

impl Model {
    fn new(design: Design) -> Self {
        Self {
            design,
            pages: Vec::new(),
            empty: Vec::new(),
            lists: vec![Vec::new(); design.lists()],
            free_bytes: Vec::new(),
        }
    }

    fn page_bytes(&self) -> usize {
        (self.pages.len() - self.empty.len()) * PAGE_BYTES
    }

    fn index(&self, (page, offset): Address) -> usize {
        self.pages[page].binary_search_by_key(&offset, |block| block.offset).expect("a block")
    }

    fn list_of(&self, room: usize) -> Option<usize> {
        Some(room.checked_sub(MIN_LISTED)? / self.design.step_bytes)
    }

    fn insert(&mut self, page: usize, block: Block) {
        self.free_bytes[page] += block.bytes;
        let room = block.bytes - self.design.layout.0;
        if let Some(list) = self.list_of(room) {
            let at = if self.design.oldest_first { 0 } else { self.lists[list].len() };
            self.lists[list].insert(at, Listed { at: (page, block.offset), room });
        }
    }

    fn remove(&mut self, page: usize, block: Block) {
        self.free_bytes[page] -= block.bytes;
        if let Some(list) = self.list_of(block.bytes - self.design.layout.0) {
            self.lists[list].retain(|listed| listed.at != (page, block.offset));
        }
    }

    fn of_list(&self, list: usize, room: usize) -> Option<Address> {
        let tried = self.lists[list].iter().rev().take(self.design.tries);
        let mut fitting = tried.filter(|listed| listed.room >= room);
        let found = if self.design.closest {
            fitting.min_by_key(|listed| listed.room)
        } else {
            fitting.next()
        };
        found.map(|listed| listed.at)
    }

    fn of_all(&self, room: usize) -> Option<Address> {
        let (little, useful) = self.design.avoided;
        let fitting = self.lists[self.list_of(room)?..].iter().flatten();
        let fitting = fitting.filter(|listed| listed.room >= room);
        let best = fitting.min_by_key(|listed| {
            let rest = listed.room - room;
            let rank = if rest <= little { 0 } else { 1 + usize::from(rest < useful) };
            let free_bytes = self.free_bytes[listed.at.0];
            match self.design.search {
                Search::FullestPage => (rank, free_bytes, rest),
                Search::EmptiestPage => (rank, PAGE_BYTES - free_bytes, rest),
                Search::Bounded | Search::Everything => (rank, rest, 0),
            }
        });
        best.map(|listed| listed.at)
    }

    fn find(&self, room: usize) -> Option<Address> {
        if self.design.search != Search::Bounded {
            return self.of_all(room);
        }
        let list = self.list_of(room)?;
        let (little, useful) = self.design.avoided;
        let first_from = |list| (list..self.lists.len()).find(|&list| !self.lists[list].is_empty());
        self.of_list(list, room).or_else(|| {
            let closest = first_from(list + 1)?;
            let is_little = closest <= list + little / self.design.step_bytes;
            let useful = || first_from(list + useful / self.design.step_bytes);
            let best = if is_little { closest } else { useful().unwrap_or(closest) };
            self.of_list(best, room)
        })
    }

    fn alloc(&mut self, size: usize) -> Address {
        let (head, unit, lost) = self.design.layout;
        let bytes = (size.max(MIN_LISTED) + head).next_multiple_of(unit);
        let (page, offset) = self.find(bytes - head).unwrap_or_else(|| {
            let page = self.empty.pop().unwrap_or(self.pages.len());
            if page == self.pages.len() {
                self.pages.push(Vec::new());
                self.free_bytes.push(0);
            }
            let block = Block { offset: 0, bytes: PAGE_BYTES - lost, is_free: true };
            self.pages[page].push(block);
            self.insert(page, block);
            (page, 0)
        });
        let at = self.index((page, offset));
        let free = self.pages[page][at];
        self.remove(page, free);
        let blocks = &mut self.pages[page];
        if free.bytes == bytes {
            blocks[at].is_free = false;
            return (page, offset);
        }
        let before = at.checked_sub(1).map_or(0, |before| blocks[before].bytes);
        let after = blocks.get(at + 1).map_or(0, |after| after.bytes);
        let is_at_end = match self.design.place {
            Place::Front => false,
            Place::BesideSmaller => after < before,
            Place::BesideLarger => after > before,
        };
        let rest_bytes = free.bytes - bytes;
        let (object_at, rest_at) =
            if is_at_end { (offset + rest_bytes, offset) } else { (offset, offset + bytes) };
        let object = Block { offset: object_at, bytes, is_free: false };
        let rest = Block { offset: rest_at, bytes: rest_bytes, is_free: true };
        blocks.splice(at..=at, if is_at_end { [rest, object] } else { [object, rest] });
        self.insert(page, rest);
        (page, object_at)
    }

    fn free(&mut self, (page, offset): Address) {
        let mut at = self.index((page, offset));
        if let Some(&next) = self.pages[page].get(at + 1).filter(|next| next.is_free) {
            self.remove(page, next);
            self.pages[page].remove(at + 1);
            self.pages[page][at].bytes += next.bytes;
        }
        if at > 0 && self.pages[page][at - 1].is_free {
            let own = self.pages[page].remove(at);
            at -= 1;
            self.remove(page, self.pages[page][at]);
            self.pages[page][at].bytes += own.bytes;
        }
        if self.pages[page].len() == 1 {
            self.pages[page].clear();
            self.empty.push(page);
            return;
        }
        self.pages[page][at].is_free = true;
        self.insert(page, self.pages[page][at]);
    }
}

enum Flip {
    Alloc(usize),
    Free(usize),
}

/// The flips as `hectare bench stress` draws them.
fn flips(preferred_of_100: usize, seed: u64) -> Vec<Flip> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut live = 0_usize;
    let flip = |_| {
        let heads = random.bool();
        if live == 0 || heads {
            live += 1;
            let is_preferred = random.usize(..100) < preferred_of_100;
            let size =
                if is_preferred { random.usize(1024..=2600) } else { random.usize(32..2048) };
            return Flip::Alloc(size);
        }
        let at = (random.u32(..) as usize * live) >> 32;
        live -= 1;
        Flip::Free(at)
    };
    (0..1_000_000).map(flip).collect()
}

/// The peaks of live bytes and of the pages taken.
fn peaks<H>(
    flips: &[Flip],
    mut alloc: impl FnMut(usize) -> (H, usize),
    mut free: impl FnMut(H),
) -> (usize, usize) {
    let (mut live, mut live_bytes) = (Vec::new(), 0);
    let mut peaks = (0, 0);
    for flip in flips {
        match *flip {
            Flip::Alloc(size) => {
                let (handle, page_bytes) = alloc(size);
                live.push((handle, size));
                live_bytes += size;
                peaks = (peaks.0.max(live_bytes), peaks.1.max(page_bytes));
            }
            Flip::Free(at) => {
                let (handle, size) = live.swap_remove(at);
                free(handle);
                live_bytes -= size;
            }
        }
    }
    live.into_iter().for_each(|(handle, _)| free(handle));
    peaks
}

/// The overhead of an allocator that may pack all objects anew at every free and every alloc: at
/// the peak of live bytes, where it needs most.
fn packed_overhead(flips: &[Flip]) -> f64 {
    let (mut live, mut live_bytes, mut peak_bytes, mut at_peak) = (Vec::new(), 0, 0, Vec::new());
    for flip in flips {
        match *flip {
            Flip::Alloc(size) => {
                live.push(size);
                live_bytes += size;
                if live_bytes > peak_bytes {
                    peak_bytes = live_bytes;
                    at_peak.clone_from(&live);
                }
            }
            Flip::Free(at) => live_bytes -= live.swap_remove(at),
        }
    }
    let (head, unit, lost) = CHOSEN.layout;
    at_peak.sort_by_key(|&size| std::cmp::Reverse(size));
    let mut left: Vec<usize> = Vec::new();
    for size in at_peak {
        let bytes = (size.max(MIN_LISTED) + head).next_multiple_of(unit);
        match left.iter_mut().filter(|left| **left >= bytes).min_by_key(|left| **left) {
            Some(left) => *left -= bytes,
            None => left.push(PAGE_BYTES - lost - bytes),
        }
    }
    ((left.len() * PAGE_BYTES + CHOSEN.own_bytes()) as f64 / peak_bytes as f64 - 1.0) * 100.0
}

fn model_peaks(design: Design, flips: &[Flip]) -> (usize, usize) {
    let model = std::cell::RefCell::new(Model::new(design));
    let alloc = |size| {
        let mut model = model.borrow_mut();
        (model.alloc(size), model.page_bytes())
    };
    peaks(flips, alloc, |place| model.borrow_mut().free(place))
}

/// The overhead in percent. If `is_checked`, the pool itself must take what the model takes.
fn overhead(design: Design, flips: &[Flip], is_checked: bool) -> f64 {
    let (ideal, pages) = model_peaks(design, flips);
    if is_checked {
        let pool: Xv<Os> = Xv::new(Os);
        let alloc = |size| (pool.alloc(size).expect("memory"), pool.stats().page_bytes);
        // SAFETY: a live object, named by nobody else.
        let taken = peaks(flips, alloc, |handle| unsafe { pool.free(handle) });
        assert_eq!((ideal, pages), taken, "the model is not the pool's");
        assert_eq!(design.own_bytes(), pool.stats().descriptor_bytes);
    }
    ((pages + design.own_bytes()) as f64 / ideal as f64 - 1.0) * 100.0
}

/// The mean and its standard error.
fn mean(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, (variance / count).sqrt())
}

fn main() {
    let seeds =
        std::env::args().nth(1).map_or(20, |seeds| seeds.parse().expect("a number of seeds"));
    let part = std::env::args().nth(2).unwrap_or_default();
    for (preferred_of_100, name) in [(0, "uniform 32..2048"), (80, "80 % in 1024..=2600")] {
        println!(
            "{name}: percent over Ideal, mean of seeds 1 to {seeds}; difference to the chosen"
        );
        let run = |design: Design, is_checked| -> Vec<f64> {
            let of_seed = |seed| overhead(design, &flips(preferred_of_100, seed), is_checked);
            (1..=seeds).map(of_seed).collect()
        };
        let packed = (1..=seeds).map(|seed| packed_overhead(&flips(preferred_of_100, seed)));
        println!("{:34} {:5.2}", "all objects packed anew", mean(packed).0);
        let chosen = run(CHOSEN, true);
        let print = |design: Design, values: &[f64]| {
            let differences = values.iter().zip(&chosen).map(|(value, chosen)| value - chosen);
            let (difference, error) = mean(differences);
            let (own, five) =
                (mean(values.iter().copied()).0, mean(values.iter().copied().take(5)).0);
            println!(
                "{:34} {own:5.2}  {difference:+.2} ± {error:.2}  seeds 1-5: {five:.2}",
                design.name
            );
        };
        print(CHOSEN, &chosen);
        let told = OTHERS.iter().filter(|design| design.name.contains(&part));
        told.for_each(|&design| print(design, &run(design, false)));
    }
}
