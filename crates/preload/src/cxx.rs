//! The C++ operators `new` and `delete`, in all their forms.
//!
//! A throwing `new` that finds no memory calls the program's new-handler until there is memory or
//! no handler, and then throws `std::bad_alloc`. Both go through the program's own C++ library,
//! which is looked up only then, so that a C program needs none. (A C program that opens C++
//! libraries as plugins, as Python does, has one, too, though not where all can see its names. A
//! plugin linked with `-static-libstdc++` contains the parts of the library that it uses, for
//! itself alone.)
//!
//! An exception passes through the frames of this file on its way to the caller: those of the
//! functions that are `extern "C-unwind"` (`personality.rs` lets it pass).

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;

use hectare::MIN_ALIGN;

use crate::abi::{free, free_aligned_sized, free_sized, malloc_slow, memalign};
use crate::{HEAP, unwind};

type Handler = Option<unsafe extern "C-unwind" fn()>;

/// The C++ libraries that a program may have.
const LIBRARIES: [&CStr; 2] = [c"libstdc++.so.6", c"libc++.so.1"];

/// The symbol `name` of a C++ library: the first in `scope` ([`libc::RTLD_DEFAULT`], or what is
/// behind this library), else that of a library that was loaded for others alone. Null if there is
/// none.
#[cold]
#[inline(never)]
fn symbol(scope: *mut libc::c_void, name: &CStr) -> *mut libc::c_void {
    // SAFETY: a C string; the answer is null when nobody has the symbol.
    let mut found = unsafe { libc::dlsym(scope, name.as_ptr()) };
    for library in LIBRARIES {
        if found.is_null() {
            // Only if the library is loaded. It then stays loaded, since its code is about to run.
            // SAFETY: a C string; no constructor runs.
            let library =
                unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if !library.is_null() {
                // SAFETY: as above, of a library that is loaded.
                found = unsafe { libc::dlsym(library, name.as_ptr()) };
            }
        }
    }
    found
}

/// The symbol `name` of the C++ library that the object which called this library contains for
/// itself alone. Null if it contains none, or if the symbol is ours.
#[cold]
#[inline(never)]
fn symbol_of_caller(name: &CStr) -> *mut libc::c_void {
    let Some(caller) = unwind::caller() else { return ptr::null_mut() };
    let mut of = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a valid place; any address may be asked for. The call lies before the return address.
    let is_known =
        unsafe { libc::dladdr(ptr::without_provenance(caller - 1), of.as_mut_ptr()) } != 0;
    // SAFETY: filled by the call above, or all zeros.
    let path = unsafe { of.assume_init() }.dli_fname;
    if !is_known || path.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the linker's own C string; no constructor runs of what is loaded.
    let object = unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if object.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a C string, of an object that is loaded.
    let own = unsafe { libc::dlsym(object, name.as_ptr()) };
    // SAFETY: opened just now. It stays loaded: it has called, and not returned.
    unsafe { libc::dlclose(object) };
    if unwind::is_own(own.addr()) { ptr::null_mut() } else { own }
}

/// What a throwing `new` does when there is no memory.
#[cold]
#[inline(never)]
extern "C-unwind" fn new_failed(bytes: usize, align: usize) -> *mut u8 {
    let get_handler = symbol(libc::RTLD_DEFAULT, c"_ZSt15get_new_handlerv");
    // However much memory a handler frees, an invalid alignment stays invalid.
    while align.is_power_of_two() && !get_handler.is_null() {
        // SAFETY: the C++ library's function of this name has this type.
        let get_handler = unsafe {
            core::mem::transmute::<*mut libc::c_void, extern "C" fn() -> Handler>(get_handler)
        };
        let Some(handler) = get_handler() else { break };
        // SAFETY: the program's own handler; it may throw, and this frame may be unwound.
        unsafe { handler() };
        let object = try_aligned(align, bytes);
        if !object.is_null() {
            return object;
        }
    }
    let throw = symbol(libc::RTLD_DEFAULT, c"_ZSt17__throw_bad_allocv");
    if !throw.is_null() {
        // SAFETY: the C++ library's function of this name has this type.
        let throw =
            unsafe { core::mem::transmute::<*mut libc::c_void, extern "C-unwind" fn()>(throw) };
        throw();
    }
    // An object that contains a C++ library for itself alone may have the function that throws in
    // no symbol table. But its operators are in one: they call our `malloc`, call the handler, and
    // throw.
    let own = symbol_of_caller(c"_Znwm");
    if align <= MIN_ALIGN && !own.is_null() {
        type Operator = extern "C-unwind" fn(usize) -> *mut u8;
        // SAFETY: the C++ library's operator of this name has this type.
        let own = unsafe { core::mem::transmute::<*mut libc::c_void, Operator>(own) };
        return own(bytes);
    }
    let own = symbol_of_caller(c"_ZnwmSt11align_val_t");
    if !own.is_null() {
        type Operator = extern "C-unwind" fn(usize, usize) -> *mut u8;
        // SAFETY: as above.
        let own = unsafe { core::mem::transmute::<*mut libc::c_void, Operator>(own) };
        return own(bytes, align);
    }
    // Without a C++ library nobody could catch an exception.
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

#[inline(always)]
extern "C-unwind" fn new(bytes: usize) -> *mut u8 {
    match HEAP.malloc_fast(bytes) {
        Some(object) => object.as_ptr(),
        None => new_slow(bytes),
    }
}

#[cold]
#[inline(never)]
extern "C-unwind" fn new_slow(bytes: usize) -> *mut u8 {
    let object = malloc_slow(bytes);
    if object.is_null() { new_failed(bytes, MIN_ALIGN) } else { object }
}

/// An object; null if there is no memory, or `align` is no power of two.
#[inline(never)] // One copy for the operators.
fn try_aligned(align: usize, bytes: usize) -> *mut u8 {
    if align.is_power_of_two() { memalign(align, bytes) } else { ptr::null_mut() }
}

#[inline(always)]
extern "C-unwind" fn new_aligned(bytes: usize, align: usize) -> *mut u8 {
    let object = try_aligned(align, bytes);
    if object.is_null() { new_failed(bytes, align) } else { object }
}

/// The operator `name` of the C++ library that the caller uses. Null if there is none.
fn next_symbol(name: &CStr) -> *mut libc::c_void {
    let next = symbol(libc::RTLD_NEXT, name);
    if next.is_null() { symbol_of_caller(name) } else { next }
}

/// What a `new` that does not throw does when there is no memory. By the C++ standard it calls the
/// one that throws, and catches. Only C++ can catch, so this calls the operator of this name in the
/// program's C++ library, which calls our throwing one. Without a C++ library there is no handler
/// to call.
#[cold]
#[inline(never)]
fn nothrow_failed(name: &CStr, bytes: usize, nothrow: *const u8) -> *mut u8 {
    let next = next_symbol(name);
    if next.is_null() {
        return ptr::null_mut();
    }
    type Operator = extern "C" fn(usize, *const u8) -> *mut u8;
    // SAFETY: the C++ library's operator of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut libc::c_void, Operator>(next) };
    next(bytes, nothrow)
}

/// As [`nothrow_failed`], for an alignment.
#[cold]
#[inline(never)]
fn aligned_nothrow_failed(name: &CStr, bytes: usize, align: usize, nothrow: *const u8) -> *mut u8 {
    let next = next_symbol(name);
    if next.is_null() {
        return ptr::null_mut();
    }
    type Operator = extern "C" fn(usize, usize, *const u8) -> *mut u8;
    // SAFETY: the C++ library's operator of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut libc::c_void, Operator>(next) };
    next(bytes, align, nothrow)
}

/// The name of a function, as the dynamic linker wants it.
fn symbol_name(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"")
}

macro_rules! operators {
    (new: $($new:ident)*; nothrow: $($nothrow:ident)*; aligned: $($aligned:ident)*;
     aligned_nothrow: $($aligned_nothrow:ident)*; delete: $($delete:ident)*;
     sized: $($sized:ident)*; sized_aligned: $($sized_aligned:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C-unwind" fn $new(bytes: usize) -> *mut u8 {
            new(bytes)
        })*
        $(#[unsafe(no_mangle)]
        extern "C" fn $nothrow(bytes: usize, nothrow: *const u8) -> *mut u8 {
            let object = match HEAP.malloc_fast(bytes) {
                Some(object) => object.as_ptr(),
                None => malloc_slow(bytes),
            };
            if !object.is_null() {
                return object;
            }
            nothrow_failed(symbol_name(concat!(stringify!($nothrow), "\0")), bytes, nothrow)
        })*
        $(#[unsafe(no_mangle)]
        extern "C-unwind" fn $aligned(bytes: usize, align: usize) -> *mut u8 {
            new_aligned(bytes, align)
        })*
        $(#[unsafe(no_mangle)]
        extern "C" fn $aligned_nothrow(bytes: usize, align: usize, nothrow: *const u8) -> *mut u8 {
            let object = try_aligned(align, bytes);
            if !object.is_null() {
                return object;
            }
            let name = symbol_name(concat!(stringify!($aligned_nothrow), "\0"));
            aligned_nothrow_failed(name, bytes, align, nothrow)
        })*
        // Some forms get an alignment behind the pointer, in a register that this function may
        // ignore.
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $delete(object: *mut u8) {
            // SAFETY: the C++ caller's promise.
            unsafe { free(object) };
        })*
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $sized(object: *mut u8, bytes: usize) {
            // SAFETY: the C++ caller's promise.
            unsafe { free_sized(object, bytes) };
        })*
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $sized_aligned(object: *mut u8, bytes: usize, align: usize) {
            // SAFETY: the C++ caller's promise.
            unsafe { free_aligned_sized(object, align, bytes) };
        })*
    };
}

operators! {
    new: _Znwm _Znam;
    nothrow: _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t;
    aligned: _ZnwmSt11align_val_t _ZnamSt11align_val_t;
    aligned_nothrow: _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t;
    delete: _ZdlPv _ZdaPv _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t
        _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t
        _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t;
    sized: _ZdlPvm _ZdaPvm;
    sized_aligned: _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t
}
