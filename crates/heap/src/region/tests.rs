extern crate std;

use std::cell::{Cell, RefCell};
use std::vec::Vec;

use hectare_base::align::align_up;
use hectare_buddy::FrameAllocator;
use hectare_pages::{Failing, Os, PageRange, SourceError};

use super::huge_pages::Advice;
use super::huge_part::HUGE_PAGES_FROM_BYTES;
use super::units::UNIT_FRAMES;
use super::*;
use crate::class::ClassId;
use crate::leaving::Leaving;
use crate::slab::{FarWords, SlabEntry, SlabRef};

const FAR_WORDS: usize = size_of::<FarWords>() / size_of::<u64>();

const BYTES: usize = 128 << 20;

fn open() -> (Region, RegionView) {
    let view = RegionView::new();
    let region = Region::open(BYTES, HUGE_PAGE_BYTES, &Os, &view).expect("address space");
    (region, view)
}

impl Region {
    /// Gives memory back until at most `keep` dirty frames are left, and `most` have gone. Returns how many frames went.
    pub(super) fn decommit(&mut self, keep: usize, most: usize, source: &impl PageSource) -> usize {
        let mut gone_frames = 0;
        loop {
            let mut leaving = Leaving::NONE;
            let frames = self.leave(keep, most - gone_frames, &mut leaving, source);
            let is_full = leaving.is_full();
            // SAFETY: `leave` has taken them from all others.
            let gone = unsafe { leaving.decommit(source) };
            let stayed = self.settle(&gone, source);
            gone_frames += frames.saturating_sub(stayed);
            if stayed > 0 || !is_full {
                return gone_frames;
            }
        }
    }

    /// Takes back an empty slab, and gives back hollow ones if they are due.
    fn put_slab(&mut self, start: NonNull<u8>, bare_frames: usize, source: &impl PageSource) {
        self.give_slab(start, bare_frames);
        if self.hollow_slabs_are_due() {
            self.decommit_hollow_slabs(source);
        }
    }
}

/// A source with more address space than there is, for a test that never touches it.
struct Endless {
    end: Cell<usize>,
    held_bytes: Cell<usize>,
}

// SAFETY: no address is handed out twice; there is no memory, but nothing is read or written.
unsafe impl PageSource for Endless {
    fn page_bytes(&self) -> usize {
        FRAME_BYTES
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        let start = align_up(self.end.get(), align);
        self.end.set(start + bytes);
        self.held_bytes.set(self.held_bytes.get() + bytes);
        NonNull::new(core::ptr::without_provenance_mut(start)).ok_or(SourceError::Exhausted)
    }

    unsafe fn commit(&self, _start: NonNull<u8>, _bytes: usize) -> Result<(), SourceError> {
        Ok(())
    }

    unsafe fn decommit(&self, _start: NonNull<u8>, _bytes: usize) -> Result<(), SourceError> {
        Ok(())
    }

    unsafe fn release(&self, _start: NonNull<u8>, bytes: usize) {
        self.held_bytes.set(self.held_bytes.get() - bytes);
    }
}

#[test]
fn a_region_too_long_for_its_bit_sets_keeps_nothing() {
    let source = Endless { end: Cell::new(1), held_bytes: Cell::new(0) };
    let bytes = (1 << 48) + SLAB_BYTES;
    assert!(Region::open(bytes, HUGE_PAGE_BYTES, &source, &RegionView::new()).is_err());
    assert_eq!(source.held_bytes.get(), 0);
}

/// The system. Notes where what is reserved begins, and where what is committed of it begins.
struct Lowest {
    reserved: Cell<usize>,
    committed: Cell<usize>,
}

// SAFETY: every call is passed on unchanged.
unsafe impl PageSource for Lowest {
    passed_on!(_ => Os; page_bytes decommit);

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        let start = Os.reserve(bytes, align)?;
        self.reserved.set(start.addr().get());
        Ok(start)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.committed.set(self.committed.get().min(start.addr().get()));
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.commit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        if start.addr().get() == self.reserved.get() {
            self.reserved.set(start.addr().get() + bytes);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.release(start, bytes) };
    }
}

/// Otherwise a write behind the mapping below would reach the bit sets.
#[test]
fn a_region_begins_with_a_page_that_nobody_can_write_to() {
    let source = Lowest { reserved: Cell::new(0), committed: Cell::new(usize::MAX) };
    for bytes in [BYTES, 64 * BYTES] {
        let region = Region::open(bytes, HUGE_PAGE_BYTES, &source, &RegionView::new());
        assert!(region.is_ok(), "address space");
        assert_eq!(source.committed.take(), source.reserved.get() + source.page_bytes());
        source.committed.set(usize::MAX);
    }
}

/// What the region has reached stays, as does what describes it. What is taken later must lie
/// elsewhere.
#[test]
fn a_region_gives_up_what_it_has_not_reached() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 60);
    for bytes in [BYTES / 4 * 3, BYTES / 16 * 9] {
        assert!(region.shorten(0, &Os));
        assert_eq!(region.reserved_bytes(), bytes);
    }
    assert!(!region.shorten(BYTES / 16 * 9, &Os), "no less than that is wanted");
    while region.shorten(0, &Os) {}
    assert_eq!(region.reserved_bytes(), region.frontier_bytes);
    let left = region.frontier_frames() - 60 * SLAB_FRAMES;
    let run = |frames| Wanted::Run { frames, align: 1, fills: false };
    assert_eq!(region.take(run(left + 1), Blocks::AsTheyAre, &Os).err(), Some(Refusal::NoRange));
    let rest = region.taken(run(left), &view);
    assert_eq!(rest.frames, left);
    region.give(rest.start, left);
    for slab in slabs {
        // SAFETY: a slab's own memory, which nobody else uses.
        unsafe { start_of(slab).write_bytes(1, SLAB_BYTES) };
        region.give(start_of(slab), SLAB_FRAMES);
    }
    assert_eq!(region.validate(), 0);
}

/// The region loses a quarter each time that half as much address space cannot be had beside it.
#[test]
fn a_region_leaves_room_for_others() {
    let source = Failing::new(Os);
    let view = RegionView::new();
    let mut region = Region::open(BYTES, HUGE_PAGE_BYTES, &source, &view).expect("address space");
    for (refused, bytes) in [(0, BYTES), (2, BYTES / 16 * 9), (100, BYTES / 16)] {
        source.refuse(source.calls()..source.calls() + refused);
        region.leave_room(BYTES / 16, &source);
        assert_eq!(region.reserved_bytes(), bytes, "refused {refused} times");
    }
}

/// Takes `count` slabs and opens each.
fn take_slabs(region: &mut Region, view: &RegionView, count: usize) -> Vec<SlabRef> {
    take_slabs_of(ClassId::for_bytes(100), region, view, count)
}

/// As [`take_slabs`], for `class`.
fn take_slabs_of(
    class: ClassId,
    region: &mut Region,
    view: &RegionView,
    count: usize,
) -> Vec<SlabRef> {
    let slabs = (0..count).map(|_| {
        let run = region.taken(Wanted::Slab { of_pages: false, siblings: 0 }, view);
        view.fresh_slab(run.start, run.clean).expect("a descriptor").open(class)
    });
    slabs.collect()
}

fn start_of(slab: SlabRef) -> NonNull<u8> {
    // SAFETY: there is one thread, and no other reference.
    unsafe { slab.get() }.start()
}

#[test]
fn descriptors_go_with_what_they_describe() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 64);
    assert_eq!(64 * size_of::<SlabEntry>() % Os.page_bytes(), 0, "whole pages");
    for &slab in &slabs {
        region.give(start_of(slab), SLAB_FRAMES);
    }
    assert_eq!(region.decommit(0, usize::MAX, &Os), 64 * SLAB_FRAMES);
    assert!(slabs.iter().all(|slab| slab.class() == ClassId::NONE));
    let again = take_slabs(&mut region, &view, 64);
    assert!(again.iter().all(|slab| slab.class() == ClassId::for_bytes(100)));
}

#[test]
fn far_words_go_with_what_they_describe() {
    let (mut region, view) = open();
    let slabs = take_slabs_of(ClassId::for_bytes(16), &mut region, &view, 64);
    assert_eq!(64 * size_of::<FarWords>() % Os.page_bytes(), 0, "whole pages");
    let far_words = |slab: SlabRef| {
        let offset = view.offset_of(start_of(slab).addr().get()).expect("in the region");
        // SAFETY: committed as far as the region, and there is one thread.
        unsafe { *view.slab_table().far_words_at(offset) }
    };
    let places: Vec<_> = slabs.iter().map(|&slab| start_of(slab)).collect();
    assert!(slabs.iter().all(|&slab| far_words(slab).iter().all(|&word| word == u64::MAX)));
    places.iter().for_each(|&start| region.give(start, SLAB_FRAMES));
    assert_eq!(region.decommit(0, usize::MAX, &Os), 64 * SLAB_FRAMES);
    let table = region.far_words.start.cast::<u64>();
    // SAFETY: as above.
    let words = unsafe { core::slice::from_raw_parts(table.as_ptr(), 64 * FAR_WORDS) };
    assert!(words.iter().all(|&word| word == 0));
}

#[test]
fn descriptors_of_slabs_in_use_stay() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 64);
    for (i, &slab) in slabs.iter().enumerate() {
        if i % 7 != 3 {
            region.give(start_of(slab), SLAB_FRAMES);
        }
    }
    region.decommit(0, usize::MAX, &Os);
    for (i, &slab) in slabs.iter().enumerate() {
        if i % 7 == 3 {
            assert_eq!(slab.class(), ClassId::for_bytes(100), "slab {i}");
            assert_eq!(start_of(slab).addr().get() % SLAB_BYTES, 0);
        }
    }
}

#[test]
fn descriptors_go_bit_by_bit_too() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 64);
    for &slab in &slabs {
        region.give(start_of(slab), SLAB_FRAMES);
    }
    for keep in (0..64).rev() {
        assert_eq!(region.decommit(keep * SLAB_FRAMES, usize::MAX, &Os), SLAB_FRAMES);
    }
    assert!(slabs.iter().all(|slab| slab.class() == ClassId::NONE));
}

/// Makes dirty pieces that no slab fits into: all of each slab but a frame.
fn give_pieces(region: &mut Region, slabs: &[SlabRef]) {
    for &slab in slabs {
        // SAFETY: within the slab.
        region.give(unsafe { start_of(slab).add(FRAME_BYTES) }, SLAB_FRAMES - 1);
    }
}

impl Region {
    /// Takes what is `wanted`, as the backend does.
    fn taken(&mut self, wanted: Wanted, view: &RegionView) -> Run {
        let run = self.take(wanted, Blocks::AsTheyAre, &Os).expect("memory");
        self.show(view);
        self.probe_due(view);
        run
    }

    /// Probes the run that is due.
    fn probe_due(&mut self, view: &RegionView) {
        if let Some(run) = self.due_probe()
            && let Some(filled_pages) = run.in_use(&Os)
        {
            self.note_probe(run, filled_pages);
            self.show(view);
        }
    }
}

/// Takes what is `wanted`, from a block if a block is the place for it.
fn take_opening(region: &mut Region, view: &RegionView, wanted: Wanted) -> Run {
    let taken = region.take(wanted, Blocks::MayOpen, &Os);
    if !matches!(taken, Err(Refusal::Block)) {
        region.probe_due(view);
        return taken.expect("memory");
    }
    if let Some(mut block) = region.take_block(&Os) {
        block.touch(&Os);
        region.give_block(block, 0, &Os);
    }
    region.taken(wanted, view)
}

/// Writes to the first `filled` frames of a run.
fn fill(run: Run, filled: usize) {
    for frame in 0..filled {
        // SAFETY: within the run, which is the caller's.
        unsafe { run.start.add(frame * FRAME_BYTES).write(1) };
    }
}

/// Takes a slab of a class that has `siblings`, and returns how many dirty frames came with it.
fn dirty_beside(region: &mut Region, view: &RegionView, siblings: usize) -> usize {
    let before = region.dirty_frames();
    take_opening(region, view, Wanted::Slab { of_pages: false, siblings });
    region.dirty_frames() - before
}

#[test]
fn a_class_that_grows_gets_a_block() {
    let (mut region, view) = open();
    take_slabs(&mut region, &view, 64);
    assert_eq!(dirty_beside(&mut region, &view, 3), 0, "it may stay small");
    assert_eq!(dirty_beside(&mut region, &view, 4), UNIT_FRAMES - SLAB_FRAMES);
}

#[test]
fn a_growing_class_gets_a_block_in_spite_of_pieces_that_are_few_beside_it() {
    let [small, large] = [63, 192];
    for (region_slabs, pieces, least) in
        [(small, 2, 5), (small, 4, 8), (small, 16, 30), (large, 4, 20), (large, 16, 30)]
    {
        let (mut region, view) = open();
        let slabs = take_slabs(&mut region, &view, region_slabs);
        give_pieces(&mut region, &slabs[..pieces]);
        assert_eq!(dirty_beside(&mut region, &view, least - 1), 0, "{pieces} pieces are too much");
        assert_eq!(dirty_beside(&mut region, &view, least), UNIT_FRAMES - SLAB_FRAMES);
    }
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 63);
    give_pieces(&mut region, &slabs[..18]);
    assert_eq!(dirty_beside(&mut region, &view, 64), 0, "more than a few pieces");
}

#[test]
fn long_runs_of_a_huge_page_in_all_have_huge_pages_once_there_are_blocks() {
    let (mut region, view) = open();
    take_slabs(&mut region, &view, 64);
    let mut take = |frames| {
        let wanted = Wanted::Run { frames, align: 1, fills: true };
        let run = region.taken(wanted, &view);
        region.is_huge_from(FrameId(region.frame_of(run.start) + 2 * UNIT_FRAMES))
    };
    let short = (0..8).any(|_| take(63));
    assert!(!short && !take(300) && !take(195), "short runs do not count");
    assert!(!take(20) && take(64), "495 frames are not many, 559 are");

    let (mut region, view) = open();
    let wanted = Wanted::Run { frames: 500, align: 1, fills: true };
    region.taken(wanted, &view);
    assert_eq!(region.huge.start(), HUGE_PAGES_FROM_BYTES, "a small region");
}

#[test]
fn huge_pages_begin_with_units_that_a_run_nearly_fills_or_behind_them() {
    // The first run has a unit of its own, so the second begins one.
    for (frames, unit) in [(248, 2), (447, 2), (448, 1), (712, 3), (959, 3), (960, 1)] {
        let (mut region, view) = open();
        take_slabs(&mut region, &view, 64);
        let start = region.touched_frames;
        for frames in [480, frames] {
            region.taken(Wanted::Run { frames, align: 1, fills: true }, &view);
        }
        let begins = start + unit * UNIT_FRAMES;
        let asked = [begins - 1, begins].map(|frame| region.is_huge_from(FrameId(frame)));
        assert_eq!(asked, [false, true], "{frames} frames");
    }
}

#[test]
fn a_short_run_has_what_is_left_of_a_unit_before_it_begins_a_huge_one() {
    let (mut region, view) = open();
    take_slabs(&mut region, &view, 64);
    let mut take = |frames| region.taken(Wanted::Run { frames, align: 1, fills: true }, &view);
    let long = [880, 880].map(|frames| (take(frames), frames));
    let places = [100, 100, 44, 100].map(&mut take);
    let begins = region.huge.start() / FRAME_BYTES;
    let left = long.map(|(run, frames)| region.frame_of(run.start) + frames);
    let [first, second, third, last] = places.map(|run| region.frame_of(run.start));
    assert_eq!([first, second, third], [left[0], left[1], left[0] + 100]);
    assert!(second + 100 <= begins && last >= begins, "{last} is the first that finds no room");
}

#[test]
fn a_region_that_has_shrunk_opens_no_block_beside_pieces() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 96);
    for &slab in &slabs[64..] {
        region.give(start_of(slab), SLAB_FRAMES);
    }
    region.decommit(0, usize::MAX, &Os);
    give_pieces(&mut region, &slabs[..4]);
    assert_eq!(dirty_beside(&mut region, &view, 32), 0);
}

/// A region of nine units that does without huge pages. Six of them have gone. In each of the
/// others a slab is in use, and what is dirty lies in pieces that no slab fits into.
fn open_with_holes() -> (Region, RegionView) {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 9 * UNIT_SLABS);
    hollow_out(&mut region, &slabs, |i| i % UNIT_SLABS == 0 && i < 3 * UNIT_SLABS);
    region.choose_pages(0, true, &Os);
    give_pieces(&mut region, &[slabs[0], slabs[UNIT_SLABS]]);
    assert!(!region.is_huge_from(FrameId(0)) && region.dirty_frames() >= SLAB_FRAMES);
    (region, view)
}

#[test]
fn a_region_that_grows_again_opens_blocks_beside_pieces() {
    let (mut region, view) = open_with_holes();
    for turn in 0..2 {
        for slab in 0..UNIT_SLABS {
            assert_eq!(dirty_beside(&mut region, &view, 4), 0, "slab {slab} of turn {turn}");
        }
        assert_eq!(dirty_beside(&mut region, &view, 3), 0, "a class that may stay small");
        assert_eq!(dirty_beside(&mut region, &view, 4), UNIT_FRAMES - SLAB_FRAMES);
        while region.take_fitting(SLAB_FRAMES, SLAB_FRAMES).is_some() {}
        // Something goes back: it no longer grows.
        let run = take_opening(&mut region, &view, Wanted::Slab { of_pages: false, siblings: 0 });
        assert!(region.decommit_run(FrameId(region.frame_of(run.start)), SLAB_FRAMES, &Os));
    }
}

#[test]
fn a_region_that_grows_again_opens_blocks_for_runs_that_are_filled() {
    for (filled, is_block) in [(40, true), (36, true), (25, false), (10, false)] {
        let (mut region, view) = open_with_holes();
        let wanted = Wanted::Run { frames: 40, align: 1, fills: true };
        let from_block = (0..100).any(|_| {
            fill(take_opening(&mut region, &view, wanted), filled);
            region.dirty_frames() > UNIT_FRAMES / 2
        });
        assert_eq!(from_block, is_block, "{filled} of 40");
    }
}

#[test]
fn a_region_that_grows_by_runs_that_are_filled_opens_blocks_for_them() {
    for (slabs, frames, filled, from_bytes) in [
        (0, 40, 40, Some(4 << 20)),
        (0, 10, 10, Some(4 << 20)),
        (80, 20, 20, Some(8 << 20)),
        (0, 40, 25, None),
        (0, 10, 2, None),
    ] {
        let (mut region, view) = open();
        take_slabs(&mut region, &view, slabs);
        let wanted = Wanted::Run { frames, align: 1, fills: true };
        let mut block_at = None;
        while block_at.is_none() && region.touched_frames < (12 << 20) / FRAME_BYTES {
            let touched_bytes = region.touched_frames * FRAME_BYTES;
            fill(take_opening(&mut region, &view, wanted), filled);
            block_at = (region.dirty_frames() > UNIT_FRAMES / 2).then_some(touched_bytes);
        }
        let first_after = |from: usize| from..from + frames * FRAME_BYTES;
        match from_bytes {
            Some(from) => {
                let is_there = block_at.is_some_and(|at| first_after(from).contains(&at));
                assert!(is_there, "{slabs} slabs, {frames} frames: at {block_at:?}");
            }
            None => assert_eq!(block_at, None, "{filled} of {frames}"),
        }
    }
}

#[test]
fn few_runs_among_slabs_open_no_block() {
    let (mut region, view) = open();
    take_slabs(&mut region, &view, 150);
    let wanted = Wanted::Run { frames: 10, align: 1, fills: true };
    for _ in 0..UNIT_FRAMES / 10 {
        fill(take_opening(&mut region, &view, wanted), 10);
        assert_eq!(region.dirty_frames(), 0);
    }
    assert!(region.is_for_filled(10), "it is not for what was seen of them");
}

#[test]
fn runs_seen_filled_in_use_outweigh_empty_ones_that_came_back() {
    for (filled, near) in [(40, Near::WIDE), (72, Near::USUAL)] {
        let (mut region, view) = open();
        use_runs(&mut region, &view, 72, 8);
        assert_eq!(view.near(), Near::WIDE);
        let wanted = Wanted::Run { frames: 72, align: 1, fills: true };
        for _ in 0..80 {
            fill(take_opening(&mut region, &view, wanted), filled);
        }
        assert_eq!(view.near(), near, "{filled} of 72");
    }
}

/// Gives back all slabs as hollow ones, except those for which `stays` returns `true`.
fn hollow_out(region: &mut Region, slabs: &[SlabRef], stays: impl Fn(usize) -> bool) {
    for (_, &slab) in slabs.iter().enumerate().filter(|&(i, _)| !stays(i)) {
        region.put_slab(start_of(slab), SLAB_FRAMES, &Os);
    }
    region.decommit_hollow_slabs(&Os);
}

const UNIT_SLABS: usize = UNIT_FRAMES / SLAB_FRAMES;

#[test]
fn of_a_hollow_slab_nothing_stays() {
    let (mut region, view) = open();
    let few = take_slabs(&mut region, &view, 1);
    region.put_slab(start_of(few[0]), SLAB_FRAMES, &Os);
    assert_eq!(region.dirty_frames(), SLAB_FRAMES, "below where blocks begin it stays");
    let slabs = take_slabs(&mut region, &view, 3 * UNIT_SLABS);
    for (i, bare_frames) in [SLAB_FRAMES / 2 - 1, SLAB_FRAMES / 2].into_iter().enumerate() {
        let start = start_of(slabs[i]);
        // SAFETY: the slab is the test's.
        unsafe { start.write(7) };
        region.put_slab(start, bare_frames, &Os);
        // SAFETY: committed, and in use by nobody.
        assert_eq!(unsafe { start.read() }, [7, 0][i], "{bare_frames} frames without memory");
        assert_eq!(region.dirty_frames(), SLAB_FRAMES);
    }
}

#[test]
fn a_unit_of_which_all_has_gone_is_a_block_again() {
    let (mut region, view) = open();
    let slabs = take_slabs(&mut region, &view, 3 * UNIT_SLABS);
    hollow_out(&mut region, &slabs, |i| i == 0 || i >= 2 * UNIT_SLABS);
    let touched = region.touched_frames;
    assert_eq!(dirty_beside(&mut region, &view, UNIT_SLABS), UNIT_FRAMES - SLAB_FRAMES);
    assert_eq!(region.touched_frames, touched, "the second unit, not a new one");
    assert!(region.dirty.has(FrameId(2 * UNIT_FRAMES - 1)));
}

#[test]
fn new_blocks_leave_holes_in_three_quarters_of_a_region_at_most() {
    for (stay, more) in [(8, UNIT_FRAMES - SLAB_FRAMES), (7, 0)] {
        let (mut region, view) = open();
        let slabs = take_slabs(&mut region, &view, 3 * UNIT_SLABS);
        hollow_out(&mut region, &slabs, |i| i % UNIT_SLABS < stay);
        assert_eq!(
            dirty_beside(&mut region, &view, UNIT_SLABS),
            more,
            "{stay} slabs of a unit stay"
        );
    }
}

/// How many slabs do without a block before the next block, and that block.
fn next_block(region: &mut Region) -> (u32, Block) {
    (0..).find_map(|passed| Some((passed, region.take_block(&Os)?))).expect("a block")
}

#[test]
fn after_two_dear_blocks_slabs_come_page_by_page() {
    for (took_us, expected) in [(1000, 0), (3000, 256)] {
        let (mut region, view) = open();
        let slabs = take_slabs(&mut region, &view, 4 * UNIT_SLABS);
        hollow_out(&mut region, &slabs, |i| i < UNIT_SLABS);
        for _ in 0..2 {
            let (passed, block) = next_block(&mut region);
            assert_eq!(passed, 0, "one alone");
            region.give_block(block, took_us, &Os);
            take_slabs(&mut region, &view, UNIT_SLABS);
        }
        assert_eq!(next_block(&mut region).0, expected, "after two that took {took_us} us");
    }
}

#[test]
fn blocks_that_come_apart_are_dear_and_hold_nothing() {
    let (mut region, _) = open();
    for expected in [0, 0, 256] {
        let dirty = region.dirty_frames();
        let (passed, mut block) = next_block(&mut region);
        assert_eq!(passed, expected);
        block.came_apart = true;
        region.give_block(block, 100, &Os);
        assert_eq!(region.dirty_frames(), dirty, "what did not come is not there");
    }
    // The system may refuse to take back what came with the first page: then as much goes as can.
    let source = Failing::new(Os);
    source.refuse_all(true);
    let dirty = region.dirty_frames();
    let (_, mut block) = next_block(&mut region);
    block.came_apart = true;
    region.give_block(block, 100, &source);
    assert_eq!(region.dirty_frames(), dirty + UNIT_FRAMES);
}

#[test]
fn no_huge_pages_are_asked_for_while_blocks_are_dear() {
    let (mut region, view) = open();
    take_slabs(&mut region, &view, HUGE_PAGES_FROM_BYTES / SLAB_BYTES);
    let mut open_block = |took_us| {
        let (passed, block) = next_block(&mut region);
        region.give_block(block, took_us, &Os);
        while region.take_fitting(SLAB_FRAMES, SLAB_FRAMES).is_some() {}
        let slab =
            region.take(Wanted::Slab { of_pages: false, siblings: 0 }, Blocks::AsTheyAre, &Os);
        (passed, slab.expect("memory").huge)
    };
    assert_eq!(open_block(3000), (0, true), "one may be by chance");
    assert_eq!(open_block(3000), (0, false), "two are not");
    let (passed, block) = next_block(&mut region);
    assert_eq!(passed, 256, "growth passes blocks by, too");
    region.give_block(block, 100, &Os);
    let frontier = region.frontier_frames();
    assert!(region.is_huge_from(FrameId(frontier)) && !region.is_huge_from(FrameId(frontier - 1)));
}

/// If no place is aligned as widely as could be of use, one that is aligned less widely will do.
#[test]
fn a_region_begins_wherever_there_is_a_place() {
    let open = |refused| {
        let source = Failing::new(Os);
        source.refuse(0..refused);
        let region = Region::open(BYTES, SLAB_BYTES, &source, &RegionView::new());
        region.map(|region| region.start.addr().get())
    };
    for (refused, align) in [(0, 16 << 20), (1, HUGE_PAGE_BYTES), (2, SLAB_BYTES)] {
        assert_eq!(open(refused).map(|start| start % align), Ok(0), "{refused} refused");
    }
    assert_eq!(open(3), Err(SourceError::Exhausted));
}

/// If the frontier cannot move by a whole step, it moves as far as it must.
#[test]
fn the_last_memory_is_had() {
    let (mut region, _) = open();
    let source = Failing::new(Os);
    // Behind the commits of four tables.
    source.refuse(4..5);
    let wanted = Wanted::Run { frames: SLAB_FRAMES + 1, align: 1, fills: false };
    region.take(wanted, Blocks::AsTheyAre, &source).expect("memory");
    assert_eq!((source.calls(), region.frontier_bytes), (6, 2 * SLAB_BYTES));
    region.take(wanted, Blocks::AsTheyAre, &source).expect("memory");
    assert_eq!(region.frontier_bytes, HUGE_PAGE_BYTES, "a step");
}

/// Takes a run of `units` units that will be filled, and writes `byte` into each page of it.
fn take_units(region: &mut Region, view: &RegionView, units: usize, byte: u8) -> Run {
    let wanted = Wanted::Run { frames: units * UNIT_FRAMES, align: 1, fills: true };
    let run = region.taken(wanted, view);
    for frame in 0..run.frames {
        // SAFETY: a run just taken.
        unsafe { run.start.add(frame * FRAME_BYTES).write(byte) };
    }
    run
}

#[test]
fn dirty_units_move_into_a_longer_run() {
    let (mut region, view) = open();
    let runs: Vec<Run> = (1..=8).map(|i| take_units(&mut region, &view, 1, i)).collect();
    for run in runs.iter().step_by(2) {
        region.give(run.start, UNIT_FRAMES);
    }
    assert_eq!(region.dirty_frames(), 4 * UNIT_FRAMES);
    let wanted = Wanted::Run { frames: 3 * UNIT_FRAMES + 10, align: 1, fills: true };
    let run = region.taken(wanted, &view);
    assert_eq!((run.frames, run.bare_frames, run.clean), (3 * UNIT_FRAMES + 10, 0, false));
    assert_eq!(region.dirty_frames(), UNIT_FRAMES - 10, "what is left of the fourth");
    for (unit, byte) in [7, 5, 3, 1].into_iter().enumerate() {
        // SAFETY: within the run.
        assert_eq!(unsafe { run.start.add(unit * HUGE_PAGE_BYTES).read() }, byte);
    }
    // SAFETY: the other runs are still in use.
    assert!(runs.iter().skip(1).step_by(2).zip([2, 4, 6, 8]).all(|(run, byte)| unsafe {
        run.start.read() == byte && run.start.add(HUGE_PAGE_BYTES - 1).read() == 0
    }));
}

/// Dirty frames serve requests up to twice as long, with the clean frames behind them. So a heap of
/// some mebibytes, whose units are no huge pages, does not grow by the whole run.
#[test]
fn the_longest_dirty_run_is_lengthened() {
    for (dirty, is_lengthened) in [(50, true), (49, false)] {
        let (mut region, view) = open();
        let wanted = |frames| Wanted::Run { frames, align: 1, fills: true };
        let shorter = region.taken(wanted(dirty), &view);
        region.give(shorter.start, dirty);
        let run = region.taken(wanted(100), &view);
        assert_eq!(run.start == shorter.start, is_lengthened, "{dirty} dirty frames");
        let bare_frames = if is_lengthened { 50 } else { 100 };
        assert_eq!((run.bare_frames, run.clean), (bare_frames, !is_lengthened));
        assert_eq!(region.dirty_frames(), if is_lengthened { 0 } else { dirty });
    }
}

/// The system, except that moves are refused: in this way, and after this many.
struct Unmoving(SourceError, Cell<usize>);

impl Unmoving {
    const fn at_once(refusal: SourceError) -> Self {
        Self(refusal, Cell::new(0))
    }
}

// SAFETY: every call is passed on unchanged, or refused without effect.
unsafe impl PageSource for Unmoving {
    passed_on!(_ => Os; page_bytes reserve commit decommit release);

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        let left = self.1.get().checked_sub(1).ok_or(self.0)?;
        self.1.set(left);
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.move_pages(from, to, bytes) }
    }
}

#[test]
fn where_nothing_can_move_a_run_is_bare() {
    for refusal in [SourceError::Unsupported, SourceError::Exhausted] {
        let (mut region, view) = open();
        let runs: Vec<Run> = (1..=4).map(|i| take_units(&mut region, &view, 1, i)).collect();
        for run in runs.iter().step_by(2) {
            region.give(run.start, UNIT_FRAMES);
        }
        let wanted = Wanted::Run { frames: 2 * UNIT_FRAMES, align: 1, fills: true };
        let clean_frames = region.clean.free_frames();
        let run =
            region.take(wanted, Blocks::AsTheyAre, &Unmoving::at_once(refusal)).expect("memory");
        assert_eq!((run.bare_frames, run.clean), (2 * UNIT_FRAMES, true), "{refusal}");
        assert_eq!(region.dirty_frames(), 2 * UNIT_FRAMES, "{refusal}");
        // A place that is lost is never handed out.
        let lost_frames = if refusal == SourceError::Exhausted { UNIT_FRAMES } else { 0 };
        let taken_frames = clean_frames - region.clean.free_frames();
        assert_eq!(taken_frames, 2 * UNIT_FRAMES + lost_frames, "{refusal}");
        // The refusal holds for good.
        assert!(region.refuses_moves, "{refusal}");
    }
}

/// If a run was to come in units and one of them is lost, only that one is lost. What has moved
/// goes back to the system in due time, and what lies behind can be had.
#[test]
fn of_many_units_only_the_lost_one_is() {
    let (mut region, view) = open();
    let runs: Vec<Run> = (1..=8).map(|i| take_units(&mut region, &view, 1, i)).collect();
    for run in runs.iter().step_by(2) {
        region.give(run.start, UNIT_FRAMES);
    }
    let clean_frames = region.clean.free_frames();
    let lost = Unmoving(SourceError::Exhausted, Cell::new(2));
    let wanted = Wanted::Run { frames: 5 * UNIT_FRAMES, align: 1, fills: true };
    let run = region.take(wanted, Blocks::AsTheyAre, &lost).expect("memory");
    assert!(run.clean && lost.1.get() == 0);
    assert_eq!(region.dirty_frames(), 4 * UNIT_FRAMES, "two have moved");
    assert_eq!(region.clean.free_frames(), clean_frames - run.frames - UNIT_FRAMES);
    assert_eq!(region.decommit(0, usize::MAX, &Os), 4 * UNIT_FRAMES);
}

/// A run that grows by such units, and by parts of other units in front of them and behind.
#[test]
fn a_run_that_grew_into_a_lost_place_leaves_what_lay_around() {
    let (mut region, view) = open();
    let [long, room, _last, elsewhere] = [(5, 1), (5, 2), (1, 4), (2, 5)]
        .map(|(units, byte)| take_units(&mut region, &view, units, byte));
    region.give(room.start, room.frames);
    region.decommit(0, usize::MAX, &Os);
    region.give(elsewhere.start, elsewhere.frames);
    region.give_clean(FrameId(region.frame_of(long.start) + long.frames - 10), 10);
    let clean_frames = region.clean.free_frames();
    let frames = long.frames - 10;
    let lost = Unmoving(SourceError::Exhausted, Cell::new(1));
    assert!(region.extend(long.start, frames, frames + 4 * UNIT_FRAMES + 20, &lost).is_none());
    // One unit has moved, and one is lost. What lies in front counts as dirty, too.
    assert_eq!(region.dirty_frames(), 2 * UNIT_FRAMES + 10);
    assert_eq!(region.clean.free_frames(), clean_frames - UNIT_FRAMES - 10);
}

/// If the clean frames behind a dirty run are lost, only they are lost.
#[test]
fn what_lies_in_front_of_a_lost_place_stays_dirty() {
    let (mut region, view) = open();
    region.huge = HugePart::from_byte(0);
    let [whole, half] = [1, 2].map(|byte| take_units(&mut region, &view, 1, byte));
    let front = 100;
    region.give(whole.start, UNIT_FRAMES);
    // SAFETY: within the run.
    region.give(unsafe { half.start.add((UNIT_FRAMES - front) * FRAME_BYTES) }, front);
    let wanted = Wanted::Run { frames: UNIT_FRAMES + front, align: 1, fills: true };
    let lost = Unmoving::at_once(SourceError::Exhausted);
    let run = region.take(wanted, Blocks::AsTheyAre, &lost).expect("memory");
    assert!(run.clean);
    // Instead, what is left of the unit in which the run ends goes, too.
    assert_eq!(region.dirty_frames(), UNIT_FRAMES + front + UNIT_FRAMES - front);
}

/// The same if a run grows by dirty frames and a place that is then lost.
#[test]
fn a_run_that_grew_into_a_lost_place_leaves_what_lay_before() {
    let (mut region, view) = open();
    let [long, front, gone, _last, elsewhere] = [(4, 1), (1, 2), (1, 3), (1, 4), (1, 5)]
        .map(|(units, byte)| take_units(&mut region, &view, units, byte));
    assert_eq!(region.frame_of(gone.start), region.frame_of(long.start) + 5 * UNIT_FRAMES);
    region.give(gone.start, UNIT_FRAMES);
    region.decommit(0, usize::MAX, &Os);
    region.give(front.start, UNIT_FRAMES);
    region.give(elsewhere.start, UNIT_FRAMES);
    let clean_frames = region.clean.free_frames();
    let (frames, wanted) = (4 * UNIT_FRAMES, 6 * UNIT_FRAMES);
    let lost = Unmoving::at_once(SourceError::Exhausted);
    assert!(region.extend(long.start, frames, wanted, &lost).is_none());
    assert_eq!(region.dirty_frames(), 2 * UNIT_FRAMES);
    assert_eq!(region.clean.free_frames(), clean_frames - UNIT_FRAMES, "that is lost");
}

#[test]
fn a_run_of_zeros_is_left_untouched() {
    let (mut region, view) = open();
    let runs: Vec<Run> = (1..=4).map(|i| take_units(&mut region, &view, 1, i)).collect();
    for run in runs.iter().step_by(2) {
        region.give(run.start, UNIT_FRAMES);
    }
    let wanted = Wanted::Run { frames: 2 * UNIT_FRAMES, align: 1, fills: false };
    let run = region.taken(wanted, &view);
    assert_eq!((run.bare_frames, run.clean), (2 * UNIT_FRAMES, true));
    assert_eq!(region.dirty_frames(), 2 * UNIT_FRAMES, "what is dirty is no help");
}

#[test]
fn units_from_which_all_has_moved_are_no_holes() {
    let (mut region, view) = open();
    let committed_frames = |region: &Region| region.frontier_frames();
    let runs: Vec<Run> = (1..=8).map(|i| take_units(&mut region, &view, 1, i)).collect();
    assert_eq!(committed_frames(&region) - region.empty_unit_frames(1), 8 * UNIT_FRAMES);
    for run in runs.iter().step_by(2) {
        region.give(run.start, UNIT_FRAMES);
    }
    take_units(&mut region, &view, 4, 9);
    assert_eq!(committed_frames(&region) - region.empty_unit_frames(1), 8 * UNIT_FRAMES);
    region.give(runs[1].start, UNIT_FRAMES - 1);
    region.decommit(0, usize::MAX, &Os);
    let used_frames = committed_frames(&region) - region.empty_unit_frames(1);
    assert_eq!(used_frames, 8 * UNIT_FRAMES, "one frame of a unit is in use");
}

/// Takes runs of `frames` frames, writes the first `filled` frames of each, and gives the runs
/// back: four at once, as often as a verdict takes.
fn use_runs(region: &mut Region, view: &RegionView, frames: usize, filled: usize) -> Vec<Run> {
    let wanted = Wanted::Run { frames, align: 1, fills: true };
    let mut seen = Vec::new();
    for _ in 0..8 {
        region.decommit(0, usize::MAX, &Os);
        let runs: Vec<Run> = (0..4).map(|_| region.taken(wanted, view)).collect();
        for &run in &runs {
            fill(run, filled);
            // SAFETY: the run just taken.
            unsafe { region.give_run(run.start, run.frames, &Os) };
        }
        region.show(view);
        seen.extend(runs);
    }
    seen
}

#[test]
fn what_stays_untouched_is_sparse() {
    let (mut region, view) = open();
    for (filled, near) in [(72, Near::USUAL), (36, Near::USUAL), (8, Near::WIDE), (60, Near::USUAL)]
    {
        use_runs(&mut region, &view, 72, filled);
        assert_eq!(view.near(), near, "{filled} of 72");
        let is_sparse = near == Near::WIDE;
        assert_eq!((region.is_for_sparse(72), region.is_for_sparse(15)), (is_sparse, false));
    }
}

#[test]
fn a_heap_of_few_sizes_has_blocks_early() {
    let (mut region, view) = open();
    for (more, wanting) in [(31, None), (1, Some(8)), (31, Some(8)), (1, Some(4))] {
        take_slabs(&mut region, &view, more);
        let least = (0..=12).find(|&siblings| region.wants_block(siblings));
        assert_eq!(least, wanting, "{} KiB touched", region.touched_frames * 4);
    }
}

#[test]
fn runs_in_use_are_probed() {
    for (frames, filled, is_plain) in [
        (9, 9, false),
        (9, 3, true),
        (18, 18, false),
        (18, 12, false),
        (18, 6, true),
        (300, 100, true),
        (18, 0, false),
        (600, 400, false),
        (600, 100, true),
        (600, 0, false),
    ] {
        let (mut region, view) = open();
        let wanted = Wanted::Run { frames, align: 1, fills: true };
        for _ in 0..32 {
            fill(region.taken(wanted, &view), filled);
        }
        let seen = (region.is_for_plain(frames), region.is_for_sparse(frames), view.near());
        assert_eq!(seen, (is_plain, false, Near::USUAL), "{filled} of {frames}");
        let plain = [9, SLAB_FRAMES, UNIT_FRAMES].map(|frames| region.is_for_plain(frames));
        let kinds = plain.iter().filter(|&&plain| plain).count();
        assert_eq!(kinds, usize::from(is_plain), "kinds are told apart");
    }
}

/// The mappings of this process that the system was asked to have in huge pages.
pub(super) fn huge_mappings() -> Vec<Range<usize>> {
    let mappings = std::fs::read_to_string("/proc/self/smaps").expect("the kernel's list");
    let (mut place, mut huge) = (0..0, Vec::new());
    for line in mappings.lines() {
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((start, end)) = range.and_then(|(a, b)| address(a).zip(address(b))) {
            place = start..end;
        } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg") {
            huge.push(place.clone());
        }
    }
    huge
}

/// This includes the first step of the frontier that leads there.
#[test]
fn what_lies_behind_the_first_sixteen_mebibytes_is_huge() {
    let (mut region, view) = open();
    let run = take_units(&mut region, &view, 20, 1);
    // SAFETY: within the run.
    let last = unsafe { run.start.add(19 * HUGE_PAGE_BYTES) };
    assert!(region.is_huge_from(FrameId(region.frame_of(last))));
    let place = last.addr().get();
    assert!(huge_mappings().iter().any(|mapping| mapping.contains(&place)));
}

/// A page of a huge one that was taken for a single page would hold memory that nobody knows of.
#[test]
fn what_is_huge_is_known_as_such() {
    let (mut region, view) = open();
    take_slabs(&mut region, &view, 24 * UNIT_FRAMES / SLAB_FRAMES / 2);
    assert!(region.huge.start() < region.frontier_bytes);
    let take = |region: &mut Region| {
        let wanted = Wanted::Run { frames: 9, align: 1, fills: true };
        let run = region.taken(wanted, &view);
        // SAFETY: within the run.
        unsafe { run.start.write(1) };
    };
    while !region.is_for_plain(9) {
        take(&mut region);
    }
    let before = region.frontier_bytes;
    while region.frontier_bytes == before {
        take(&mut region);
    }
    let huge = huge_mappings();
    for first in (0..region.frontier_frames()).step_by(UNIT_FRAMES).map(FrameId) {
        let place = region.at(first).addr().get();
        let is_asked = huge.iter().any(|mapping| mapping.contains(&place));
        assert_eq!(is_asked, region.is_huge_from(first), "unit {}", first.0 / UNIT_FRAMES);
    }
}

/// What has come with a run beside it, as part of a huge page, goes with the run.
#[test]
fn what_came_with_a_run_goes_with_it() {
    const FRAMES: usize = 100;
    let (mut region, view) = open();
    let wanted = |frames, align| Wanted::Run { frames, align, fills: false };
    region.taken(wanted(9 * UNIT_FRAMES, 1), &view);
    let [first, second, third] = [(); 3].map(|()| {
        let run = region.taken(wanted(FRAMES, UNIT_FRAMES), &view);
        fill(run, FRAMES);
        run
    });
    // SAFETY: in the run's unit.
    let page = |run: Run, frame| unsafe { run.start.add(frame * FRAME_BYTES) };
    let is_there = |run, frame| Os.is_resident(page(run, frame)) == Some(true);
    if ![first, second, third].iter().all(|&run| is_there(run, UNIT_FRAMES - 1)) {
        std::eprintln!("skipped: there are no huge pages");
        return;
    }
    // A page in the midst of the first unit stays in use.
    let behind = FrameId(region.frame_of(page(first, FRAMES * 2)));
    region.take_behind(behind, 1, &Os).expect("a clean frame");
    for run in [first, second, third] {
        region.give(run.start, FRAMES);
    }
    region.decommit(0, usize::MAX, &Os);
    for run in [first, second, third] {
        assert!((0..FRAMES * 2).all(|frame| !is_there(run, frame)));
    }
    assert!((FRAMES * 2..UNIT_FRAMES).all(|frame| is_there(first, frame)), "beyond what is in use");
    assert!([second, third].iter().all(|&run| !is_there(run, UNIT_FRAMES - 1)));
    region.decommit_run(behind, 1, &Os);
    assert!(!is_there(first, UNIT_FRAMES - 1));
}

/// A region of which 64 MiB were touched, and `hollow` slabs that wait to go back. Each begins with
/// a 7.
fn open_with_hollow(
    source: &impl PageSource,
    hollow: usize,
) -> (Region, RegionView, Vec<NonNull<u8>>) {
    let view = RegionView::new();
    let mut region = Region::open(BYTES, HUGE_PAGE_BYTES, source, &view).expect("address space");
    let slabs: Vec<_> = take_slabs(&mut region, &view, hollow).into_iter().map(start_of).collect();
    let long = region.taken(Wanted::Run { frames: 64 << 8, align: 1, fills: false }, &view);
    region.decommit_run(FrameId(region.frame_of(long.start)), long.frames, &Os);
    for &start in &slabs {
        // SAFETY: the slab is the test's.
        unsafe { start.write(7) };
        region.put_slab(start, SLAB_FRAMES / 2, source);
    }
    (region, view, slabs)
}

/// Whether each of the slabs still holds what was written to it.
fn all_hold(slabs: &[NonNull<u8>]) -> bool {
    // SAFETY: committed memory of a region that lives, and in use by nobody.
    slabs.iter().all(|start| unsafe { start.read() } == 7)
}

#[test]
fn hollow_slabs_go_together() {
    let (region, _, slabs) = open_with_hollow(&Os, 7);
    assert!(all_hold(&slabs), "one waits for each 8 MiB");
    assert_eq!(region.dirty_frames(), 7 * SLAB_FRAMES);
    assert_eq!(region.validate(), 0);
    let source = Pooled(RefCell::default());
    let (region, _, slabs) = open_with_hollow(&source, 8);
    assert!(!slabs.iter().any(|&start| all_hold(&[start])));
    // What described these slabs goes, too.
    let mut calls = source.0.take();
    calls.retain(|call| slabs.contains(&call.0));
    assert_eq!(calls, [(slabs[7], 8 * SLAB_FRAMES)], "by one call");
    assert_eq!((region.dirty_frames(), region.validate()), (0, 0));
}

#[test]
fn a_hollow_slab_that_waits_is_the_next() {
    let wanted = |of_pages, siblings| Wanted::Slab { of_pages, siblings };
    let (mut region, view, slabs) = open_with_hollow(&Os, 2);
    let run = region.taken(wanted(false, 0), &view);
    assert_eq!((run.start, run.clean, run.bare_frames), (slabs[1], false, SLAB_FRAMES));
    assert_eq!(run.again_frames, SLAB_FRAMES, "some of it had gone");
    assert_eq!(region.take(wanted(false, 4), Blocks::MayOpen, &Os).err(), Some(Refusal::Block));
    let block = region.take_block(&Os).expect("a block");
    assert!(!all_hold(&slabs[..1]), "where it was there may be room for a block");
    region.give_block(block, 0, &Os);
    assert_eq!(region.dirty_frames(), UNIT_FRAMES);
}

#[test]
fn hollow_slabs_go_before_all_else() {
    let (mut region, view, slabs) = open_with_hollow(&Os, 3);
    let run = region.taken(Wanted::Run { frames: 20, align: 1, fills: false }, &view);
    region.give(run.start, run.frames);
    assert_eq!(region.decommit(3 * SLAB_FRAMES, usize::MAX, &Os), 3 * SLAB_FRAMES);
    assert!(!slabs.iter().any(|&start| all_hold(&[start])));
    assert_eq!((region.dirty_frames(), region.validate()), (20, 0));
}

#[test]
fn hollow_slabs_that_the_system_refuses_are_dirty() {
    let source = Failing::new(Os);
    let (mut region, view, slabs) = open_with_hollow(&source, 3);
    source.refuse_all(true);
    assert_eq!(region.decommit(0, usize::MAX, &source), 0);
    assert!(all_hold(&slabs));
    assert_eq!((region.dirty_frames(), region.validate()), (3 * SLAB_FRAMES, 0));
    let run = region.taken(Wanted::Slab { of_pages: false, siblings: 0 }, &view);
    assert_eq!((run.clean, run.bare_frames), (false, 0), "all of it is taken to be there");
}

/// What has come behind the last run, as part of its huge page, goes when no more huge pages are
/// asked for.
#[test]
fn what_came_behind_the_last_run_goes_with_huge_pages() {
    const FRAMES: usize = 100;
    let (mut region, view) = open();
    let wanted = |frames| Wanted::Run { frames, align: UNIT_FRAMES, fills: false };
    region.taken(wanted(9 * UNIT_FRAMES), &view);
    let run = region.taken(wanted(FRAMES), &view);
    fill(run, FRAMES);
    // SAFETY: in the run's unit.
    let page = |frame| unsafe { run.start.add(frame * FRAME_BYTES) };
    let is_there = |frame| Os.is_resident(page(frame)) == Some(true);
    if !is_there(UNIT_FRAMES - 1) {
        std::eprintln!("skipped: there are no huge pages");
        return;
    }
    region.ask_from(region.huge.start(), Advice::Plain, &Os);
    assert!((0..UNIT_FRAMES).all(|frame| is_there(frame) == (frame < FRAMES)));
}

#[test]
fn slabs_of_objects_of_pages_are_probed() {
    for (of_pages, filled, are_bare) in [(true, 16, false), (true, 4, true), (false, 4, false)] {
        let (mut region, view) = open();
        let take = |region: &mut Region| {
            let slab = region.taken(Wanted::Slab { of_pages, siblings: 0 }, &view);
            for frame in 0..filled {
                // SAFETY: within the slab.
                unsafe { slab.start.add(frame * FRAME_BYTES).write(1) };
            }
            slab
        };
        for _ in 0..16 {
            let slab = take(&mut region);
            region.put_slab(slab.start, 0, &Os);
            region.decommit(0, usize::MAX, &Os);
        }
        for _ in 0..8 {
            take(&mut region);
        }
        assert!(!view.leaves_pages_bare(), "no verdict by those that came back");
        for _ in 0..16 {
            take(&mut region);
        }
        assert_eq!(view.leaves_pages_bare(), are_bare, "{filled} of 16");
        assert_eq!(region.is_for_plain(9), are_bare);
    }
}

/// All of a block is resident: a program that fills its memory would have to bring another.
#[test]
fn what_stays_untouched_leaves_a_block_to_others() {
    let (mut region, view) = open();
    let hollow = Wanted::Slab { of_pages: true, siblings: 0 };
    let full = Wanted::Slab { of_pages: false, siblings: 0 };
    let short = Wanted::Run { frames: 9, align: 1, fills: true };
    while !region.is_for_plain(9) {
        fill(region.taken(hollow, &view), 4);
    }
    let longer = UNIT_FRAMES + 9;
    let old = region.taken(Wanted::Run { frames: longer, align: 1, fills: false }, &view);
    let block = region.take_block(&Os).expect("a block");
    region.give_block(block, 0, &Os);
    for wanted in [hollow, short] {
        assert!(region.taken(wanted, &view).clean, "{wanted:?}");
    }
    // The block fits better.
    region.give(old.start, longer);
    assert_eq!(region.taken(short, &view).start, old.start);
    assert!(region.dirty.take_at(FrameId(region.frame_of(old.start) + 9), UNIT_FRAMES));
    let of_block = region.taken(full, &view);
    assert!(!of_block.clean);
    region.put_slab(of_block.start, 0, &Os);
    assert_eq!(region.taken(hollow, &view).start, of_block.start, "somebody has had it");
    // As if it had gone back.
    assert!(region.dirty.take_at(FrameId(region.fresh.start + 40), 1));
    assert!(!region.taken(short, &view).clean, "there is no whole block any more");
}

/// The system, with pages to set aside. Notes what each call gives back to it: where that begins,
/// and how many frames it has.
struct Pooled(RefCell<Vec<(NonNull<u8>, usize)>>);

// SAFETY: every call is passed on unchanged; what is set aside is ordinary memory.
unsafe impl PageSource for Pooled {
    passed_on!(_ => Os; page_bytes reserve commit release);

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.0.borrow_mut().push((start, bytes / FRAME_BYTES));
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.decommit(start, bytes) }
    }

    unsafe fn decommit_all(&self, ranges: &[PageRange]) -> usize {
        let bytes = ranges.iter().map(|range| range.bytes).sum::<usize>();
        self.0.borrow_mut().extend(ranges.first().map(|range| (range.start, bytes / FRAME_BYTES)));
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.decommit_all(ranges) }
    }

    unsafe fn set_aside(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.commit(start, bytes) }
    }
}

/// Giving back what was set aside means clearing it, so only what goes is cleared. Elsewhere the
/// rest of the huge page goes, too.
#[test]
fn what_was_set_aside_goes_without_companions() {
    for (aside_bytes, gone_frames) in [(0, UNIT_FRAMES), (HUGE_PAGE_BYTES, 10)] {
        let (mut region, view) = open();
        let source = Pooled(RefCell::default());
        // SAFETY: nobody else uses the source.
        let beyond = unsafe { region.set_aside(BYTES + HUGE_PAGE_BYTES, &source) };
        assert_eq!(beyond, Err(SourceError::Exhausted), "that is more than it has");
        if aside_bytes > 0 {
            // SAFETY: nobody else uses the source.
            unsafe { region.set_aside(aside_bytes, &source) }.expect("pages of its own");
        }
        region.huge = HugePart::from_byte(0);
        let run = region.taken(Wanted::Run { frames: 10, align: 1, fills: false }, &view);
        fill(run, 10);
        region.give(run.start, 10);
        assert_eq!(region.decommit(0, usize::MAX, &source), 10);
        let of_region = |(start, _): &(NonNull<u8>, usize)| *start >= region.start;
        let gone: Vec<_> = source.0.into_inner().into_iter().filter(of_region).collect();
        assert_eq!(gone, [(run.start, gone_frames)]);
        let again = region.taken(Wanted::Run { frames: 10, align: 1, fills: false }, &view);
        assert!(again.clean && again.start == run.start);
        // SAFETY: the run just taken.
        assert_eq!(unsafe { again.start.read() }, 0, "it reads as zero");
    }
}

/// Runs that came in huge pages before most were seen to stay empty would be resident for nothing,
/// whoever took them next.
#[test]
fn long_runs_that_hold_nothing_go_when_they_are_freed() {
    let view = RegionView::new();
    let region = Region::open(256 << 20, HUGE_PAGE_BYTES, &Os, &view);
    let mut region = region.expect("address space");
    let wanted = Wanted::Run { frames: UNIT_FRAMES, align: 1, fills: true };
    let runs = [(); 48].map(|()| {
        let run = region.taken(wanted, &view);
        fill(run, 1);
        run
    });
    assert!(region.is_for_plain(UNIT_FRAMES));
    let [hollow, full, light] = [0, 1, 47].map(|at| runs[at]);
    // Not runs that are waited for: these are probed anyway, and the first decides for all.
    for run in runs {
        region.filling.forget(run.start);
    }
    // SAFETY: the whole run, which is the test's.
    unsafe { full.start.write_bytes(1, UNIT_FRAMES * FRAME_BYTES) };
    // SAFETY: the page in the middle. Zeros, but there, as where huge pages are.
    unsafe { hollow.start.add(UNIT_FRAMES / 2 * FRAME_BYTES).write_volatile(0) };
    for (run, stays) in [(full, true), (light, true), (hollow, false)] {
        let dirty = region.dirty_frames();
        // SAFETY: nobody uses it any more.
        unsafe { region.give_run(run.start, UNIT_FRAMES, &Os) };
        region.uncache();
        let expected = if stays { dirty + UNIT_FRAMES } else { dirty };
        assert_eq!(region.dirty_frames(), expected, "frame {}", region.frame_of(run.start));
    }
}

/// What is freed and dirty may be anybody's next: a probe of it would take the new owner's state
/// for the slab's.
#[test]
fn a_slab_that_came_back_is_not_probed_in_use() {
    for (comes_back, is_plain) in [(true, false), (false, true)] {
        let (mut region, view) = open();
        let slabs = [(); 16].map(|()| {
            let slab = region.taken(Wanted::Slab { of_pages: true, siblings: 0 }, &view);
            fill(slab, 4);
            // This has what comes back lie in pieces, which no run below fits into.
            take_slabs(&mut region, &view, 1);
            slab
        });
        if comes_back {
            slabs.iter().for_each(|slab| region.put_slab(slab.start, 0, &Os));
        }
        let wanted = Wanted::Run { frames: SLAB_FRAMES + 1, align: 1, fills: true };
        for _ in 0..16 {
            region.taken(wanted, &view);
        }
        assert_eq!(region.is_for_plain(9), is_plain, "came back: {comes_back}");
    }
}

#[test]
fn runs_in_huge_pages_are_probed() {
    let (mut region, view) = open();
    take_units(&mut region, &view, 9, 1);
    let wanted = Wanted::Run { frames: 18, align: 1, fills: true };
    let mut dirty = 0;
    while !region.is_for_plain(18) {
        let run = region.taken(wanted, &view);
        // SAFETY: within the run.
        unsafe { run.start.write(1) };
        dirty += usize::from(!run.clean);
    }
    assert!((16..32).contains(&dirty), "{dirty} runs came with units");
}

#[test]
fn whole_units_go_before_the_pieces_behind_them() {
    let (mut region, view) = open();
    let mut take = |frames| region.taken(Wanted::Run { frames, align: 1, fills: false }, &view);
    let [_, units, _, piece, _] = [8 * UNIT_FRAMES, 2 * UNIT_FRAMES, 50, 100, 50].map(&mut take);
    assert!(region.is_huge_from(FrameId(region.frame_of(units.start))));
    region.give(units.start, units.frames);
    region.give(piece.start, piece.frames);
    assert_eq!(region.decommit(piece.frames, usize::MAX, &Os), units.frames);
    let first = FrameId(region.frame_of(piece.start));
    assert_eq!(region.dirty.run_around(first), Some((first, piece.frames)));
}

#[test]
fn what_the_system_refuses_stays_dirty() {
    let (source, view) = (Failing::new(Os), RegionView::new());
    let mut region = Region::open(BYTES, HUGE_PAGE_BYTES, &source, &view).expect("address space");
    let wanted = Wanted::Run { frames: 20, align: 1, fills: true };
    // More than go in one call.
    let runs: Vec<_> = (0..140)
        .map(|_| region.take(wanted, Blocks::AsTheyAre, &source).expect("memory"))
        .collect();
    for run in runs.iter().step_by(2) {
        region.give(run.start, run.frames);
    }
    let counts = |region: &Region| (region.paged_frames, region.short_run_frames);
    assert_eq!(counts(&region), (140 * 20, 140 * 20));
    source.refuse_all(true);
    assert_eq!(region.decommit(0, usize::MAX, &source), 0);
    assert_eq!((region.dirty_frames(), counts(&region)), (70 * 20, (140 * 20, 140 * 20)));
    // The second of the ranges that go at once, but not by itself.
    source.refuse(source.calls() + 1..source.calls() + 2);
    assert_eq!(region.decommit(0, usize::MAX, &source), 70 * 20);
    assert_eq!(counts(&region), (0, 0), "nothing has come since");
}

#[test]
fn a_long_run_that_stays_untouched_goes_back() {
    let (mut region, view) = open();
    let frames = 2 * UNIT_FRAMES + 1;
    let wanted = Wanted::Run { frames, align: 1, fills: true };
    // How much of each run is filled, and whether the run stays.
    for (eighths, stays) in [(4, true), (0, true), (3, false), (3, true), (8, true), (1, false)] {
        region.decommit(0, usize::MAX, &Os);
        let others = [0, 1].map(|_| region.taken(wanted, &view));
        let run = region.taken(wanted, &view);
        assert!(region.huge.start() < HUGE_PAGES_FROM_BYTES, "there are many");
        for page in 0..eighths {
            // SAFETY: within the run.
            unsafe { run.start.add(page * run.frames / 8 * FRAME_BYTES).write(1) };
        }
        let dirty = region.dirty_frames();
        // SAFETY: the run just taken.
        unsafe { region.give_run(run.start, run.frames, &Os) };
        assert_eq!(region.dirty_frames() - dirty, if stays { frames } else { 0 });
        assert_eq!(region.huge.start() < HUGE_PAGES_FROM_BYTES, stays, "{eighths} eighths");
        assert_eq!(region.big_run_frames > 0, stays, "they are counted anew");
        for run in others {
            region.give(run.start, run.frames);
        }
    }
}

#[test]
fn a_long_run_that_the_system_refuses_changes_nothing() {
    let (source, view) = (Failing::new(Os), RegionView::new());
    let mut region = Region::open(BYTES, HUGE_PAGE_BYTES, &source, &view).expect("address space");
    let frames = 2 * UNIT_FRAMES + 1;
    let wanted = Wanted::Run { frames, align: 1, fills: true };
    let runs = [(); 3].map(|()| region.take(wanted, Blocks::AsTheyAre, &source).expect("memory"));
    // SAFETY: the front of a run.
    unsafe { runs[2].start.write(1) };
    source.refuse_all(true);
    let dirty = region.dirty_frames();
    // SAFETY: a run just taken.
    unsafe { region.give_run(runs[2].start, frames, &source) };
    assert_eq!(region.dirty_frames() - dirty, frames);
    assert!(region.huge.start() < HUGE_PAGES_FROM_BYTES && region.big_run_frames > 0);
}

#[test]
fn sparse_runs_begin_where_slabs_do() {
    let (mut region, view) = open();
    use_runs(&mut region, &view, 72, 8);
    let runs = use_runs(&mut region, &view, 72, 8);
    let slab = |run: &Run| run.start.addr().get().is_multiple_of(SLAB_BYTES);
    assert!(runs.iter().all(slab), "{runs:?}");
    // A kept run serves half as much.
    let wanted = Wanted::Run { frames: 40, align: 1, fills: true };
    let run = region.taken(wanted, &view);
    assert_eq!((run.frames, run.bare_frames), (72, 0));
}

/// If no more memory can be had, what the region has serves such runs wherever it lies.
#[test]
fn sparse_runs_begin_anywhere_at_a_limit() {
    const FRAMES: usize = 72;
    let (mut region, view) = open();
    use_runs(&mut region, &view, FRAMES, 8);
    region.decommit(0, usize::MAX, &Os);
    let source = Failing::new(Os);
    let wanted = |frames| Wanted::Run { frames, align: 1, fills: false };
    let first = region.take(wanted(5 * SLAB_FRAMES), Blocks::AsTheyAre, &source).expect("memory");
    assert!(first.start.addr().get().is_multiple_of(SLAB_BYTES));
    source.refuse_all(true);
    for frames in [SLAB_FRAMES, 1] {
        while region.take(wanted(frames), Blocks::AsTheyAre, &source).is_ok() {}
    }
    // SAFETY: within the run.
    let start = unsafe { first.start.add(8 * FRAME_BYTES) };
    region.give(start, FRAMES);
    assert_eq!(region.decommit(0, usize::MAX, &Os), FRAMES);
    let run =
        region.take(wanted(FRAMES), Blocks::AsTheyAre, &source).expect("a place off the grid");
    assert_eq!((run.start, run.frames), (start, FRAMES));
}

/// The only place with room is found behind any number of places that are too short, even if no
/// block is sure to have room.
#[test]
fn a_place_behind_many_short_ones_is_found_at_a_limit() {
    const SHORT: usize = 17;
    const COUNT: usize = 70;
    let (mut region, _) = open();
    let source = Failing::new(Os);
    let wanted = |frames| Wanted::Run { frames, align: 1, fills: false };
    let take = |region: &mut Region, frames| {
        region.take(wanted(frames), Blocks::AsTheyAre, &source).map(|run| run.start)
    };
    let short: Vec<_> = (0..COUNT).map(|_| take(&mut region, SHORT).expect("memory")).collect();
    let place = take(&mut region, 40).expect("memory");
    source.refuse_all(true);
    for frames in [SLAB_FRAMES, 1] {
        while take(&mut region, frames).is_ok() {}
    }
    for start in short {
        region.give(start, SHORT - 1);
    }
    region.give(place, 39);
    assert_eq!(region.decommit(0, usize::MAX, &Os), COUNT * (SHORT - 1) + 39);
    assert_eq!(region.frame_of(place) % 32, COUNT * SHORT % 32, "no block of 32 frames is in it");
    assert_eq!(take(&mut region, 20), Ok(place));
}

#[test]
fn sparse_runs_have_no_huge_pages() {
    let (mut region, view) = open();
    use_runs(&mut region, &view, 240, 8);
    let wanted = Wanted::Run { frames: 240, align: 1, fills: true };
    while region.frontier_bytes < BYTES / 2 {
        let run = region.taken(wanted, &view);
        assert!(!run.huge && region.huge.start() >= HUGE_PAGES_FROM_BYTES);
    }
    assert_eq!(region.huge.start(), region.frontier_bytes);
    // A long run is filled as far as anybody knows.
    take_units(&mut region, &view, 4, 1);
    assert!(region.huge.start() < region.frontier_bytes);
}
