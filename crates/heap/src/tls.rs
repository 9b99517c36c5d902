//! One word of thread-local storage in the initial-exec model.
//!
//! `thread_local!` in a shared library compiles to a call of `__tls_get_addr`; this is one load.
//! The word begins as [`StandIn::NotYet`] in each thread.

use core::ffi::c_void;

use crate::stand_in::{STAND_INS, StandIn};

core::arch::global_asm!(
    ".pushsection .tdata.hectare_cache_word,\"awT\",@progbits",
    ".balign 8",
    ".globl hectare_cache_word",
    ".hidden hectare_cache_word",
    ".type hectare_cache_word, @object",
    ".size hectare_cache_word, 8",
    "hectare_cache_word:",
    ".quad {stand_ins} + {not_yet}",
    ".popsection",
    stand_ins = sym STAND_INS,
    not_yet = const StandIn::NotYet.offset(),
);

/// The calling thread's word.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn get() -> *mut c_void {
    let word: *mut c_void;
    // SAFETY: reads this thread's own word; the offset from the thread pointer is in the GOT.
    unsafe {
        core::arch::asm!(
            "mov {word}, qword ptr [rip + hectare_cache_word@GOTTPOFF]",
            "mov {word}, qword ptr fs:[{word}]",
            word = out(reg) word,
            options(nostack, preserves_flags, readonly),
        );
    }
    word
}

/// Sets the calling thread's word.
#[cfg(target_arch = "x86_64")]
pub(crate) fn set(word: *mut c_void) {
    // SAFETY: writes this thread's own word, which only `get` reads.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + hectare_cache_word@GOTTPOFF]",
            "mov qword ptr fs:[{offset}], {word}",
            offset = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn address() -> *mut *mut c_void {
    let address: *mut *mut c_void;
    // SAFETY: computes the address of this thread's own word.
    unsafe {
        core::arch::asm!(
            "adrp {address}, :gottprel:hectare_cache_word",
            "ldr {address}, [{address}, :gottprel_lo12:hectare_cache_word]",
            "mrs {base}, tpidr_el0",
            "add {address}, {address}, {base}",
            address = out(reg) address,
            base = out(reg) _,
            options(nostack, preserves_flags, readonly),
        );
    }
    address
}

/// The calling thread's word.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn get() -> *mut c_void {
    // SAFETY: this thread's own word, which lives as long as the thread.
    unsafe { address().read() }
}

/// Sets the calling thread's word.
#[cfg(target_arch = "aarch64")]
pub(crate) fn set(word: *mut c_void) {
    // SAFETY: as in `get`.
    unsafe { address().write(word) };
}
