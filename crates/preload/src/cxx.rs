//! The C++ operators `new` and `delete`, in all their forms.
//!
//! A throwing `new` that finds no memory calls the program's new-handler until there is memory or
//! no handler, then throws `std::bad_alloc`: both through the program's own C++ library, found at
//! that moment, so that a C program needs none.

use core::ffi::CStr;

use crate::HEAP;
use crate::abi::{aligned, free};

type Handler = Option<unsafe extern "C-unwind" fn()>;

fn symbol(name: &CStr) -> *mut libc::c_void {
    // SAFETY: a C string; the answer is null when nobody has the symbol.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// What a throwing `new` does when there is no memory.
#[cold]
#[inline(never)]
fn new_failed(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let get_handler = symbol(c"_ZSt15get_new_handlerv");
    while !get_handler.is_null() {
        // SAFETY: the C++ library's function of this name has this type.
        let get_handler = unsafe {
            core::mem::transmute::<*mut libc::c_void, extern "C" fn() -> Handler>(get_handler)
        };
        let Some(handler) = get_handler() else { break };
        // SAFETY: the program's own handler; it may throw, and this frame may be unwound.
        unsafe { handler() };
        let object = allocate();
        if !object.is_null() {
            return object;
        }
    }
    let throw = symbol(c"_ZSt17__throw_bad_allocv");
    if !throw.is_null() {
        // SAFETY: the C++ library's function of this name has this type.
        let throw =
            unsafe { core::mem::transmute::<*mut libc::c_void, extern "C-unwind" fn()>(throw) };
        throw();
    }
    // Without a C++ library nobody could catch what would have been thrown.
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

#[inline(always)]
fn new(bytes: usize) -> *mut u8 {
    let object = HEAP.malloc_fast(bytes);
    if object.is_null() { new_slow(bytes) } else { object }
}

#[cold]
#[inline(never)]
extern "C-unwind" fn new_slow(bytes: usize) -> *mut u8 {
    let object = HEAP.malloc_slow(bytes);
    if object.is_null() { new_failed(|| HEAP.malloc(bytes)) } else { object }
}

#[inline(always)]
fn new_aligned(bytes: usize, align: usize) -> *mut u8 {
    let object = aligned(align, bytes);
    if object.is_null() { new_failed(|| aligned(align, bytes)) } else { object }
}

/// A `new` that does not throw does not call the handler either, since that may throw.
#[inline(always)]
fn new_nothrow(bytes: usize) -> *mut u8 {
    HEAP.malloc(bytes)
}

macro_rules! operators {
    (new: $($new:ident)*; nothrow: $($nothrow:ident)*; aligned: $($aligned:ident)*;
     aligned_nothrow: $($aligned_nothrow:ident)*; delete: $($delete:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C-unwind" fn $new(bytes: usize) -> *mut u8 {
            new(bytes)
        })*
        $(#[unsafe(no_mangle)]
        extern "C" fn $nothrow(bytes: usize, _nothrow: *const u8) -> *mut u8 {
            new_nothrow(bytes)
        })*
        $(#[unsafe(no_mangle)]
        extern "C-unwind" fn $aligned(bytes: usize, align: usize) -> *mut u8 {
            new_aligned(bytes, align)
        })*
        $(#[unsafe(no_mangle)]
        extern "C" fn $aligned_nothrow(bytes: usize, align: usize, _nothrow: *const u8) -> *mut u8 {
            aligned(align, bytes)
        })*
        // The sizes and alignments that some forms get come behind the pointer, in registers
        // that this one function may leave alone.
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $delete(object: *mut u8) {
            // SAFETY: the C++ caller's promise.
            unsafe { free(object) };
        })*
    };
}

operators! {
    new: _Znwm _Znam;
    nothrow: _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t;
    aligned: _ZnwmSt11align_val_t _ZnamSt11align_val_t;
    aligned_nothrow: _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t;
    delete: _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t
        _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t
        _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t
}
