use core::cell::Cell;

use hectare_pages::{Counted, Failing, Os};

use super::*;

type Source = Failing<Counted<Os>>;

const MIB: usize = 1 << 20;
const TABLE_BYTES: usize = MAX_BLOCKS * size_of::<HugeBlock>();

fn source() -> Source {
    Failing::new(Counted::new(Os))
}

/// A block whose first and last bytes are written.
fn get(huge: &mut Huge, bytes: usize, source: &Source) -> NonNull<u8> {
    let (start, _) = huge.get(bytes, 1, Contents::Any, source).expect("memory");
    // SAFETY: the block's own.
    unsafe { start.write(1) };
    // SAFETY: as above.
    unsafe { start.add(bytes - 1).write(2) };
    start
}

/// The first byte and the last of `bytes` bytes.
fn ends(start: NonNull<u8>, bytes: usize) -> [u8; 2] {
    // SAFETY: the block's own.
    [0, bytes - 1].map(|at| unsafe { start.add(at).read() })
}

fn sizes(huge: &Huge, start: NonNull<u8>) -> (usize, usize) {
    let block = huge.blocks()[huge.index_of(start).expect("a block")];
    (block.committed_bytes / MIB, block.reserved_bytes / MIB)
}

#[test]
fn a_block_moves_once_to_grow_and_gives_back_what_it_no_longer_needs() {
    let (mut huge, source) = (Huge::new(), source());
    let reserved = || (source.inner().counts().reserved_bytes - TABLE_BYTES) / MIB;
    let first = get(&mut huge, 40 * MIB, &source);
    assert_eq!((sizes(&huge, first), reserved()), ((40, 40), 40));
    let start = huge.resize(first, 50 * MIB, &source).expect("memory");
    assert_eq!((sizes(&huge, start), reserved(), huge.count()), ((50, 100), 100, 1));
    assert_eq!(ends(start, 40 * MIB), [1, 2]);
    for (mib, reserved_mib) in [(90, 100), (100, 100), (30, 30), (30, 30)] {
        assert_eq!(huge.resize(start, mib * MIB, &source), Some(start));
        assert_eq!((sizes(&huge, start), reserved()), ((mib, reserved_mib), reserved_mib));
        assert_eq!((huge.bytes, huge.usable_bytes(start)), (mib * MIB, Some(mib * MIB)));
        assert_eq!(ends(start, 1)[0], 1);
    }
    let address = start.addr().get();
    let holds = [address - 1, address, address + 30 * MIB - 1, address + 30 * MIB];
    assert_eq!(holds.map(|address| huge.contains(address)), [false, true, true, false]);
    huge.put(start, &source).expect("a block");
    assert_eq!((huge.count(), huge.bytes, reserved()), (0, 0, 0));
    assert!(huge.was_freed(address) && huge.put(start, &source).is_none());
}

#[test]
fn what_the_source_cannot_move_is_copied() {
    let (mut huge, source) = (Huge::new(), source());
    let first = get(&mut huge, 4 * MIB, &source);
    // Behind the reservation and its commit.
    let moves = source.calls() + 2;
    // All of it, then each half, which is a huge page.
    source.refuse(moves..moves + 3);
    let start = huge.resize(first, 5 * MIB, &source).expect("memory");
    assert_eq!((source.calls(), ends(start, 4 * MIB)), (moves + 3, [1, 2]));
}

/// The table, or its next page.
#[test]
fn a_table_that_was_refused_is_asked_for_again() {
    let (mut huge, source) = (Huge::new(), source());
    for _ in 0..2 {
        source.refuse(source.calls()..source.calls() + 1);
        assert!(huge.get(MIB, 1, Contents::Any, &source).is_none());
    }
    get(&mut huge, MIB, &source);
    assert_eq!((huge.count(), huge.bytes), (1, MIB));
}

#[test]
fn a_block_that_moves_does_without_room_to_grow_where_there_is_none() {
    let (mut huge, source) = (Huge::new(), source());
    let first = get(&mut huge, 4 * MIB, &source);
    source.refuse(source.calls()..source.calls() + 1);
    let start = huge.resize(first, 5 * MIB, &source).expect("memory");
    assert_eq!((sizes(&huge, start), ends(start, 4 * MIB)), ((5, 5), [1, 2]));
}

#[test]
fn a_block_that_cannot_grow_stays_as_it_is() {
    let (mut huge, source) = (Huge::new(), source());
    let first = get(&mut huge, 4 * MIB, &source);
    let reserved = || source.inner().counts().reserved_bytes - TABLE_BYTES;
    source.refuse(source.calls() + 1..u64::MAX);
    assert!(huge.resize(first, 5 * MIB, &source).is_none());
    assert_eq!((sizes(&huge, first), reserved(), huge.bytes), ((4, 4), 4 * MIB, 4 * MIB));
    source.refuse_all(false);
    let start = huge.resize(first, 5 * MIB, &source).expect("memory");
    source.refuse_all(true);
    assert!(huge.resize(start, 6 * MIB, &source).is_none());
    assert_eq!((sizes(&huge, start), huge.bytes), ((5, 10), 5 * MIB));
    assert_eq!(ends(start, 4 * MIB), [1, 2]);
}

/// A system in which what moves lies in two mappings, and which may lose the place of the second.
struct Divided<'a> {
    inner: &'a Counted<Os>,
    second: usize,
    loses: bool,
    moved_bytes: Cell<usize>,
}

impl<'a> Divided<'a> {
    fn at(second: NonNull<u8>, loses: bool, inner: &'a Counted<Os>) -> Self {
        Self { inner, second: second.addr().get(), loses, moved_bytes: Cell::new(0) }
    }
}

// SAFETY: every call is passed on unchanged, but those to move: one is refused, or ends a reservation and says so.
unsafe impl PageSource for Divided<'_> {
    passed_on!(divided => divided.inner; page_bytes reserve commit decommit release);

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        let start = from.addr().get();
        if start < self.second && self.second < start + bytes {
            return Err(SourceError::Unsupported);
        }
        if self.loses && start >= self.second {
            // SAFETY: by the contract nobody uses it any more.
            unsafe { self.inner.release(to, bytes) };
            return Err(SourceError::Exhausted);
        }
        self.moved_bytes.set(self.moved_bytes.get() + bytes);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.move_pages(from, to, bytes) }
    }
}

/// Writes to each page of `bytes` its offset, which [`is_filled`] expects to find there.
fn fill(start: NonNull<u8>, bytes: usize) {
    for at in (0..bytes).step_by(4096) {
        // SAFETY: the block's own.
        unsafe { start.add(at).cast::<usize>().write(at) };
    }
}

fn is_filled(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the block's own.
    (0..bytes).step_by(4096).all(|at| unsafe { start.add(at).cast::<usize>().read() } == at)
}

#[test]
fn a_block_in_two_mappings_moves_piece_by_piece() {
    for second_kib in [4, 2048, 7 << 10, 33_332, 65_532] {
        let (mut huge, source) = (Huge::new(), source());
        let block = get(&mut huge, 64 * MIB, &source);
        fill(block, 64 * MIB);
        // SAFETY: within the block.
        let second = unsafe { block.add(second_kib << 10) };
        let divided = Divided::at(second, false, source.inner());
        let start = huge.resize(block, 65 * MIB, &divided).expect("memory");
        assert!(is_filled(start, 64 * MIB), "{second_kib}");
        assert!(
            divided.moved_bytes.get() >= 62 * MIB,
            "{second_kib}: at most a huge page is copied"
        );
    }
}

#[test]
fn a_block_whose_new_place_is_lost_stays_as_it_is() {
    for lost_from in [0, 4 * MIB] {
        let (mut huge, source) = (Huge::new(), source());
        let block = get(&mut huge, 8 * MIB, &source);
        fill(block, 8 * MIB);
        let reserved = || source.inner().counts().reserved_bytes - TABLE_BYTES;
        // SAFETY: within the block.
        let losing = Divided::at(unsafe { block.add(lost_from) }, true, source.inner());
        assert!(huge.resize(block, 9 * MIB, &losing).is_none());
        assert_eq!((sizes(&huge, block), is_filled(block, 8 * MIB)), ((8, 8), true));
        // SAFETY: the block's own pages.
        assert!(unsafe { huge.adopt(block, 8 * MIB, 9 * MIB, &losing) }.is_none());
        let left = (huge.count(), huge.bytes, reserved());
        assert_eq!(left, (1, 8 * MIB, 8 * MIB), "nothing else is kept");
        assert!(is_filled(block, 8 * MIB));
    }
}

/// Kept blocks go before a block is refused what it grows by, in place or not.
#[test]
fn no_block_fails_to_grow_while_others_lie_ready() {
    for (grown_mib, calls_before) in [(7, 0), (40, 1)] {
        let (mut huge, source) = (Huge::new(), source());
        let first = get(&mut huge, 5 * MIB, &source);
        let start = huge.resize(first, 6 * MIB, &source).expect("memory");
        assert_eq!(sizes(&huge, start), (6, 12));
        // Freed once, asked for again, and freed: now they stay.
        for _ in 0..2 {
            for other in [0; 4].map(|_| get(&mut huge, 32 * MIB, &source)) {
                huge.put(other, &source).expect("a block");
            }
        }
        assert_eq!(huge.kept_bytes(), 4 * 32 * MIB);
        let commit = source.calls() + calls_before;
        source.refuse(commit..commit + 1);
        let grown = huge.resize(start, grown_mib * MIB, &source).expect("what others had");
        assert_eq!(huge.kept_bytes(), 0);
        assert_eq!((sizes(&huge, grown).0, ends(grown, 5 * MIB)), (grown_mib, [1, 2]));
    }
}
