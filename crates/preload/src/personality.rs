//! The personality of this library's frames: the function that an unwinder asks whether a frame
//! catches an exception that is thrown through it, or has to clean up after it.
//!
//! None of our frames does either. Only `bad_alloc`, and what a new-handler throws, can pass
//! through them (`cxx.rs`). The compiler, which is told that a panic aborts, gives those frames
//! landing pads that abort, and names the symbol that decides whether they are taken, usually the
//! standard library's. The symbol is hidden here: a program that uses Rust's library as a shared
//! object must not get this one instead.

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
