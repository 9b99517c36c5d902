//! The registers of a frame that matter to its callers: what functions must preserve, and the return
//! address. Unwind tables have a number for each; here each has a slot.

use gimli::Register;

use super::memory::Memory;

#[cfg(target_arch = "x86_64")]
mod processor {
    /// rbx, rbp, rsp, r12 to r15, and where the return address is.
    pub(in crate::unwind) const SLOTS: usize = 8;
    pub(in crate::unwind) const FRAME_POINTER: usize = 1;
    pub(in crate::unwind) const STACK_POINTER: usize = 2;

    /// In the order of their slots.
    pub(in crate::unwind) const NUMBERS: [u16; SLOTS] = [3, 6, 7, 12, 13, 14, 15, 16];

    #[inline(always)]
    pub(super) fn here(of: &mut [usize; SLOTS]) -> usize {
        let pc: usize;
        // SAFETY: stores what functions must preserve into the array.
        unsafe {
            core::arch::asm!(
                "mov [{of} + 8 * 0], rbx",
                "mov [{of} + 8 * 1], rbp",
                "mov [{of} + 8 * 2], rsp",
                "mov [{of} + 8 * 3], r12",
                "mov [{of} + 8 * 4], r13",
                "mov [{of} + 8 * 5], r14",
                "mov [{of} + 8 * 6], r15",
                "lea {pc}, [rip]",
                of = in(reg) of.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        pc
    }

    pub(super) fn plain_address(signed: usize) -> usize {
        signed
    }
}

#[cfg(target_arch = "aarch64")]
mod processor {
    /// x19 to x30 and the stack pointer.
    pub(in crate::unwind) const SLOTS: usize = 13;
    pub(in crate::unwind) const FRAME_POINTER: usize = 10;
    pub(in crate::unwind) const STACK_POINTER: usize = 12;

    /// In the order of their slots.
    pub(in crate::unwind) const NUMBERS: [u16; SLOTS] =
        [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31];

    #[inline(always)]
    pub(super) fn here(of: &mut [usize; SLOTS]) -> usize {
        let pc: usize;
        // SAFETY: stores what functions must preserve into the array.
        unsafe {
            core::arch::asm!(
                "stp x19, x20, [{of}, #8 * 0]",
                "stp x21, x22, [{of}, #8 * 2]",
                "stp x23, x24, [{of}, #8 * 4]",
                "stp x25, x26, [{of}, #8 * 6]",
                "stp x27, x28, [{of}, #8 * 8]",
                "stp x29, x30, [{of}, #8 * 10]",
                "mov {pc}, sp",
                "str {pc}, [{of}, #8 * 12]",
                "adr {pc}, .",
                of = in(reg) of.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        pc
    }

    /// Takes the signature off a return address that may bear one.
    pub(super) fn plain_address(signed: usize) -> usize {
        let address: usize;
        // SAFETY: `xpaclri`, which is no operation where addresses are not signed.
        unsafe {
            core::arch::asm!(
                "hint #7",
                inlateout("x30") signed => address,
                options(nomem, nostack, preserves_flags),
            );
        }
        address
    }
}

use processor::FRAME_POINTER;
pub(super) use processor::{NUMBERS, SLOTS, STACK_POINTER};

/// The slot of a register, if it has one.
pub(super) fn slot(register: Register) -> Option<usize> {
    NUMBERS.iter().position(|&number| number == register.0)
}

/// Reads a value of any alignment.
///
/// # Safety
/// `address` is that of as many readable bytes as `T` has.
pub(super) unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::with_exposed_provenance::<T>(address).read_unaligned() }
}

/// What is known of a frame: where it is executing, and what its caller needs back.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) pc: usize,
    pub(super) registers: [usize; SLOTS],
    /// Which parts of the stack are known to be readable.
    pub(super) memory: Memory,
}

impl Frame {
    /// The frame of the function this is inlined into.
    #[inline(always)]
    pub(super) fn here() -> Self {
        let mut registers = [0; SLOTS];
        let pc = processor::here(&mut registers);
        Self { pc, registers, memory: Memory::with(registers[STACK_POINTER]) }
    }

    pub(super) fn stack_pointer(&self) -> usize {
        self.registers[STACK_POINTER]
    }

    pub(super) fn frame_pointer(&self) -> usize {
        self.registers[FRAME_POINTER]
    }
}

/// A return address as the program sees it.
pub(super) fn plain_address(signed: usize) -> usize {
    processor::plain_address(signed)
}
