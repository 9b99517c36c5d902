//! How much address space the regions reserve, and how much of it they give up.

use core::sync::atomic::Ordering;

use hectare_base::align::{align_down, align_up};
use hectare_base::sync::Park;
use hectare_pages::System;

use super::{Backend, State};
use crate::class::SLAB_BYTES;
use crate::region::{HUGE_PAGE_BYTES, MOST_REGION_BYTES, Region, has_room};

/// How much address space a region takes at most unless a length is asked for, and how many times
/// the memory that there can be. Unused address space costs next to nothing. Halved until the
/// system agrees.
const MAX_REGION_BYTES: usize = 256 << 30;
const MEMORY_TIMES: usize = 4;

/// How long a run can be: this share of the first region, and at most this many bytes. If the
/// region is as long as it should be, what large objects leave serves other runs. If address space
/// is scarce, it must not be held.
const LONGEST_RUN_SHARE: usize = 64;
const LONGEST_RUN_BYTES: usize = 1 << 30;

/// The smallest region worth having.
const MIN_REGION_BYTES: usize = 1 << 20;

/// How often the lock is tried where a thread must not wait for it.
const PATIENCE: usize = 1000;

impl<S: System> Backend<S> {
    /// Reserves one more region, of at least `least_bytes`, and of at least what is committed
    /// divided by the places that are left, aligned to at least `least_align`.
    #[cold]
    pub(super) fn open_region(
        &self,
        state: &mut State,
        least_bytes: usize,
        least_align: usize,
    ) -> Option<()> {
        let index = state.regions.len();
        let reserved = || state.regions.iter().map(Region::reserved_bytes).sum();
        let wanted = match state.region_bytes {
            0 => self.usual_region_bytes(),
            // As much as all before, so that there are enough regions however little is asked for.
            bytes => bytes.max(reserved()),
        };
        // Also if address space comes little by little: one region in each gap that a program
        // leaves would soon be the last.
        let committed_bytes = if index > 0 { self.committed_bytes() } else { 0 };
        let share_bytes = committed_bytes.checked_div(state.regions.places_left())?;
        if least_bytes > MOST_REGION_BYTES {
            return None;
        }
        let unit = SLAB_BYTES.max(self.source.page_bytes());
        let least = align_up(least_bytes.max(share_bytes), unit).max(MIN_REGION_BYTES);
        let mut bytes = wanted.max(least).min(MOST_REGION_BYTES);
        loop {
            // Only the shortest region is not aligned to huge pages, since aligning it may take
            // more address space than there is.
            let is_last = bytes / 2 < least;
            let align = unit.max(least_align).max(if is_last { 0 } else { HUGE_PAGE_BYTES });
            match Region::open(align_down(bytes, unit), align, &self.source, &self.views[index]) {
                Ok(mut region) => {
                    if bytes < wanted {
                        region.leave_room(least, &self.source);
                    }
                    if index == 0 {
                        self.begin_slack();
                        self.note_longest_run(&region);
                    }
                    state.regions.push(region);
                    self.count.store(index + 1, Ordering::Release);
                    return Some(());
                }
                Err(_) if !is_last => bytes /= 2,
                Err(_) => return None,
            }
        }
    }

    /// How much address space a region takes unless a length is asked for: a power of two, so that
    /// its metadata can come in huge pages.
    fn usual_region_bytes(&self) -> usize {
        let bytes = self.source.memory_bytes().saturating_mul(MEMORY_TIMES);
        1 << bytes.clamp(MIN_REGION_BYTES, MAX_REGION_BYTES).ilog2()
    }

    /// Notes how long a run can be, which depends on the first region.
    fn note_longest_run(&self, first: &Region) {
        let longest = (first.reserved_bytes() / LONGEST_RUN_SHARE).min(LONGEST_RUN_BYTES);
        self.min_huge_bytes.store(longest, Ordering::Relaxed);
    }

    /// Whether the regions may serve `bytes` for which the system has refused a mapping: as much as
    /// they once held; or more, if address space is scarce, which they hold. If memory were scarce,
    /// address space would not be refused.
    #[cold]
    pub(crate) fn may_have_room(&self, bytes: usize) -> bool {
        let is_scarce = || !has_room(bytes, &self.source);
        bytes <= self.committed_bytes() || bytes <= MAX_REGION_BYTES && is_scarce()
    }

    /// Gives up what the regions have reserved and not reached, until others have room. Does
    /// nothing if the lock does not become free for some hundred microseconds: what a signal has
    /// interrupted may hold it, or a thread that a fork has lost, and a program may set limits
    /// there.
    #[cold]
    pub(crate) fn leave_room(&self) {
        for _ in 0..PATIENCE {
            if let Some(mut state) = self.state.try_lock() {
                let source = &self.source;
                return self.shorten_regions(&mut state, |region| region.leave_room(0, source));
            }
            S::Park::give_way();
        }
    }

    /// Has each new region reserve no more than `bytes`. Existing regions become as short, unless
    /// they have reached further.
    #[cold]
    pub(crate) fn reserve_at_most(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.region_bytes = bytes;
        self.shorten_regions(&mut state, |region| while region.shorten(bytes, &self.source) {});
    }

    fn shorten_regions(&self, state: &mut State, shorten: impl FnMut(&mut Region)) {
        state.regions.iter_mut().for_each(shorten);
        if let Some(first) = state.regions.first() {
            self.note_longest_run(first);
        }
    }

    /// Has the next `bytes` come from what was set aside for the process. Returns whether they
    /// will.
    ///
    /// # Safety
    /// The process has one thread.
    pub(crate) unsafe fn set_aside(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        if state.regions.is_empty()
            && self.open_region(&mut state, bytes, HUGE_PAGE_BYTES).is_none()
        {
            return false;
        }
        let region = state.regions.first_mut();
        // SAFETY: the caller's promise, passed on.
        region.is_some_and(|region| unsafe { region.set_aside(bytes, &self.source) }.is_ok())
    }

    /// From now on, dumps of the process contain whatever objects the regions commit, without being
    /// told. If another thread is in the backend, or the thread that this call has interrupted was,
    /// what they commit later may be missing.
    #[cold]
    pub(crate) fn dump_reserved(&self) {
        if let Some(state) = self.state.try_lock() {
            state.regions.iter().for_each(|region| region.dump_reserved(&self.source));
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use hectare_pages::Os;

    use super::*;

    /// A region's length is bounded, since the numbers of its frames have few bits.
    #[test]
    fn no_region_is_longer_than_its_frames_can_be_numbered() {
        let backend = std::boxed::Box::new(Backend::new(Os, 4 * MOST_REGION_BYTES));
        let mut state = backend.state.lock();
        let open = |state: &mut State, least_bytes| {
            backend.open_region(state, least_bytes, 1)?;
            state.regions.last().map(Region::reserved_bytes)
        };
        let bytes = open(&mut state, 1).expect("address space");
        assert!(bytes <= MOST_REGION_BYTES, "{bytes}");
        assert_eq!(open(&mut state, MOST_REGION_BYTES + 1), None);
    }

    /// If the lock never becomes free, the call ends all the same.
    #[test]
    fn room_is_not_waited_for() {
        let backend: &Backend<Os> =
            std::boxed::Box::leak(std::boxed::Box::new(Backend::new(Os, 0)));
        let held = backend.state.lock();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            backend.leave_room();
            done.send(()).expect("the test waits");
        });
        let ended = is_done.recv_timeout(core::time::Duration::from_secs(20));
        drop(held);
        ended.expect("it waits for the lock");
    }
}
