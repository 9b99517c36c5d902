//! The recorder's thread-local words.
//!
//! A `thread_local!` of a shared library costs a call to `__tls_get_addr` on every access. A
//! preloaded library is there when the process starts, so its block lies at a fixed distance from
//! the thread pointer (initial-exec): two instructions. Stable Rust cannot ask for that model, so
//! the symbol is defined and addressed in assembly.

use core::cell::Cell;

use hectare_trace::RowState;

use crate::tape::Tape;

/// A thread's own state. Initially all zero.
#[repr(C)]
pub(crate) struct Local {
    /// Where this thread's rows go; null before the first event and after the thread's end.
    pub(crate) tape: Cell<*mut Tape>,
    /// Set on the slow path: an allocation made there is the recorder's own.
    pub(crate) busy: Cell<bool>,
    /// Set by the last destructor. From then on `last` and `tid` are valid.
    pub(crate) ended: Cell<bool>,
    /// The thread's number in the system. It is asked for only at the thread's end, since a child
    /// that uses its parent's memory (`vfork`) has these words, too, but a number of its own.
    pub(crate) tid: Cell<i32>,
    /// The state of the rows at the thread's end, for calls that come even later.
    pub(crate) last: Cell<RowState>,
}

const LOCAL_BYTES: usize = 40;
const _: () = assert!(size_of::<Local>() == LOCAL_BYTES);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss.hectare_recorder_local,\"awT\",@nobits",
    ".p2align 3",
    ".globl hectare_recorder_local",
    ".hidden hectare_recorder_local",
    ".type hectare_recorder_local,@object",
    ".size hectare_recorder_local,{bytes}",
    "hectare_recorder_local:",
    ".zero {bytes}",
    ".popsection",
    bytes = const LOCAL_BYTES,
);

/// This thread's words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn local() -> &'static Local {
    let local: *const Local;
    // SAFETY: the word at fs:0 is the thread pointer itself (x86-64 TLS ABI), the linker puts the
    // symbol's offset from it into the GOT; nothing is written.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + hectare_recorder_local@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) local,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: zeroed, which is valid, and exists as long as the thread; only this thread uses it,
    // and the reference does not leave the call in which it was made.
    unsafe { &*local }
}

/// This thread's words.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn local() -> &'static Local {
    use core::mem::MaybeUninit;

    thread_local! {
        static LOCAL: MaybeUninit<Local> = const { MaybeUninit::zeroed() };
    }
    let local = LOCAL.with(MaybeUninit::as_ptr);
    // SAFETY: as above.
    unsafe { &*local }
}
