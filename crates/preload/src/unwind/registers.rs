//! The registers of a frame, by the numbers that unwind tables give them.

#[cfg(target_arch = "x86_64")]
mod processor {
    /// How many have numbers that matter: the sixteen general ones and the return address.
    pub(in crate::unwind) const COUNT: usize = 17;
    pub(in crate::unwind) const FRAME_POINTER: usize = 6;
    pub(in crate::unwind) const STACK_POINTER: usize = 7;

    #[inline(always)]
    pub(super) fn here(of: &mut [usize; COUNT]) -> usize {
        let pc: usize;
        // SAFETY: stores what functions must preserve into the array.
        unsafe {
            core::arch::asm!(
                "mov [{of} + 8 * 3], rbx",
                "mov [{of} + 8 * 6], rbp",
                "mov [{of} + 8 * 7], rsp",
                "mov [{of} + 8 * 12], r12",
                "mov [{of} + 8 * 13], r13",
                "mov [{of} + 8 * 14], r14",
                "mov [{of} + 8 * 15], r15",
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
    /// x0 to x30 and the stack pointer.
    pub(in crate::unwind) const COUNT: usize = 32;
    pub(in crate::unwind) const FRAME_POINTER: usize = 29;
    pub(in crate::unwind) const STACK_POINTER: usize = 31;

    #[inline(always)]
    pub(super) fn here(of: &mut [usize; COUNT]) -> usize {
        let pc: usize;
        // SAFETY: stores what functions must preserve into the array.
        unsafe {
            core::arch::asm!(
                "stp x19, x20, [{of}, #8 * 19]",
                "stp x21, x22, [{of}, #8 * 21]",
                "stp x23, x24, [{of}, #8 * 23]",
                "stp x25, x26, [{of}, #8 * 25]",
                "stp x27, x28, [{of}, #8 * 27]",
                "stp x29, x30, [{of}, #8 * 29]",
                "mov {pc}, sp",
                "str {pc}, [{of}, #8 * 31]",
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

pub(super) use processor::{COUNT, FRAME_POINTER, STACK_POINTER};

/// A frame as far as it is known: where it is executing, and what its caller needs back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) pc: usize,
    pub(super) registers: [usize; COUNT],
}

impl Frame {
    /// That of the function this is inlined into.
    #[inline(always)]
    pub(super) fn here() -> Self {
        let mut registers = [0; COUNT];
        let pc = processor::here(&mut registers);
        Self { pc, registers }
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
