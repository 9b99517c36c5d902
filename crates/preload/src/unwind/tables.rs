//! Goes from a frame to its caller's, by the tables that compilers write for exceptions.
//!
//! ```text
//!   pc ─▶ object ─▶ .eh_frame_hdr: a sorted list, address ─▶ description (FDE) ─▶ what it shares (CIE)
//!                                                               │ instructions: how the row of
//!                                                               ▼ rules changes from pc to pc
//!   row: the caller's stack pointer (CFA), and where each register was saved, relative to it
//! ```
//! The list is searched here. The crate `gimli` reads what it leads to, and all that it needs lies
//! in the frame of [`rules`]. If anything is malformed, or there is no table, the answer is `None`.
//!
//! Linux Standard Base 5.0, 10.6; DWARF 5, 6.4.

use gimli::{
    BaseAddresses, EhFrame, EndianSlice, NativeEndian, Register, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow,
};

use super::known::{Known, Noted};
use super::objects::Object;
use super::registers::{Frame, plain_address, read, slot};
use super::rows::{Row, Rules};

/// Whose code a frame executes, as far as unwinding depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// A function that has called: its pc is behind the call.
    Caller,
    /// What a signal has interrupted, or the innermost frame: its pc is the next instruction.
    Interrupted,
}

/// Where a frame leads to.
pub(super) enum Step {
    /// To the frame whose code called this one's, or was interrupted by it.
    Up,
    /// Nowhere: it is the outermost.
    Outermost,
    /// No table says.
    Unknown,
}

/// Goes from a frame to the next, unless no table says which: then nothing changes.
pub(super) fn step(frame: &mut Frame, code: &mut Code, known: &mut Known) -> Step {
    let within = frame.pc.wrapping_sub(usize::from(*code == Code::Caller));
    let Some(object) = known.object_of(within) else { return Step::Unknown };
    // SAFETY: the dynamic linker says that the object's table lies there.
    let (pc, is_signal) = match unsafe { known.get(within, object.header) } {
        Some(Noted::Plain(rules)) => (rules.apply(frame), false),
        Some(Noted::Odd(rules)) => (rules.apply(frame), rules.is_signal),
        None => {
            let Some(rules) = rules(within, &object) else { return Step::Unknown };
            // SAFETY: found just now.
            unsafe { known.note(within, object.header, &rules) };
            (rules.apply(frame), rules.is_signal)
        }
    };
    let Some(pc) = pc else { return Step::Unknown };
    frame.pc = plain_address(pc);
    *code = if is_signal { Code::Interrupted } else { Code::Caller };
    if frame.pc == 0 { Step::Outermost } else { Step::Up }
}

pub(super) type Bytes = EndianSlice<'static, NativeEndian>;

/// A context on the stack, since a sample may find little of it left. Compilers save a dozen
/// registers (on AArch64 ten floating-point ones besides), and do not nest remembered rows.
struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

/// Where the descriptions listed at `header` begin, and where that of `pc` begins. The list ends
/// before `end`, and is of the kind that linkers write: pairs of words, relative to the list.
/// (gimli's search, which knows other kinds, takes fifteen times as many instructions: a third of
/// what a frame's rules take.)
fn listed(pc: usize, header: usize, end: usize) -> Option<(usize, usize)> {
    // Version 1; the descriptions' start relative to its own place, a count of four bytes; pairs as
    // above.
    const KIND: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    // SAFETY: the dynamic linker says that the list lies there.
    let kind: [u8; 4] = unsafe { read(header) };
    // SAFETY: as above; every list has these words.
    let [start, count]: [u32; 2] = unsafe { read(header + 4) };
    let pairs = header + 12;
    if kind != KIND || pairs + count as usize * 8 > end {
        return None;
    }
    let to = pc.wrapping_sub(header) as isize;
    // SAFETY: one of the pairs, by the test above.
    let pair = |at: usize| unsafe { read::<[i32; 2]>(pairs + at * 8) };
    // The last that begins at or before `to` is below `above`.
    let (mut below, mut above) = (0, count as usize);
    while below < above {
        let middle = below.midpoint(above);
        if pair(middle)[0] as isize <= to { below = middle + 1 } else { above = middle }
    }
    let [_, description] = pair(below.checked_sub(1)?);
    let from = |place: usize, offset: i32| place.wrapping_add_signed(offset as isize);
    Some((from(header + 4, start.cast_signed()), from(header, description)))
}

/// The rules at `pc`, which lies in `object`.
#[inline(never)]
fn rules(pc: usize, object: &Object) -> Option<Rules> {
    let mut part = object.part_with(object.header)?;
    let (start, description) = listed(pc, object.header, part.end)?;
    // Most linkers put the descriptions into the same part as the table, which is a list of them.
    if !part.contains(&start) {
        part = object.part_with(start)?;
    }
    let first = core::ptr::with_exposed_provenance(start);
    // SAFETY: a mapped part of an object, which stays loaded as long as its code is executed.
    let bytes = unsafe { core::slice::from_raw_parts(first, part.end - start) };
    let bases = BaseAddresses::default().set_eh_frame(start as u64);
    let mut section = EhFrame::new(bytes, NativeEndian);
    section.set_address_size(size_of::<usize>() as u8);
    #[cfg(target_arch = "aarch64")]
    section.set_vendor(gimli::Vendor::AArch64);

    let place = description.wrapping_sub(start).into();
    let description = section.fde_from_offset(&bases, place, EhFrame::cie_from_offset).ok()?;
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row =
        description.unwind_info_for_address(&section, &bases, &mut context, pc as u64).ok()?;
    Some(Rules {
        row: Row::of(row, description.offset())?,
        description: start + description.offset(),
        return_slot: slot(description.cie().return_address_register())? as u8,
        is_signal: description.is_signal_trampoline(),
    })
}
