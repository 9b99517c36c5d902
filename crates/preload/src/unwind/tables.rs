//! From a frame to its caller's, by the tables that compilers write for exceptions.
//!
//! ```text
//!   pc ─▶ object ─▶ .eh_frame_hdr: a sorted list, address ─▶ description (FDE) ─▶ what it shares (CIE)
//!                                                               │ instructions: how the row of
//!                                                               ▼ rules changes from pc to pc
//!   row: the caller's stack pointer (CFA), and where each register was saved, relative to it
//! ```
//! The crate `gimli` reads them, with all that it needs in the frame of [`rules`]; of what is
//! malformed, and where there is no table, the answer is `None`.
//!
//! Linux Standard Base 5.0, 10.6; DWARF 5, 6.4.

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow,
};

use super::known::Known;
use super::objects::Object;
use super::registers::{Frame, plain_address, slot};
use super::rows::{Row, Rules};

/// Whose code a frame executes, so far as unwinding depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// A function that called: its pc is behind the call.
    Caller,
    /// What a signal has interrupted, or the innermost frame: its pc is the next instruction.
    Interrupted,
}

/// Where a frame leads to.
pub(super) enum Step {
    /// To that of whoever called its code, or was interrupted by it.
    To(Frame, Code),
    /// Nowhere: it is the outermost.
    Outermost,
    /// No table says.
    Unknown,
}

/// Goes from a frame to the next.
pub(super) fn step(frame: &Frame, code: Code, known: &mut Known) -> Step {
    let within = frame.pc.wrapping_sub(usize::from(code == Code::Caller));
    let Some((next, code)) = rules_at(within, known).and_then(|rules| {
        let (stack, registers) = rules.apply(&frame.registers)?;
        let pc = plain_address(registers[rules.return_slot]);
        // A stack gets shorter on the way to a caller, unless a handler has its own.
        let is_above = stack > frame.stack_pointer() || rules.is_signal;
        let code = if rules.is_signal { Code::Interrupted } else { Code::Caller };
        is_above.then_some((Frame { pc, registers }, code))
    }) else {
        return Step::Unknown;
    };
    if next.pc == 0 { Step::Outermost } else { Step::To(next, code) }
}

/// The rules at `pc`, found before or now.
fn rules_at(pc: usize, known: &mut Known) -> Option<Rules> {
    let object = Object::of(pc)?;
    // SAFETY: the dynamic linker says that the object's table lies there.
    if let Some(rules) = unsafe { known.get(pc, object.header) } {
        return Some(*rules);
    }
    let rules = rules(pc, &object)?;
    // SAFETY: found just now.
    unsafe { known.note(pc, object.header, rules) };
    Some(rules)
}

pub(super) type Bytes = EndianSlice<'static, NativeEndian>;

/// A context on the stack, of which a sample may find little left. Compilers save a dozen registers
/// (AArch64: ten more of floating-point numbers), and nest no rows that they remember.
struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

/// The rules at `pc`, which lies in `object`.
#[inline(never)]
fn rules(pc: usize, object: &Object) -> Option<Rules> {
    // Linkers put the descriptions, of which the table is a list, into the same part.
    let part = object.part_with(object.header)?;
    let bytes = |start: usize| -> Option<Bytes> {
        let count = part.contains(&start).then(|| part.end - start)?;
        let start = core::ptr::with_exposed_provenance(start);
        // SAFETY: a mapped part of an object, which is there as long as its code is executed.
        let bytes = unsafe { core::slice::from_raw_parts(start, count) };
        Some(EndianSlice::new(bytes, NativeEndian))
    };
    let bases = BaseAddresses::default().set_eh_frame_hdr(object.header as u64);
    let list = EhFrameHdr::from(bytes(object.header)?);
    let list = list.parse(&bases, size_of::<usize>() as u8).ok()?;
    let start = list.eh_frame_ptr().direct().ok()?;
    let bases = bases.set_eh_frame(start);
    let mut section = EhFrame::from(bytes(start as usize)?);
    section.set_address_size(size_of::<usize>() as u8);
    #[cfg(target_arch = "aarch64")]
    section.set_vendor(gimli::Vendor::AArch64);

    let list = list.table()?;
    let place = list.pointer_to_offset(list.lookup(pc as u64, &bases).ok()?).ok()?;
    let description = section.fde_from_offset(&bases, place, EhFrame::cie_from_offset).ok()?;
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row =
        description.unwind_info_for_address(&section, &bases, &mut context, pc as u64).ok()?;
    Some(Rules {
        row: Row::of(row, description.offset())?,
        description: start as usize + description.offset(),
        return_slot: slot(description.cie().return_address_register())?,
        is_signal: description.is_signal_trampoline(),
    })
}
