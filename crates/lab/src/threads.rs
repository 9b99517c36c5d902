//! Threads that wait for each other.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::cmd::child;

/// Starts a thread. If the system refuses one the process ends with a message, since other threads
/// may wait for it at a barrier.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    start_by(Builder::new(), scope, work)
}

/// As [`start`], with the settings of `builder`.
pub(crate) fn start_by<'scope, T: Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    builder
        .spawn_scoped(scope, work)
        .unwrap_or_else(|error| child::give_up(&format!("cannot start a thread: {error}")))
}

/// Whether the system lets this process start another thread just now.
pub(crate) fn can_start() -> bool {
    Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())
}
