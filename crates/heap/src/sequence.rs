//! The three restartable sequences of the CPUs' lists.
//!
//! Each does what a thread could do with two or three plain instructions if it were sure to stay on
//! its CPU, undisturbed. The kernel ensures this: it sends a thread that was disturbed to the abort
//! handler (see [`hectare_pages::rseq`]):
//! ```text
//!   arm:  the thread's area names the sequence
//!         cpu ← area.cpu;  lists ← table[cpu]; leave if null
//!         … read the word of the class, compute another …
//!         store the other word                                  ← the one store that counts
//! ```
//! Invariants
//! 1. A word changes only by the last instruction of a sequence on its own CPU, or by whoever has
//!    taken the CPU's lists out of the table and restarted its sequences.
//! 2. So between a sequence's read of a word and its store nobody else has touched the list: what
//!    the word listed is still listed, and its objects may be read.
//!
//! The area still names the sequence afterwards, which means nothing outside of the sequence: this
//! library is never unloaded.

use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicUsize};

use crate::batch::Packed;
use crate::class::{ClassId, STATES};
use crate::object::{FreeObject, Key};

/// CPUs that can have lists.
pub(crate) const CPUS: usize = 1024;

/// The lists of one CPU.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct CpuLists {
    /// For each class, the list that threads take from and give to; behind all lists, the spares.
    /// All are [`Packed`]s.
    pub(crate) words: [AtomicUsize; 2 * STATES],
    /// How long a class's list may become.
    pub(crate) limits: [AtomicU16; STATES],
}

/// Where each CPU's lists are. Null while it has none.
pub(crate) type Table = [AtomicPtr<CpuLists>; CPUS];

/// Which of a class's two words.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    List,
    Spare,
}

/// Why a sequence has changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nothing is tried there"))]
pub(crate) enum Refusal {
    /// The thread was preempted, migrated or interrupted, and has to try again.
    Aborted,
    /// This CPU has no lists now, or the thread has no registered area.
    Absent,
    /// The list is empty; or full, if an object is to be put on it.
    Exhausted,
    /// The first object of the list, this one, has lost its mark.
    Corrupt(*mut u8),
}

pub(crate) use arch::{exchange, pop, push};

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::{CPUS, ClassId, CpuLists, FreeObject, Key, Packed, Refusal, STATES, Table, Word};
    use core::arch::asm;
    use core::mem::offset_of;
    use hectare_pages::rseq::{CPU_ID_OFFSET, SEQUENCE_OFFSET, SIGNATURE};

    const _: () = assert!(offset_of!(CpuLists, words) == 0);

    // What a sequence's status says.
    const DONE: u32 = 0;
    const ABORTED: u32 = 1;
    const ABSENT: u32 = 2;
    const EXHAUSTED: u32 = 3;
    const CORRUPT: u32 = 4;

    const fn check(status: u32, first: *mut u8) -> Result<(), Refusal> {
        match status {
            DONE => Ok(()),
            ABORTED => Err(Refusal::Aborted),
            EXHAUSTED => Err(Refusal::Exhausted),
            CORRUPT => Err(Refusal::Corrupt(first)),
            _ => Err(Refusal::Absent),
        }
    }

    /// A sequence begins at the label 2 and ends behind the store, at 3. It leaves by 5 if the CPU
    /// has no lists. Labels 6 and 7 are for the body's own exits.
    macro_rules! sequence {
        ($body:literal, $exits:literal, $($operands:tt)*) => {
            asm!(
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "9: .long 0, 0",
                ".quad 2f, 3f - 2f, 4f",
                ".popsection",
                "lea {lists}, [rip + 9b]",
                "mov qword ptr fs:[{area} + {sequence_offset}], {lists}",
                "2:",
                "mov {lists:e}, dword ptr fs:[{area} + {cpu_offset}]",
                "cmp {lists:e}, {cpus}",
                "jae 5f",
                "mov {lists}, qword ptr [{table} + 8 * {lists}]",
                "test {lists}, {lists}",
                "jz 5f",
                $body,
                "3:",
                "xor {status:e}, {status:e}",
                "8:",
                ".pushsection __rseq_failure, \"ax\"",
                // An undefined instruction with the signature as its operand.
                ".byte 0x0f, 0xb9, 0x3d",
                ".long {signature}",
                "4: mov {status:e}, {aborted}",
                "jmp 8b",
                "5: mov {status:e}, {absent}",
                "jmp 8b",
                $exits,
                ".popsection",
                sequence_offset = const SEQUENCE_OFFSET,
                cpu_offset = const CPU_ID_OFFSET,
                signature = const SIGNATURE,
                cpus = const CPUS,
                aborted = const ABORTED,
                absent = const ABSENT,
                $($operands)*
                options(nostack),
            )
        };
    }

    /// Takes the first object off this CPU's list of `class`. It still bears its mark.
    ///
    /// # Safety
    /// `area` is the area's offset, as [`hectare_pages::rseq::area_offset`] says; all that `table`
    /// names are lists, and stay so for good.
    #[inline(always)]
    pub(crate) unsafe fn pop(
        table: &Table,
        area: isize,
        class: ClassId,
        key: Key,
    ) -> Result<FreeObject, Refusal> {
        let object: *mut u8;
        let status: u32;
        // SAFETY: by invariant 2 the first object is on the list as long as the sequence lasts, so
        // its two words may be read. The store leaves what was behind it on the list.
        unsafe {
            sequence!(
                "mov {word}, qword ptr [{lists} + 8 * {class}]
                 test {word:x}, {word:x}
                 jz 6f
                 mov {object}, {word}
                 shr {object}, 16
                 mov {next}, qword ptr [{object} + 8]
                 xor {next}, {object}
                 cmp {next}, {key}
                 jne 7f
                 mov {next}, qword ptr [{object}]
                 shl {next}, 16
                 movzx {word:e}, {word:x}
                 lea {next}, [{next} + {word} - 1]
                 mov qword ptr [{lists} + 8 * {class}], {next}",
                "6: mov {status:e}, {exhausted}
                 jmp 8b
                 7: mov {status:e}, {corrupt}
                 jmp 8b",
                table = in(reg) table.as_ptr(),
                area = in(reg) area,
                class = in(reg) class.index(),
                key = in(reg) key.0,
                exhausted = const EXHAUSTED,
                corrupt = const CORRUPT,
                lists = out(reg) _,
                word = out(reg) _,
                next = out(reg) _,
                object = out(reg) object,
                status = out(reg) status,
            );
        }
        check(status, object)?;
        // SAFETY: the word was not empty, so its object's address is not null.
        let object = unsafe { core::ptr::NonNull::new_unchecked(object) };
        // SAFETY: an object that was on the list, and is the caller's now.
        Ok(unsafe { FreeObject::new(object) })
    }

    /// Puts a marked object on this CPU's list of `class`. Refused if the list is full.
    ///
    /// # Safety
    /// As [`pop`].
    #[inline(always)]
    pub(crate) unsafe fn push(
        table: &Table,
        area: isize,
        class: ClassId,
        object: FreeObject,
    ) -> Result<(), Refusal> {
        let status: u32;
        // SAFETY: the object is the caller's until the store lists it. By invariant 2 what is
        // linked behind it is the list.
        unsafe {
            sequence!(
                "movzx {next:e}, word ptr [{lists} + 2 * {class} + {limits}]
                 mov {word}, qword ptr [{lists} + 8 * {class}]
                 movzx {count:e}, {word:x}
                 cmp {count:e}, {next:e}
                 jae 6f
                 shr {word}, 16
                 mov qword ptr [{object}], {word}
                 mov {next}, {object}
                 shl {next}, 16
                 lea {next}, [{next} + {count} + 1]
                 mov qword ptr [{lists} + 8 * {class}], {next}",
                "6: mov {status:e}, {exhausted}
                 jmp 8b",
                table = in(reg) table.as_ptr(),
                area = in(reg) area,
                class = in(reg) class.index(),
                object = in(reg) object.as_ptr().as_ptr().expose_provenance(),
                exhausted = const EXHAUSTED,
                limits = const offset_of!(CpuLists, limits),
                lists = out(reg) _,
                word = out(reg) _,
                next = out(reg) _,
                count = out(reg) _,
                status = out(reg) status,
            );
        }
        check(status, core::ptr::null_mut())
    }

    /// Puts `new` in a place of this CPU and returns what stood there.
    ///
    /// # Safety
    /// As [`pop`]; and nobody else has the list that `new` is.
    pub(crate) unsafe fn exchange(
        table: &Table,
        area: isize,
        place: Word,
        class: ClassId,
        new: Packed,
    ) -> Result<Packed, Refusal> {
        let old: usize;
        let status: u32;
        // SAFETY: by invariant 1 the word is this CPU's to change.
        unsafe {
            sequence!(
                "mov {old}, qword ptr [{lists} + 8 * {place}]
                 mov qword ptr [{lists} + 8 * {place}], {new}",
                "",
                table = in(reg) table.as_ptr(),
                area = in(reg) area,
                place = in(reg) class.index() + place as usize * STATES,
                new = in(reg) new.bits(),
                lists = out(reg) _,
                old = out(reg) old,
                status = out(reg) status,
            );
        }
        check(status, core::ptr::null_mut()).map(|()| Packed::from_bits(old))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    //! No sequences here: the lists are never begun, and every call is refused.
    use super::{ClassId, FreeObject, Key, Packed, Refusal, Table, Word};

    pub(crate) unsafe fn pop(
        _: &Table,
        _: isize,
        _: ClassId,
        _: Key,
    ) -> Result<FreeObject, Refusal> {
        Err(Refusal::Absent)
    }

    pub(crate) unsafe fn push(
        _: &Table,
        _: isize,
        _: ClassId,
        _: FreeObject,
    ) -> Result<(), Refusal> {
        Err(Refusal::Absent)
    }

    pub(crate) unsafe fn exchange(
        _: &Table,
        _: isize,
        _: Word,
        _: ClassId,
        _: Packed,
    ) -> Result<Packed, Refusal> {
        Err(Refusal::Absent)
    }
}
