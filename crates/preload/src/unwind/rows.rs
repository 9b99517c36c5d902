//! What a frame's caller had in its registers, as the tables' instructions have put it together.

use super::cursor::{Cursor, read};
use super::registers::{SLOTS, STACK_POINTER, slot};

/// An offset, as rules keep it.
pub(super) fn small(offset: isize) -> Option<i32> {
    i32::try_from(offset).ok()
}

/// Where an expression lies, relative to the code that it is of. Its length comes first, a byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(pub(super) i32);

/// What the stack pointer was before the call (CFA).
#[derive(Debug, Clone, Copy)]
pub(super) enum Stack {
    Unknown,
    /// So far above what a register holds: that of a slot, if it is one that functions preserve.
    Above(Option<u8>, i32),
    Expression(Place),
}

impl Stack {
    pub(super) fn above(register: usize, offset: isize) -> Option<Self> {
        Some(Self::Above(slot(register).map(|slot| slot as u8), small(offset)?))
    }

    pub(super) fn with_register(self, register: usize) -> Option<Self> {
        if let Self::Above(_, offset) = self {
            Self::above(register, offset as isize)
        } else {
            None
        }
    }

    pub(super) fn with_offset(self, offset: isize) -> Option<Self> {
        if let Self::Above(slot, _) = self { Some(Self::Above(slot, small(offset)?)) } else { None }
    }
}

/// What a register held before the call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
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
    pub(super) stack: Stack,
    rules: [Rule; SLOTS],
}

impl Row {
    pub(super) const UNKNOWN: Self = Self { stack: Stack::Unknown, rules: [Rule::Same; SLOTS] };

    /// Sets the rule of a register that has a slot.
    pub(super) fn set(&mut self, register: usize, rule: Rule) {
        if let Some(slot) = slot(register) {
            self.rules[slot] = rule;
        }
    }

    pub(super) fn restore(&mut self, register: usize, initial: &Row) {
        if let Some(slot) = slot(register) {
            self.rules[slot] = initial.rules[slot];
        }
    }
}

/// The rules at one place in the code, and what else a step needs to know of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) row: Row,
    /// Where the code begins.
    pub(super) start: usize,
    /// Where its return address is.
    pub(super) return_slot: usize,
    /// Whether it is what a signal's handler returns to.
    pub(super) is_signal: bool,
}

impl Rules {
    /// The CFA of a frame, and its caller's registers. An undefined one is 0.
    pub(super) fn apply(&self, registers: &[usize; SLOTS]) -> Option<(usize, [usize; SLOTS])> {
        let stack = match self.row.stack {
            Stack::Unknown => return None,
            Stack::Above(slot, offset) => {
                registers[usize::from(slot?)].wrapping_add_signed(offset as isize)
            }
            Stack::Expression(place) => evaluate(self.start, place, None, registers)?,
        };
        let mut callers = *registers;
        // A caller's stack pointer is the CFA, unless a rule says otherwise.
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
                    let place = evaluate(self.start, place, Some(stack), registers)?;
                    // SAFETY: as above.
                    *value = unsafe { read(place) };
                }
                Rule::Expression(place) => {
                    *value = evaluate(self.start, place, Some(stack), registers)?;
                }
            }
        }
        Some((stack, callers))
    }
}

/// What an expression of the code at `start` makes of `first`: of those operations only that compilers
/// use where a stack was realigned, and the C library where a signal came.
fn evaluate(
    start: usize,
    Place(offset): Place,
    first: Option<usize>,
    registers: &[usize; SLOTS],
) -> Option<usize> {
    let place = start.wrapping_add_signed(offset as isize);
    // SAFETY: an expression's length lies there; it was read when the place was noted.
    let bytes: u8 = unsafe { read(place) };
    // SAFETY: and the expression behind it.
    let mut code = unsafe { Cursor::new(place + 1, bytes.into()) };
    let mut top = first;
    while !code.is_at_end() {
        let opcode: u8 = code.next()?;
        top = Some(match opcode {
            // deref
            // SAFETY: the tables say that what is wanted lies there, on the stack.
            0x06 => unsafe { read(top?) },
            // plus_uconst
            0x23 => top?.wrapping_add(code.unsigned()?),
            // breg0 to breg31
            0x70..=0x8f => {
                let value = registers[slot(usize::from(opcode - 0x70))?];
                value.wrapping_add_signed(code.signed()?)
            }
            _ => return None,
        });
    }
    top
}
