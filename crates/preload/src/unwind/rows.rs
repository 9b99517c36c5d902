//! What a frame's caller had in its registers: the rules of the tables, small enough to be kept
//! ([`known`](super::known)), and applied.

use gimli::{
    CfaRule, DwOp, EndianSlice, NativeEndian, Reader, Register, RegisterRule, UnwindContextStorage,
    UnwindExpression, UnwindTableRow, constants,
};

use super::registers::{NUMBERS, SLOTS, STACK_POINTER, read, slot};
use super::tables::Bytes;

/// Where an expression lies, relative to the description that it is of, and how long it is.
#[derive(Debug, Clone, Copy)]
struct Place {
    bytes: u8,
    offset: i16,
}

impl Place {
    /// That of an expression of a description that is so far behind the start of its section.
    fn of(expression: UnwindExpression<usize>, description: usize) -> Option<Self> {
        let UnwindExpression { offset, length } = expression;
        let offset = offset.wrapping_sub(description) as isize;
        Some(Self { bytes: u8::try_from(length).ok()?, offset: i16::try_from(offset).ok()? })
    }
}

/// An offset, as rules keep it.
fn small(offset: i64) -> Option<i32> {
    i32::try_from(offset).ok()
}

/// What the stack pointer was before the call (CFA).
#[derive(Debug, Clone, Copy)]
enum Stack {
    Unknown,
    /// So far above what the register of a slot holds.
    Above(u8, i32),
    Expression(Place),
}

/// What a register held before the call.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// What it holds now.
    Same,
    Undefined,
    /// What lies so far from the CFA.
    At(i32),
    /// The address so far from the CFA.
    Is(i32),
    /// What that of a slot holds now.
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
    /// A bit for each slot whose rule is [`Rule::At`].
    saved: u16,
    /// Whether a rule is another than that, and [`Rule::Same`]: few are.
    is_odd: bool,
}

impl Row {
    pub(super) const UNKNOWN: Self =
        Self { stack: Stack::Unknown, rules: [Rule::Same; SLOTS], saved: 0, is_odd: false };

    /// What of a row concerns the registers that have slots. It is of the description that is so far
    /// behind the start of its section.
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
        let (mut rules, mut saved, mut is_odd) = ([Rule::Same; SLOTS], 0, false);
        for (at, (rule, number)) in rules.iter_mut().zip(NUMBERS).enumerate() {
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
            match rule {
                Rule::At(_) => saved |= 1 << at,
                _ => is_odd = true,
            }
        }
        Some(Self { stack, rules, saved, is_odd })
    }
}

/// The rules at one place in the code, and what else a step needs to know of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) row: Row,
    /// The address of the description that has them.
    pub(super) description: usize,
    /// Where its return address is.
    pub(super) return_slot: u8,
    /// Whether it is what a signal's handler returns to.
    pub(super) is_signal: bool,
}

impl Rules {
    /// Goes from a frame's registers to its caller's, of which an undefined one is 0. `None`, and nothing has changed,
    /// where the rules do not lead up the stack.
    #[inline(always)]
    pub(super) fn apply(&self, registers: &mut [usize; SLOTS]) -> Option<()> {
        let stack = match self.row.stack {
            Stack::Unknown => return None,
            Stack::Above(slot, offset) => {
                registers[usize::from(slot)].wrapping_add_signed(offset as isize)
            }
            Stack::Expression(place) => self.evaluate(place, None, registers)?,
        };
        // A stack gets shorter on the way to a caller, unless a handler has its own.
        if stack <= registers[STACK_POINTER] && !self.is_signal {
            return None;
        }
        if self.row.is_odd {
            *registers = self.apply_odd(stack, registers)?;
            return Some(());
        }
        // A caller's stack pointer is the CFA, unless a rule says otherwise.
        registers[STACK_POINTER] = stack;
        let mut left = self.row.saved;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(Rule::At(offset)) = self.row.rules.get(slot) {
                // SAFETY: the tables say that the register was saved there, on the stack.
                registers[slot] = unsafe { read(stack.wrapping_add_signed(*offset as isize)) };
            }
        }
        Some(())
    }

    /// The caller's registers, by rules of all kinds.
    #[cold]
    fn apply_odd(&self, stack: usize, registers: &[usize; SLOTS]) -> Option<[usize; SLOTS]> {
        let mut callers = *registers;
        callers[STACK_POINTER] = stack;
        for (value, rule) in callers.iter_mut().zip(self.row.rules) {
            match rule {
                Rule::Same => {}
                Rule::Undefined => *value = 0,
                Rule::At(offset) => {
                    // SAFETY: the tables say that the register was saved there, on the stack.
                    *value = unsafe { read(stack.wrapping_add_signed(offset as isize)) };
                }
                Rule::Is(offset) => *value = stack.wrapping_add_signed(offset as isize),
                Rule::Register(slot) => *value = registers[usize::from(slot)],
                Rule::AtExpression(place) => {
                    let place = self.evaluate(place, Some(stack), registers)?;
                    // SAFETY: as above.
                    *value = unsafe { read(place) };
                }
                Rule::Expression(place) => {
                    *value = self.evaluate(place, Some(stack), registers)?;
                }
            }
        }
        Some(callers)
    }

    /// What the expression at `place` makes of `first`: of those operations only that compilers use where
    /// a stack was realigned, and the C library where a signal came. (gimli's own evaluation knows them
    /// all, in 18 KB of code that every process would hold.)
    fn evaluate(
        &self,
        Place { bytes, offset }: Place,
        first: Option<usize>,
        registers: &[usize; SLOTS],
    ) -> Option<usize> {
        let address = self.description.wrapping_add_signed(offset.into());
        let address = core::ptr::with_exposed_provenance(address);
        // SAFETY: an expression lies there, in an object whose code is executed.
        let expression = unsafe { core::slice::from_raw_parts(address, bytes.into()) };
        let mut code: Bytes = EndianSlice::new(expression, NativeEndian);
        let mut top = first;
        while !code.is_empty() {
            top = Some(match DwOp(code.read_u8().ok()?) {
                // SAFETY: the tables say that what is wanted lies there, on the stack.
                constants::DW_OP_deref => unsafe { read(top?) },
                constants::DW_OP_plus_uconst => {
                    top?.wrapping_add(code.read_uleb128().ok()? as usize)
                }
                // That of a register that has a slot, with an offset, or none that is known.
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
