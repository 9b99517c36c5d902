//! What a frame's caller had in its registers: the rules of the tables, made small enough to be
//! kept ([`known`](super::known)), and how they are applied. Nearly all rules are plain: offsets of
//! a few words. Plain rules have a form of their own, which leaves room in a cache line for what
//! they were made from.

use core::hint::black_box;

use gimli::{
    CfaRule, DwOp, EndianSlice, NativeEndian, Reader, Register, RegisterRule, UnwindContextStorage,
    UnwindExpression, UnwindTableRow, constants,
};

use super::memory::Memory;
use super::registers::{Frame, NUMBERS, SLOTS, STACK_POINTER, read, slot};
use super::tables::Bytes;

/// Where an expression lies, relative to its description, and how long it is.
#[derive(Debug, Clone, Copy)]
struct Place {
    bytes: u8,
    offset: i16,
}

impl Place {
    /// The place of an expression whose description begins `description` bytes behind the start of
    /// its section.
    fn of(expression: UnwindExpression<usize>, description: usize) -> Option<Self> {
        let UnwindExpression { offset, length } = expression;
        let offset = offset.wrapping_sub(description) as isize;
        Some(Self { bytes: u8::try_from(length).ok()?, offset: i16::try_from(offset).ok()? })
    }
}

/// An offset in the form that rules keep.
fn small(offset: i64) -> Option<i32> {
    i32::try_from(offset).ok()
}

/// What the stack pointer was before the call (CFA).
#[derive(Debug, Clone, Copy)]
enum Stack {
    Unknown,
    /// This far above the value in the register of a slot.
    Above(u8, i32),
    Expression(Place),
}

/// What a register held before the call.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// What the register holds now.
    Same,
    Undefined,
    /// What lies this far from the CFA.
    At(i32),
    /// The address this far from the CFA.
    Is(i32),
    /// What the register of a slot holds now.
    Register(u8),
    /// What lies where an expression says.
    AtExpression(Place),
    Expression(Place),
}

/// The rules at one place in the code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    stack: Stack,
    rules: [Rule; SLOTS],
}

impl Row {
    const UNKNOWN: Self = Self { stack: Stack::Unknown, rules: [Rule::Same; SLOTS] };

    /// The part of a row for the registers that have slots. Its description begins `description`
    /// bytes behind the start of its section.
    pub(super) fn of<S: UnwindContextStorage<usize>>(
        row: &UnwindTableRow<usize, S>,
        description: usize,
    ) -> Option<Self> {
        let place = |expression| Place::of(expression, description);
        let stack = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Stack::Above(slot(*register)? as u8, small(*offset)?)
            }
            CfaRule::Expression(expression) => Stack::Expression(place(*expression)?),
        };
        let mut rules = [Rule::Same; SLOTS];
        for (rule, number) in rules.iter_mut().zip(NUMBERS) {
            *rule = match row.register(Register(number)) {
                None | Some(RegisterRule::SameValue) => continue,
                Some(RegisterRule::Undefined) => Rule::Undefined,
                Some(RegisterRule::Offset(offset)) => Rule::At(small(offset)?),
                Some(RegisterRule::ValOffset(offset)) => Rule::Is(small(offset)?),
                Some(RegisterRule::Register(other)) => Rule::Register(slot(other)? as u8),
                Some(RegisterRule::Expression(expression)) => {
                    Rule::AtExpression(place(expression)?)
                }
                Some(RegisterRule::ValExpression(expression)) => {
                    Rule::Expression(place(expression)?)
                }
                Some(_) => return None,
            };
        }
        Some(Self { stack, rules })
    }
}

/// Rules of a frame that is no signal frame, by which the stack pointer is an offset from a
/// register, and each register was saved a few words from that, is undefined, or is unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    /// How far the description is from its list.
    pub(super) description: i32,
    stack_offset: i32,
    stack_slot: u8,
    return_slot: u8,
    /// A bit for each slot that was saved, and below, for each that is undefined.
    saved: u16,
    undefined: u16,
    /// Where each saved register lies, in words from the CFA, and the lowest of these places: all
    /// are below the CFA.
    words: [i8; SLOTS],
    lowest_word: i8,
}

impl Plain {
    /// Nobody's rules: all zeros.
    pub(super) const NONE: Self = Self {
        description: 0,
        stack_offset: 0,
        stack_slot: 0,
        return_slot: 0,
        saved: 0,
        undefined: 0,
        words: [0; SLOTS],
        lowest_word: 0,
    };

    /// The plain form of `rules`, whose list lies at `header`; `None` if they are not plain.
    pub(super) fn of(rules: &Rules, header: usize) -> Option<Self> {
        let Stack::Above(stack_slot, stack_offset) = rules.row.stack else { return None };
        let description = i32::try_from(rules.description.wrapping_sub(header) as isize).ok()?;
        let return_slot = rules.return_slot;
        let mut plain = Self { description, stack_offset, stack_slot, return_slot, ..Self::NONE };
        // Not unrolled: it runs once for each place in the code.
        for slot in 0..black_box(SLOTS) {
            match rules.row.rules[slot % SLOTS] {
                Rule::Same => {}
                Rule::Undefined => plain.undefined |= 1 << slot,
                Rule::At(offset) if offset % WORD_BYTES == 0 && offset < 0 => {
                    let word = i8::try_from(offset / WORD_BYTES).ok()?;
                    plain.words[slot % SLOTS] = word;
                    plain.lowest_word = word.min(plain.lowest_word);
                    plain.saved |= 1 << slot;
                }
                _ => return None,
            }
        }
        (!rules.is_signal).then_some(plain)
    }

    /// As [`Rules::apply`].
    #[inline(always)]
    pub(super) fn apply(&self, frame: &mut Frame) -> Option<usize> {
        let Frame { registers, memory, .. } = frame;
        let stack =
            registers[usize::from(self.stack_slot)].wrapping_add_signed(self.stack_offset as isize);
        if stack <= registers[STACK_POINTER] {
            return None;
        }
        let from = stack.wrapping_add_signed(self.lowest_word as isize * WORD_BYTES as isize);
        if !memory.can_read(from, stack) {
            return None;
        }
        registers[STACK_POINTER] = stack;
        let mut left = self.saved;
        while left != 0 {
            let slot = left.trailing_zeros() as usize % SLOTS;
            left &= left - 1;
            let place = stack.wrapping_add_signed(self.words[slot] as isize * WORD_BYTES as isize);
            // SAFETY: one of the words that can be read, by the test above.
            registers[slot] = unsafe { read(place) };
        }
        let mut left = self.undefined;
        while left != 0 {
            registers[left.trailing_zeros() as usize % SLOTS] = 0;
            left &= left - 1;
        }
        Some(registers[usize::from(self.return_slot)])
    }
}

/// The offsets of saved registers are multiples of this, in bytes.
const WORD_BYTES: i32 = size_of::<usize>() as i32;

/// The rules at one place in the code, and what else a step needs to know of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) row: Row,
    /// The address of the description that contains them.
    pub(super) description: usize,
    /// Where its return address is.
    pub(super) return_slot: u8,
    /// Whether it is what a signal's handler returns to.
    pub(super) is_signal: bool,
}

impl Rules {
    /// Nobody's rules: all zeros.
    pub(super) const NONE: Self =
        Self { row: Row::UNKNOWN, description: 0, return_slot: 0, is_signal: false };

    /// Goes from a frame's registers to its caller's, in which undefined ones are 0. Returns the
    /// caller's pc. `None`, and the registers have not changed, if the rules do not lead up the
    /// stack.
    #[cold]
    pub(super) fn apply(&self, frame: &mut Frame) -> Option<usize> {
        let Frame { registers, memory, .. } = frame;
        let stack = match self.row.stack {
            Stack::Unknown => return None,
            Stack::Above(slot, offset) => {
                registers[usize::from(slot)].wrapping_add_signed(offset as isize)
            }
            Stack::Expression(place) => self.evaluate(place, None, registers, memory)?,
        };
        // Towards a caller a stack gets shorter, unless a handler has a stack of its own.
        if stack <= registers[STACK_POINTER] && !self.is_signal {
            return None;
        }
        let mut callers = *registers;
        // A caller's stack pointer is the CFA, unless a rule says otherwise.
        callers[STACK_POINTER] = stack;
        // Not unrolled, as above.
        for slot in 0..black_box(SLOTS) {
            let value = &mut callers[slot % SLOTS];
            match self.row.rules[slot % SLOTS] {
                Rule::Same => {}
                Rule::Undefined => *value = 0,
                Rule::At(offset) => {
                    *value = memory.word(stack.wrapping_add_signed(offset as isize))?;
                }
                Rule::Is(offset) => *value = stack.wrapping_add_signed(offset as isize),
                Rule::Register(slot) => *value = registers[usize::from(slot)],
                Rule::AtExpression(place) => {
                    let place = self.evaluate(place, Some(stack), registers, memory)?;
                    *value = memory.word(place)?;
                }
                Rule::Expression(place) => {
                    *value = self.evaluate(place, Some(stack), registers, memory)?;
                }
            }
        }
        *registers = callers;
        Some(registers[usize::from(self.return_slot)])
    }

    /// What the expression at `place` makes of `first`. It knows only the operations that compilers
    /// use where a stack was realigned, and the C library where a signal came. (gimli's own
    /// evaluation knows all operations, but it is 18 KB of code that every process would hold.)
    fn evaluate(
        &self,
        Place { bytes, offset }: Place,
        first: Option<usize>,
        registers: &[usize; SLOTS],
        memory: &mut Memory,
    ) -> Option<usize> {
        let address = self.description.wrapping_add_signed(offset.into());
        let address = core::ptr::with_exposed_provenance(address);
        // SAFETY: an expression lies there, in an object whose code is executed.
        let expression = unsafe { core::slice::from_raw_parts(address, bytes.into()) };
        let mut code: Bytes = EndianSlice::new(expression, NativeEndian);
        let mut top = first;
        while !code.is_empty() {
            top = Some(match DwOp(code.read_u8().ok()?) {
                constants::DW_OP_deref => memory.word(top?)?,
                constants::DW_OP_plus_uconst => {
                    top?.wrapping_add(code.read_uleb128().ok()? as usize)
                }
                // A register that has a slot, plus an offset; or an unknown operation.
                DwOp(operation) => {
                    let number = operation.checked_sub(constants::DW_OP_breg0.0)?;
                    let register = Register(number.into());
                    let offset = code.read_sleb128().ok()? as isize;
                    registers[slot(register)?].wrapping_add_signed(offset)
                }
            });
        }
        top
    }
}
