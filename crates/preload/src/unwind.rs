//! Who called: the return addresses on the stack of this thread.
//!
//! By default the stack is walked by the tables that compilers write for exceptions (`tables.rs`).
//! Every program for x86-64 and AArch64 has them unless it was built without, and they are right
//! for any mixture of such code. Where the tables end, as in code made at run time, the walk
//! follows the saved frame pointers as far as they lead up the stack (`pointers.rs`). If a program
//! asks for it (`prof_unwind:frames`), the walk does so from the first frame outside this library
//! on.
//!
//! The crate `gimli` reads the tables. The usual walk (`_Unwind_Backtrace` of libgcc_s) costs
//! twenty times as much as one whose rules were found before, and that library costs 100 KB of
//! resident memory in every program that would otherwise not load it.

mod known;
mod memory;
mod objects;
mod pointers;
mod registers;
mod rows;
mod tables;

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use hectare::MAX_FRAMES;

use known::Known;
use objects::{File, Object};
use registers::Frame;
use tables::{Code, Step};

/// Where this library lies: its own frames do not count as callers.
static OWN_START: AtomicUsize = AtomicUsize::new(0);
static OWN_END: AtomicUsize = AtomicUsize::new(0);
static BY_FRAMES: AtomicBool = AtomicBool::new(false);

/// Finds out where this library lies. To be called once, before the first capture.
pub(crate) fn begin(by_frames: bool) {
    BY_FRAMES.store(by_frames, Relaxed);
    find_own();
    known::begin();
}

/// Finds out where this library lies; `false` if the dynamic linker does not say. It does not
/// change how stacks are walked, and a search that failed is repeated.
#[cold]
fn find_own() -> bool {
    objects::begin();
    let own = Object::of(find_own as *const () as usize);
    if let Some(own) = own {
        OWN_START.store(own.map_start, Relaxed);
        OWN_END.store(own.map_end, Release);
    }
    own.is_some()
}

/// Whether an address lies in this library; `false` until [`find_own`] has found out where that is.
pub(crate) fn is_own(address: usize) -> bool {
    (OWN_START.load(Relaxed)..OWN_END.load(Relaxed)).contains(&address)
}

/// The innermost return address outside this library, if the tables tell. Unlike
/// [`capture`] it needs no [`begin`].
pub(crate) fn caller() -> Option<usize> {
    // As long as this library's place is unknown, its own frames would count as a caller's.
    if OWN_END.load(Acquire) == 0 && !find_own() {
        return None;
    }
    let mut frames = [0];
    (walk(&mut frames) > 0).then_some(frames[0])
}

/// The file that the code at `address` came from, once [`begin`] was called.
pub(crate) fn file_of(address: usize) -> Option<File> {
    File::of(address)
}

/// Fills `frames` with the return addresses outside this library, innermost first, and returns how
/// many there are. For code that a signal has interrupted, it gives the address one byte past its
/// pc.
pub(crate) fn capture(frames: &mut [usize; MAX_FRAMES]) -> usize {
    walk(frames)
}

#[inline(never)]
fn walk(frames: &mut [usize]) -> usize {
    let known = &mut Known::borrow();
    let mut frame = Frame::here();
    known.recall(&mut frame.memory);
    let count = walk_from(&mut frame, frames, known);
    known.note_memory(&frame.memory);
    count
}

#[inline(always)]
fn walk_from(frame: &mut Frame, frames: &mut [usize], known: &mut Known) -> usize {
    let mut code = Code::Interrupted;
    while is_own(frame.pc) {
        let Step::Up = tables::step(frame, &mut code, known) else { return 0 };
    }
    frames[0] = as_return_address(frame, code);
    let mut count = 1;
    if BY_FRAMES.load(Relaxed) {
        let followed = pointers::follow(frame, frames, count);
        if followed > count {
            return followed;
        }
    }
    while count < frames.len() {
        match tables::step(frame, &mut code, known) {
            Step::Up => {}
            Step::Outermost => break,
            Step::Unknown => return pointers::follow(frame, frames, count),
        }
        frames[count] = as_return_address(frame, code);
        count += 1;
    }
    count
}

/// A frame's pc, for readers who take the byte before it as the place in its code. In code that a
/// signal has interrupted, that place is the pc itself, so one is added.
#[inline(always)]
fn as_return_address(frame: &Frame, code: Code) -> usize {
    frame.pc.wrapping_add(usize::from(code == Code::Interrupted))
}
