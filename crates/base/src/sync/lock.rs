//! A mutual-exclusion lock of one word over one value.
//!
//! ```text
//!   FREE ──lock──▶ HELD ──unlock──▶ FREE
//!                   │ a second thread arrives
//!                   ▼
//!                CONTENDED ──unlock + wake──▶ FREE
//! ```
//!
//! Invariants
//! 1. The thread that moved the word from `FREE` owns the value until it moves the word back.
//! 2. A thread sleeps only on the word `CONTENDED`; whoever frees a `CONTENDED` word wakes one.
//! 3. A woken thread takes the word as `CONTENDED`, since others may still be asleep.
//!
//! A thread sleeps only after it has given way many times. With more threads than CPUs, a sleeper
//! is woken on the CPU of the thread that wakes it, and waits there for its turn. Until it has had
//! the lock, nobody wakes the next sleeper. So whenever an owner was preempted while it held the
//! lock, all others would fall asleep and then continue one by one, a time slice each, while CPUs
//! idle.
//!
//! Orderings: taking is `Acquire`, freeing `Release`, so the next owner sees what the last one
//! wrote. (After Drepper, "Futexes Are Tricky", 2011, mutex 2.)

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use super::atomic::{AtomicU32, Ordering};
use super::cell::UnsafeCell;
use super::hint;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a thread looks at a held lock while spinning; and how often it then looks again,
/// giving way before each look, before it sleeps.
const SPINS: u32 = if cfg!(loom) { 0 } else { 60 };
const YIELDS: u32 = if cfg!(loom) { 0 } else { 100 };

/// How a thread waits for a word to change, and wakes a thread that waits.
pub trait Park {
    /// Returns when woken, or at once when `*word != expected`; may return for no reason.
    fn wait(word: &AtomicU32, expected: u32);
    /// Wakes at least one thread that waits on `word`, if any does.
    fn wake_one(word: &AtomicU32);
    /// Lets other threads have this CPU, if any want it.
    fn give_way();
}

/// Waits by polling: for tests, and for targets without an operating system.
#[derive(Debug, Clone, Copy)]
pub struct SpinPark;

impl Park for SpinPark {
    #[inline]
    fn wait(_word: &AtomicU32, _expected: u32) {
        #[cfg(loom)]
        loom::thread::yield_now();
        hint::spin_loop();
    }

    #[inline]
    fn wake_one(_word: &AtomicU32) {}

    #[inline]
    fn give_way() {
        hint::spin_loop();
    }
}

/// A value behind a lock. Not reentrant, not fair; a panic while it is held does not poison it.
///
/// The state comes first: of a long value only the front may ever be touched. Memory of zeros is a
/// free lock, if zeros are a value of `T`.
#[derive(Debug)]
#[repr(C)]
pub struct Lock<T, P = SpinPark> {
    state: AtomicU32,
    value: UnsafeCell<T>,
    park: PhantomData<fn() -> P>,
}

// SAFETY: by invariant 1 only one thread at a time reaches the value, so it is merely sent.
unsafe impl<T: Send, P> Send for Lock<T, P> {}
// SAFETY: as above; `&Lock` gives access to the value only through the lock.
unsafe impl<T: Send, P> Sync for Lock<T, P> {}

impl<T, P: Park> Lock<T, P> {
    /// An unlocked lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value), park: PhantomData }
    }

    /// An unlocked lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value), park: PhantomData }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T, P> {
        if !self.try_take() {
            take_slow::<P>(&self.state);
        }
        LockGuard { lock: self, value: PhantomData }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T, P>> {
        self.try_take().then(|| LockGuard { lock: self, value: PhantomData })
    }

    /// Takes the lock and keeps it until [`unlock`](Self::unlock); for a fork, across which a guard
    /// cannot live.
    pub fn lock_for_fork(&self) {
        take_slow::<P>(&self.state);
    }

    /// Frees the lock.
    ///
    /// # Safety
    /// The lock is held through [`lock_for_fork`](Self::lock_for_fork), called by this thread or by
    /// the thread of which this one is the forked copy. Or the value is one that threads may reach
    /// at once.
    pub unsafe fn unlock(&self) {
        release_slow::<P>(&self.state);
    }

    #[inline]
    fn try_take(&self) -> bool {
        try_take(&self.state)
    }

    #[inline]
    fn release(&self) {
        release::<P>(&self.state);
    }
}

#[inline]
fn try_take(state: &AtomicU32) -> bool {
    state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

#[inline]
fn release<P: Park>(state: &AtomicU32) {
    if state.swap(FREE, Ordering::Release) == CONTENDED {
        wake::<P>(state);
    }
}

/// As [`release`], but one function, for seldom calls.
#[cold]
#[inline(never)]
fn release_slow<P: Park>(state: &AtomicU32) {
    release::<P>(state);
}

/// Waits until the lock of this word is free and takes it. One function, whatever the lock
/// protects.
#[cold]
fn take_slow<P: Park>(state: &AtomicU32) {
    for look in 0..SPINS + YIELDS {
        if state.load(Ordering::Relaxed) == FREE && try_take(state) {
            return;
        }
        if look < SPINS {
            hint::spin_loop();
        } else {
            P::give_way();
        }
    }
    while state.swap(CONTENDED, Ordering::Acquire) != FREE {
        P::wait(state, CONTENDED);
    }
}

#[cold]
fn wake<P: Park>(state: &AtomicU32) {
    P::wake_one(state);
}

/// Access to the value of a held [`Lock`]; dropping it frees the lock.
///
/// Threads may share it only if they may share the value:
///
/// ```compile_fail,E0277
/// fn shared(_: impl Sync) {}
/// let lock: hectare_base::sync::Lock<_> = hectare_base::sync::Lock::new(core::cell::Cell::new(1));
/// shared(lock.lock());
/// ```
#[derive(Debug)]
pub struct LockGuard<'a, T, P: Park = SpinPark> {
    lock: &'a Lock<T, P>,
    /// Stands for the value that a guard gives access to. Without this field, `Sync` would follow
    /// from `&Lock`, which only needs `T: Send`.
    value: PhantomData<&'a mut T>,
}

impl<T, P: Park> LockGuard<'_, T, P> {
    /// Frees the lock while `call` runs, and waits for it again.
    pub fn unlocked<R>(&mut self, call: impl FnOnce() -> R) -> R {
        /// Takes the lock even if the call panics, since the guard then frees it.
        struct Retaken<'a, P: Park>(&'a AtomicU32, PhantomData<P>);
        impl<P: Park> Drop for Retaken<'_, P> {
            fn drop(&mut self) {
                take_slow::<P>(self.0);
            }
        }
        release_slow::<P>(&self.lock.state);
        let _retaken = Retaken::<P>(&self.lock.state, PhantomData);
        call()
    }
}

impl<T, P: Park> Deref for LockGuard<'_, T, P> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so by invariant 1 this thread owns the value.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T, P: Park> DerefMut for LockGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably, so no other reference lives.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T, P: Park> Drop for LockGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::sync::Arc;

    /// Code that maps memory relies on it.
    #[test]
    fn zeros_are_a_free_lock() {
        // SAFETY: as `Lock` says; zero is a number.
        let lock: Lock<u32> = unsafe { core::mem::zeroed() };
        assert_eq!(lock.try_lock().map(|value| *value), Some(0));
    }

    #[test]
    fn four_threads_count_without_loss() {
        let lock: Arc<Lock<u64>> = Arc::new(Lock::new(0));
        let threads: std::vec::Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        *lock.lock() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a counting thread panicked");
        }
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn a_guard_frees_its_lock_for_a_call() {
        let lock: Lock<u64> = Lock::new(0);
        let mut guard = lock.lock();
        assert_eq!(guard.unlocked(|| lock.try_lock().map(|mut value| *value += 1)), Some(()));
        assert!(*guard == 1 && lock.try_lock().is_none());
        let panics = std::panic::AssertUnwindSafe(|| guard.unlocked(|| panic!("for the test")));
        assert!(std::panic::catch_unwind(panics).is_err() && lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_held_lock_is_not_taken_twice() {
        let lock: Lock<()> = Lock::new(());
        let guard = lock.try_lock();
        assert!(guard.is_some());
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_lock_for_a_fork_is_held_until_it_is_unlocked() {
        let lock: Lock<()> = Lock::new(());
        lock.lock_for_fork();
        assert!(lock.try_lock().is_none());
        // SAFETY: held by this thread through `lock_for_fork`.
        unsafe { lock.unlock() };
        assert!(lock.try_lock().is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    extern crate std;
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};

    loom::lazy_static! {
        /// What the sleepers of a model wait on.
        static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// Sleeps until it is woken, as on a futex: a lost wake-up is a deadlock, which loom reports.
    struct Sleep;

    impl Park for Sleep {
        fn wait(word: &AtomicU32, expected: u32) {
            let awake = BED.0.lock().expect("a thread panicked");
            if word.load(Ordering::Relaxed) == expected {
                drop(BED.1.wait(awake).expect("a thread panicked"));
            }
        }

        fn wake_one(_word: &AtomicU32) {
            let _awake = BED.0.lock().expect("a thread panicked");
            BED.1.notify_one();
        }

        fn give_way() {}
    }

    /// Each of that many threads counts once, in every order with at most three preemptions.
    fn count<P: Park + 'static>(threads: u32) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let lock: Arc<Lock<u32, P>> = Arc::new(Lock::new(0));
            let count = |lock: &Lock<u32, P>| *lock.lock() += 1;
            let others = (1..threads).map(|_| {
                let lock = Arc::clone(&lock);
                loom::thread::spawn(move || count(&lock))
            });
            let others: std::vec::Vec<_> = others.collect();
            count(&lock);
            others.into_iter().for_each(|other| other.join().expect("a counting thread panicked"));
            assert_eq!(*lock.lock(), threads);
        });
    }

    #[test]
    fn two_threads_never_hold_at_once() {
        count::<SpinPark>(2);
    }

    #[test]
    fn whoever_sleeps_is_woken() {
        count::<Sleep>(2);
        count::<Sleep>(3);
    }
}
