//! From a frame to its caller's, by the tables that compilers write for exceptions.
//!
//! ```text
//!   pc ─▶ object ─▶ .eh_frame_hdr: a sorted list, address ─▶ description (FDE) ─▶ what it shares (CIE)
//!                                                               │ instructions: how the row of
//!                                                               ▼ rules changes from pc to pc
//!   row: the caller's stack pointer (CFA), and where each register was saved, relative to it
//! ```
//! Only what linkers make of `.eh_frame` is read; of anything else, and where there is no table, the
//! answer is `None`. No lock is taken with the C library's `_dl_find_object` (2.35); with older ones
//! the dynamic linker's, which is recursive. Nothing is allocated.
//!
//! Linux Standard Base 5.0, 10.6; DWARF 5, 6.4.

use core::ffi::{c_int, c_void};

use super::cursor::{Cursor, read};
use super::known::Known;
use super::registers::{Frame, plain_address, slot};
use super::rows::{Place, Row, Rule, Rules, Stack, small};
use crate::once::Once;

/// What `_dl_find_object` says of an object.
#[repr(C)]
struct Found {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: usize,
    eh_frame_header: usize,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(usize, *mut Found) -> c_int;

static FIND_OBJECT: Once<FindObject> = Once::new();

/// Looks for what the C library has. To be called once, before the first step.
pub(super) fn begin() {
    // SAFETY: a C string; the answer is null when nobody has the symbol.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    if !symbol.is_null() {
        // SAFETY: the C library's function of this name has this type.
        FIND_OBJECT.set(unsafe { core::mem::transmute::<*mut c_void, FindObject>(symbol) });
    }
}

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
    let Some((next, code)) = rules(within, known).and_then(|rules| {
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

/// The rules at `pc`.
fn rules(pc: usize, known: &mut Known) -> Option<Rules> {
    let header = eh_frame_header(pc)?;
    // SAFETY: the dynamic linker says that the object's table lies there.
    if let Some(rules) = unsafe { known.get(pc, header) } {
        return Some(*rules);
    }
    // SAFETY: as above.
    let description = unsafe { search(header, pc) }?;
    // SAFETY: the table says that a description lies there.
    let rules = unsafe { Description::of(description, pc) }?.rules(pc)?;
    // SAFETY: found just now.
    unsafe { known.note(pc, header, description, rules) };
    Some(rules)
}

/// The address of the `.eh_frame_hdr` of the object that `pc` lies in.
fn eh_frame_header(pc: usize) -> Option<usize> {
    if let Some(find_object) = FIND_OBJECT.get() {
        let mut found = Found {
            flags: 0,
            map_start: 0,
            map_end: 0,
            link_map: 0,
            eh_frame_header: 0,
            reserved: [0; 7],
        };
        // SAFETY: a valid place.
        let status = unsafe { find_object(pc, &raw mut found) };
        return (status == 0 && found.eh_frame_header != 0).then_some(found.eh_frame_header);
    }
    let mut search = (pc, None);
    // SAFETY: the callback meets the function's contract; `search` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(note_header), (&raw mut search).cast()) };
    search.1
}

/// Notes the table of the object that holds the address at `data`.
unsafe extern "C" fn note_header(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the C library passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: `eh_frame_header` passes its search, of which it borrows nothing meanwhile.
    let (pc, header) = unsafe { &mut *data.cast::<(usize, Option<usize>)>() };
    // SAFETY: the object's program headers, as many as it says.
    let parts = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let holds = |part: &libc::Elf64_Phdr| {
        let start = base + part.p_vaddr as usize;
        part.p_type == libc::PT_LOAD && (start..start + part.p_memsz as usize).contains(pc)
    };
    if !parts.iter().any(holds) {
        return 0;
    }
    let table = parts.iter().find(|part| part.p_type == libc::PT_GNU_EH_FRAME);
    *header = table.map(|part| base + part.p_vaddr as usize);
    1
}

/// The address of the description that is to be asked about `pc`, by the table at `header`.
///
/// # Safety
/// A whole `.eh_frame_hdr` lies there.
unsafe fn search(header: usize, pc: usize) -> Option<usize> {
    /// Version 1; what the encodings say, which all linkers write so: the section's address relative
    /// to itself, the count as 32 bits, the table's entries as 32 bits relative to the header.
    const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    const ENTRY_BYTES: usize = 8;
    // SAFETY: the caller's promise.
    if unsafe { read::<[u8; 4]>(header) } != USUAL {
        return None;
    }
    // SAFETY: as above.
    let count = unsafe { read::<u32>(header + 8) } as usize;
    let relative = |entry: usize, field: usize| {
        // SAFETY: within the table, which has as many entries.
        let distance = unsafe { read::<i32>(header + 12 + entry * ENTRY_BYTES + field) };
        header.wrapping_add(distance as usize)
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if relative(middle, 0) <= pc { low = middle + 1 } else { high = middle }
    }
    Some(relative(low.checked_sub(1)?, 4))
}

/// Takes a record's length off its front, and returns what it covers.
///
/// # Safety
/// A record lies at `address`.
unsafe fn record(address: usize) -> Option<Cursor> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { read::<u32>(address) };
    // Longer ones say so here; no object has them.
    const LONG: u32 = 0xffff_ffff;
    // SAFETY: as above.
    (bytes != LONG).then(|| unsafe { Cursor::new(address + 4, bytes as usize) })
}

/// A description (FDE), with what it shares with others (CIE).
struct Description {
    code_align: usize,
    data_align: isize,
    return_slot: usize,
    is_signal: bool,
    /// Where the code begins that it is of.
    start: usize,
    /// What makes the first row, and what changes that from there on.
    instructions: [Cursor; 2],
}

impl Description {
    /// That at `address`; `None` if it is not of `pc`.
    ///
    /// # Safety
    /// A description lies there.
    unsafe fn of(address: usize, pc: usize) -> Option<Self> {
        // SAFETY: the caller's promise.
        let mut own = unsafe { record(address) }?;
        let distance: u32 = own.next()?;
        // SAFETY: a description says there how far in front of that its common part lies.
        let mut common = unsafe { record((address + 4).wrapping_sub(distance as usize)) }?;
        let _id: u32 = common.next()?;
        let version: u8 = common.next()?;
        let mut augmentation = common;
        while common.next::<u8>()? != 0 {}
        let code_align = common.unsigned()?;
        let data_align = common.signed()?;
        let return_register =
            if version == 1 { common.next::<u8>()?.into() } else { common.unsigned()? };
        let (mut encoding, mut is_signal) = (0, false);
        let has_data = augmentation.next::<u8>()? == b'z';
        if has_data {
            let bytes = common.unsigned()?;
            let mut data = common.part(bytes)?;
            loop {
                match augmentation.next::<u8>()? {
                    b'R' => encoding = data.next()?,
                    b'S' => is_signal = true,
                    b'L' => drop(data.next::<u8>()?),
                    b'P' => {
                        let encoding = data.next()?;
                        data.length(encoding)?;
                    }
                    // The end, or what has no data here that matters.
                    _ => break,
                }
            }
        }
        let start = own.pointer(encoding)?;
        let bytes = own.length(encoding)?;
        if has_data {
            let bytes = own.unsigned()?;
            own.part(bytes)?;
        }
        let return_slot = slot(return_register)?;
        let instructions = [common, own];
        let description =
            Self { code_align, data_align, return_slot, is_signal, start, instructions };
        (pc.wrapping_sub(start) < bytes).then_some(description)
    }

    /// The rules at `pc`.
    fn rules(&self, pc: usize) -> Option<Rules> {
        let [first, rest] = self.instructions;
        let mut row = Row::UNKNOWN;
        self.execute(&mut row, &Row::UNKNOWN, first, usize::MAX)?;
        let initial = row;
        self.execute(&mut row, &initial, rest, pc)?;
        let Self { start, return_slot, is_signal, .. } = *self;
        Some(Rules { row, start, return_slot, is_signal })
    }

    /// Notes where an expression lies, and passes over it.
    fn expression(&self, code: &mut Cursor) -> Option<Place> {
        let place = code.address().wrapping_sub(self.start) as isize;
        let bytes: u8 = code.next()?;
        code.part(bytes.into())?;
        // Longer ones have a length of several bytes.
        if bytes < 0x80 { small(place).map(Place) } else { None }
    }

    /// Executes `instructions` up to those of the code behind `pc`. `initial` is what registers are
    /// restored to.
    fn execute(&self, row: &mut Row, initial: &Row, mut code: Cursor, pc: usize) -> Option<()> {
        let mut remembered = [*row; REMEMBERED];
        let mut depth = 0;
        let mut at = self.start;
        while at <= pc && !code.is_at_end() {
            let opcode: u8 = code.next()?;
            let low = usize::from(opcode & 0x3f);
            let data = |number: usize| small(self.data_align.wrapping_mul(number as isize));
            let advance = |by: usize| by.wrapping_mul(self.code_align);
            let expression = |code: &mut Cursor| self.expression(code);
            // The upper two bits are an opcode of their own, or say that the lower six are.
            match (opcode >> 6, low) {
                (1, _) => at = at.wrapping_add(advance(low)),
                (2, _) => row.set(low, Rule::At(data(code.unsigned()?)?)),
                (3, _) => row.restore(low, initial),
                // advance_loc1, 2, 4
                (0, 0x02) => at = at.wrapping_add(advance(code.next::<u8>()?.into())),
                (0, 0x03) => at = at.wrapping_add(advance(code.next::<u16>()?.into())),
                (0, 0x04) => at = at.wrapping_add(advance(code.next::<u32>()? as usize)),
                // offset_extended
                (0, 0x05) => row.set(code.unsigned()?, Rule::At(data(code.unsigned()?)?)),
                // restore_extended
                (0, 0x06) => row.restore(code.unsigned()?, initial),
                // undefined
                (0, 0x07) => row.set(code.unsigned()?, Rule::Undefined),
                // same_value
                (0, 0x08) => row.set(code.unsigned()?, Rule::Same),
                // register
                (0, 0x09) => {
                    row.set(code.unsigned()?, Rule::Register(slot(code.unsigned()?)? as u8))
                }
                // remember_state
                (0, 0x0a) => {
                    *remembered.get_mut(depth)? = *row;
                    depth += 1;
                }
                // restore_state
                (0, 0x0b) => {
                    depth = depth.checked_sub(1)?;
                    *row = remembered[depth];
                }
                // def_cfa
                (0, 0x0c) => row.stack = Stack::above(code.unsigned()?, code.unsigned()? as isize)?,
                // def_cfa_register
                (0, 0x0d) => row.stack = row.stack.with_register(code.unsigned()?)?,
                // def_cfa_offset
                (0, 0x0e) => {
                    row.stack = row.stack.with_offset(code.unsigned()? as isize)?;
                }
                // def_cfa_expression
                (0, 0x0f) => row.stack = Stack::Expression(expression(&mut code)?),
                // expression, val_expression
                (0, 0x10) => row.set(code.unsigned()?, Rule::AtExpression(expression(&mut code)?)),
                (0, 0x16) => row.set(code.unsigned()?, Rule::Expression(expression(&mut code)?)),
                // offset_extended_sf
                (0, 0x11) => row.set(code.unsigned()?, Rule::At(data(code.signed()? as usize)?)),
                // def_cfa_sf, def_cfa_offset_sf
                (0, 0x12) => {
                    row.stack = Stack::above(code.unsigned()?, code.signed()? * self.data_align)?;
                }
                (0, 0x13) => {
                    row.stack = row.stack.with_offset(code.signed()? * self.data_align)?;
                }
                // val_offset, val_offset_sf
                (0, 0x14) => row.set(code.unsigned()?, Rule::Is(data(code.unsigned()?)?)),
                (0, 0x15) => row.set(code.unsigned()?, Rule::Is(data(code.signed()? as usize)?)),
                // nop; AArch64's change of whether the return address is signed, which is seen there
                (0, 0x00 | 0x2d) => {}
                // GNU_args_size
                (0, 0x2e) => drop(code.unsigned()?),
                _ => return None,
            }
        }
        Some(())
    }
}

/// How deep rows are remembered at most: compilers do not nest them.
const REMEMBERED: usize = 2;
