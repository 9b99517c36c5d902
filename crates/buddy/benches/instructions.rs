//! Instructions of each fast path, counted by callgrind. They do not depend on what else the
//! machine does, so they show small differences that time cannot.
//!
//! `cargo bench -p hectare-buddy --bench instructions [-- NAME]`
//!
//! Each path runs in a process of its own, once with `OPS` operations and once with twice as many.
//! The instructions that the second run counts beyond the first, divided by `OPS`, are those of an
//! operation. Making the allocator drops out; the loop around the call, three to six instructions,
//! does not.

mod common;

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;

use hectare_buddy::{
    Atomic, Bitset, Checked, Extents, FrameAllocator, FrameId, Order, RangeAllocator,
};

/// Frames of every allocator here: 1 GiB.
const FRAMES: usize = 1 << 18;
/// Operations that are counted.
const OPS: usize = 1 << 16;
/// Blocks of a batch.
const BATCH: usize = 512;

/// What a child does `ops` times.
#[derive(Clone, Copy)]
enum Work {
    /// Takes single frames from an allocator that is all free.
    Alloc,
    /// Frees single frames, from first to last, in an allocator that is all taken.
    Free,
    /// The same in random order.
    FreeRandom,
    /// Takes batches of single frames; a frame is an operation.
    AllocMany,
    FreeMany,
    /// Takes a block of order 3 and gives it back, in memory of which every other frame is taken up
    /// to the middle. Each time blocks of order 17 are split and merged; or, if one frame behind
    /// the middle stays taken, only blocks of that frame's word.
    Split,
    Pair,
    /// Takes ranges of 18 frames.
    AllocRange,
}

const WORK: [(&str, Work); 8] = [
    ("alloc", Work::Alloc),
    ("free in order", Work::Free),
    ("free at random", Work::FreeRandom),
    ("alloc_many, 512", Work::AllocMany),
    ("free_many, 512", Work::FreeMany),
    ("alloc and free, order 3", Work::Pair),
    ("the same, from order 17", Work::Split),
    ("alloc_range, 18", Work::AllocRange),
];

impl Work {
    fn run(self, mut allocator: impl RangeAllocator, ops: usize) {
        allocator.add_region(FrameId(0), FRAMES).expect("within the frames");
        let allocator = &mut allocator;
        match self {
            Self::Alloc => {
                for _ in 0..ops {
                    black_box(allocator.alloc(Order::ZERO)).expect("there are enough");
                }
            }
            Self::Free | Self::FreeRandom => {
                let mut taken = take_all(allocator);
                if matches!(self, Self::FreeRandom) {
                    common::shuffle(&mut taken);
                }
                for &frame in taken.iter().take(ops) {
                    allocator.free(black_box(frame), Order::ZERO).expect("it was taken");
                }
            }
            Self::AllocMany => {
                let mut out = [FrameId(0); BATCH];
                for _ in 0..ops / BATCH {
                    assert_eq!(allocator.alloc_many(Order::ZERO, black_box(&mut out)), BATCH);
                }
            }
            Self::FreeMany => {
                let taken = take_all(allocator);
                for batch in taken.chunks(BATCH).take(ops / BATCH) {
                    allocator.free_many(Order::ZERO, black_box(batch)).expect("they were taken");
                }
            }
            Self::Pair | Self::Split => {
                let taken = take_all(allocator);
                let kept = usize::from(matches!(self, Self::Pair));
                let (low, high) = taken.split_at(FRAMES / 2 + kept);
                let odd = low.iter().filter(|frame| frame.0 % 2 == 1);
                for &frame in odd.chain(high) {
                    allocator.free(frame, Order::ZERO).expect("it was taken");
                }
                let order = Order::new(3).expect("18 at most");
                for _ in 0..ops {
                    let block = black_box(allocator.alloc(order)).expect("half is whole");
                    allocator.free(block, order).expect("it was taken");
                }
            }
            Self::AllocRange => {
                for _ in 0..ops / 16 {
                    black_box(allocator.alloc_range(18, 1, usize::MAX)).expect("there are enough");
                }
            }
        }
    }

    /// How many operations a run does that was asked for `ops`.
    const fn counted(self, ops: usize) -> usize {
        match self {
            Self::AllocRange => ops / 16,
            _ => ops,
        }
    }
}

fn take_all(allocator: &mut impl FrameAllocator) -> Vec<FrameId> {
    (0..FRAMES).map(|_| allocator.alloc(Order::ZERO).expect("there are as many")).collect()
}

/// The child: does `work` on the allocator called `name`.
fn work(name: &str, work: Work, ops: usize) {
    let atomics = |count: usize| -> Vec<AtomicU64> { (0..count).map(|_| 0.into()).collect() };
    let map = atomics(Extents::metadata_words(FRAMES));
    let extents = Extents::new(FRAMES, &map).expect("large enough");
    let mut metadata = vec![0; Bitset::metadata_words(FRAMES)];
    let bitset = Bitset::over_zeroed(FRAMES, &mut metadata).expect("large enough");
    let metadata = atomics(Atomic::metadata_words(FRAMES));
    let shared = Atomic::over_zeroed(FRAMES, &metadata).expect("large enough");
    match name {
        "bitset" => work.run(bitset, ops),
        "atomic" => work.run(shared.local(), ops),
        "checked bitset" => work.run(Checked::new(bitset, &extents), ops),
        _ => work.run(Checked::new(shared.local(), &extents), ops),
    }
}

/// The instructions of a child, or `None` if valgrind cannot be started.
fn instructions(name: &str, at: usize, ops: usize) -> Option<u64> {
    let itself = std::env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["--child", name, &at.to_string(), &ops.to_string()])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    Some(collected?.1.trim().parse().expect("callgrind tells a number"))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, at, ops] = arguments.as_slice()
        && flag == "--child"
    {
        let number = |text: &str| text.parse::<usize>().expect("this program passes numbers");
        return work(name, WORK[number(at)].1, number(ops));
    }
    // `cargo bench` itself passes `--bench`.
    let asked = arguments.iter().find(|argument| !argument.starts_with('-'));
    for name in ["bitset", "atomic", "checked bitset", "checked atomic"] {
        if asked.is_some_and(|asked| asked != name) {
            continue;
        }
        for (at, (what, work)) in WORK.iter().enumerate() {
            let Some(once) = instructions(name, at, OPS) else {
                println!("skipped: valgrind is not installed");
                return;
            };
            let twice = instructions(name, at, 2 * OPS).expect("valgrind was there before");
            let per_op = (twice - once) as f64 / work.counted(OPS) as f64;
            println!("{name:14} {what:24} {per_op:8.1} instructions");
        }
    }
}
