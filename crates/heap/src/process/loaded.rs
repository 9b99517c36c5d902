//! What a process does when its program, or the library that brings the allocator along, is loaded.
//!
//! The dynamic linker is asked now for everything that it will ever be asked for. It answers under
//! a lock, which another thread may hold for as long as a constructor runs, and a constructor may
//! wait for a thread that allocates. While it loads the allocator, nobody waits in this way.

use super::Process;

impl Process {
    /// Looks up what forks and the lists of CPUs need, and keeps what this is linked into from
    /// being unloaded. Must be called by a constructor.
    pub(super) fn at_load(&'static self) {
        // Tried again with the first cache, in case there is no memory now.
        let _ = self.see_to_forks();
        let _ = self.front();
        stay_loaded();
    }
}

/// Keeps this code loaded: threads call it when they end, and the kernel sends threads of a CPU's
/// lists to it.
///
/// A library says so when it is linked (`-z nodelete`), if whoever links it knows. A crate cannot.
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
fn stay_loaded() {
    use core::ffi::{c_char, c_int, c_void};
    use core::mem::MaybeUninit;
    use core::ptr;

    /// How `dladdr1` is asked for a [`LinkMap`].
    const RTLD_DL_LINKMAP: c_int = 2;

    /// How `struct link_map` of `<link.h>` begins.
    #[repr(C)]
    struct LinkMap {
        _address: usize,
        /// Empty for the program itself.
        name: *const c_char,
    }

    let mut info = MaybeUninit::uninit();
    let mut map: *mut LinkMap = ptr::null_mut();
    let here: *const c_void = (stay_loaded as fn() as *const ()).cast();
    // SAFETY: two places of the types that the flag names.
    let found =
        unsafe { libc::dladdr1(here, info.as_mut_ptr(), (&raw mut map).cast(), RTLD_DL_LINKMAP) };
    if found == 0 || map.is_null() {
        return;
    }
    // SAFETY: the linker's own description of this library, which is loaded.
    let name = unsafe { (*map).name };
    // SAFETY: as above; a text that ends in 0.
    if unsafe { *name } != 0 {
        // A handle for good. Without one, the libraries that this one needs would stay without
        // being counted as in use.
        // SAFETY: a text that ends in 0; it opens nothing that is not there.
        unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

/// Nothing is unloaded here.
#[cfg(not(all(target_env = "gnu", not(target_feature = "crt-static"))))]
fn stay_loaded() {}
