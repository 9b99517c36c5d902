//! The lock of the recorder's slow path.
//!
//! Who waits for it sleeps in the kernel. One that kept asking, and only yielded between, would never
//! get it where it has a higher real-time priority than the holder and the two share a processor.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{self, KeepErrno};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep until it is free.
const AWAITED: u32 = 2;

/// A lock that is free when it is zero, as in a child whose copy the kernel has wiped.
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    pub(crate) fn lock(&self) {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        let _errno = KeepErrno::new();
        // Whoever gets it here cannot know whether others sleep, too.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            sys::sleep_while(&self.0, AWAITED);
        }
    }

    /// Unlocks it; the caller holds it.
    pub(crate) fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            sys::wake_one(&self.0);
        }
    }
}
