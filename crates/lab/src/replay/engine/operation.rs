//! The operations themselves: the call, the touching of the block, the check of what it held.

use std::ffi::c_void;
use std::hint::{black_box, spin_loop};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::super::Touch;
use super::super::clock::ticks;
use super::super::plan::{Call, NO_SLOT, Op, Slot};
use super::{Counts, FAILED, Run};

/// How much planted time is spent at once: much more than reading the clock takes.
const PAID_AT_ONCE_NS: u64 = 5_000;

impl Run<'_> {
    /// The object given to an operation: null for none. The object is taken out of its slot if it
    /// `ends`.
    #[inline(always)]
    fn given(&self, op: &Op, ends: bool, counts: &mut Counts) -> *mut c_void {
        if op.given == NO_SLOT {
            // The compiler must not know that this is null: it would turn `realloc` of null into
            // `malloc`, and drop `free` of null.
            return black_box(null_mut());
        }
        let (object, waited) = self.wait_for_object(op.given);
        counts.waiting_ticks += waited;
        if ends {
            self.table.slots[op.given as usize].store(null_mut(), Ordering::Relaxed);
        }
        object
    }

    #[inline(always)]
    pub(super) fn op(&self, op: &Op, counts: &mut Counts) {
        match op.call() {
            Call::Malloc => {
                // SAFETY: any size may be asked for.
                let block = unsafe { libc::malloc(op.size_bytes as usize) };
                self.made(op, block, 0, counts);
            }
            Call::Free => {
                let block = self.given(op, true, counts);
                if block != FAILED {
                    self.check(op.given, block, op.old_bytes(), counts);
                    // SAFETY: null, or a live block that was in its slot and is there no longer.
                    unsafe { libc::free(block) };
                }
            }
            Call::Calloc => {
                // SAFETY: any size may be asked for.
                let block = unsafe { libc::calloc(1, op.size_bytes as usize) };
                if self.options.touch != Touch::None && op.size_bytes > 0 && !block.is_null() {
                    // SAFETY: the block has at least one byte, initialised by calloc.
                    counts.corrupt += u64::from(unsafe { block.cast::<u8>().read() } != 0);
                }
                self.made(op, block, 0, counts);
            }
            Call::Memalign => self.memalign(op, counts),
            Call::Realloc => self.realloc(op, counts),
            Call::UsableSize => {
                let block = self.given(op, false, counts);
                if block != FAILED {
                    // SAFETY: null or a live block.
                    black_box(unsafe { libc::malloc_usable_size(block) });
                }
            }
        }
        if self.options.planted_ns > 0 {
            self.be_slow(counts);
        }
    }

    #[inline(never)]
    fn memalign(&self, op: &Op, counts: &mut Counts) {
        let mut block = null_mut();
        let align = op.align_bytes().max(size_of::<*mut c_void>());
        // SAFETY: `block` is valid for writing, the alignment a power of two and large enough.
        let error = unsafe { libc::posix_memalign(&mut block, align, op.size_bytes as usize) };
        let block = if error == 0 { block } else { null_mut() };
        counts.corrupt += u64::from(block.addr() & (align - 1) != 0);
        self.made(op, block, 0, counts);
    }

    #[inline(never)]
    fn realloc(&self, op: &Op, counts: &mut Counts) {
        let ends = op.made != NO_SLOT;
        let old = match self.given(op, ends, counts) {
            FAILED => null_mut(),
            old => old,
        };
        if op.given != NO_SLOT {
            self.check(op.given, old, op.old_bytes(), counts);
        }
        // SAFETY: null or a live block; if it is freed by this call its slot has been emptied.
        let block = unsafe { libc::realloc(old, op.size_bytes as usize) };
        if !ends {
            // The call failed when recorded. If it moves the block now, the new block takes the
            // place of the old object.
            if !block.is_null() && op.given != NO_SLOT {
                self.table.slots[op.given as usize].store(block, Ordering::Release);
            } else if op.given == NO_SLOT {
                give_back(block);
            }
            return;
        }
        let kept = if old.is_null() { 0 } else { op.old_bytes().min(op.size_bytes) };
        if op.given != NO_SLOT && !block.is_null() {
            self.check(op.given, block, kept, counts);
        }
        if block.is_null() && !old.is_null() && op.size_bytes > 0 {
            // The old block is still there, and no later operation will free it: in the recording
            // this call ended it.
            // SAFETY: a live block whose slot has been emptied.
            unsafe { libc::free(old) };
        }
        self.made(op, block, kept, counts);
    }

    /// Touches a new block beyond the bytes it `kept` and puts it into its slot.
    #[inline(always)]
    fn made(&self, op: &Op, block: *mut c_void, kept: u64, counts: &mut Counts) {
        let block = black_box(block);
        if op.made == NO_SLOT {
            give_back(block);
            return;
        }
        let object = if block.is_null() {
            counts.failed += 1;
            FAILED
        } else {
            self.touch(op, block.cast(), kept);
            block
        };
        self.table.slots[op.made as usize].store(object, Ordering::Release);
    }

    #[inline(always)]
    fn touch(&self, op: &Op, block: *mut u8, kept: u64) {
        let step = match self.options.touch {
            Touch::None => return,
            Touch::Line => 64,
            Touch::Page => 4096,
            Touch::Full => return touch_all(op, block, kept),
        };
        let size = op.size_bytes as usize;
        let mut at = (kept as usize).next_multiple_of(step);
        while at < size {
            // SAFETY: `at` lies inside the block.
            let place = unsafe { block.add(at) };
            // SAFETY: as above.
            unsafe { place.write_volatile(1) };
            at += step;
        }
        mark(op, block);
    }

    /// Counts a block whose mark is gone.
    #[inline(always)]
    fn check(&self, slot: Slot, block: *mut c_void, size_bytes: u64, counts: &mut Counts) {
        if self.options.touch != Touch::None && size_bytes > 0 && !block.is_null() {
            // SAFETY: the block has at least one byte, and `mark` wrote it.
            let mark = unsafe { block.cast::<u8>().read() };
            counts.corrupt += u64::from(mark != slot as u8);
        }
    }

    /// The planted control: spends the planted time of this operation. Reading the clock takes
    /// longer than a planted nanosecond or two, so the time of many operations is spent at once.
    fn be_slow(&self, counts: &mut Counts) {
        counts.owed_ns += self.options.planted_ns;
        if counts.owed_ns < PAID_AT_ONCE_NS {
            return;
        }
        let ticks_owed = (counts.owed_ns as f64 / self.rate.ns_per_tick) as u64;
        let until = ticks() + ticks_owed;
        while ticks() < until {
            spin_loop();
        }
        counts.owed_ns = 0;
    }
}

/// Frees the block of a call that failed when it was recorded: the block belongs to nobody. If the
/// call fails now as well, no other function is called, as none was then.
fn give_back(block: *mut c_void) {
    if !block.is_null() {
        // SAFETY: a block just made.
        unsafe { libc::free(black_box(block)) };
    }
}

#[inline(never)]
fn touch_all(op: &Op, block: *mut u8, kept: u64) {
    let fresh = op.size_bytes.saturating_sub(kept) as usize;
    // SAFETY: the kept bytes are part of the block.
    let start = unsafe { block.add(kept as usize) };
    // SAFETY: the rest of the block.
    unsafe { start.write_bytes(0xA5, fresh) };
    black_box(block);
    mark(op, block);
}

/// Writes the slot's number into the block, for [`Run::check`].
#[inline(always)]
fn mark(op: &Op, block: *mut u8) {
    if op.size_bytes > 0 {
        // SAFETY: the block has at least one byte.
        unsafe { block.write_volatile(op.made as u8) };
    }
}
