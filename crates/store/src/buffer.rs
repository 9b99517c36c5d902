//! Buffers that a thread uses again.

use std::cell::RefCell;

thread_local! {
    static IDLE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `act` with `bytes` bytes of any content. Calls may be nested.
pub(crate) fn with_buffer<R>(bytes: usize, act: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = IDLE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    let result = act(&mut buffer[..bytes]);
    IDLE.with_borrow_mut(|idle| idle.push(buffer));
    result
}
