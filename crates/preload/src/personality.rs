//! The personality of this library's frames: what an unwinder asks whether a frame catches, or has
//! to clean up after, what is thrown through it.
//!
//! None of ours does either. What a new-handler throws, and `bad_alloc`, pass through the frames of
//! `cxx.rs`; nothing else can be thrown here. The compiler, which is told that a panic aborts, gives
//! those frames landing pads that abort, and the symbol that decides whether they are taken, usually
//! the standard library's. Hidden: a program that gets its Rust library as a shared object must not
//! get this one's instead.

#[cfg(target_arch = "x86_64")]
macro_rules! continue_unwinding {
    () => {
        "mov eax, 8\nret"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! continue_unwinding {
    () => {
        "mov w0, #8\nret"
    };
}

// Returns _URC_CONTINUE_UNWIND.
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality,\"ax\",@progbits",
    ".balign 16",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality, @function",
    "rust_eh_personality:",
    continue_unwinding!(),
    ".size rust_eh_personality, . - rust_eh_personality",
    ".popsection",
);
