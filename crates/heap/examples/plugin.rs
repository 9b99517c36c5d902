//! A library with an allocator of its own, for programs that load and unload it (`tests/plugin.rs`).

use std::ffi::CStr;

#[global_allocator]
static GLOBAL: hectare::Malloc = hectare::Malloc;

/// The variable that has the address of a function, in hexadecimal, which is to be called while this library is loaded.
const CALLED: &CStr = c"HECTARE_PLUGIN_CALLS";

/// Allocates and frees on this thread. Returns 499500.
#[unsafe(no_mangle)]
pub extern "C" fn work() -> usize {
    let numbers: Vec<usize> = (0..1000).collect();
    std::hint::black_box(&numbers).iter().sum()
}

/// Called by the dynamic linker, which holds its lock meanwhile.
extern "C" fn at_load() {
    // SAFETY: a name that ends in 0; nobody changes the environment while its program loads this.
    let address = unsafe { libc::getenv(CALLED.as_ptr()) };
    if !address.is_null() {
        // SAFETY: a text that ends in 0.
        let address = unsafe { libc::strtoull(address, std::ptr::null_mut(), 16) };
        // SAFETY: by what the variable means, a function of this type.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn()>(address as usize) };
        call();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
