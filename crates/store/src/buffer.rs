//! Buffers that a thread uses again.

use std::cell::RefCell;

thread_local! {
    static IDLE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `act` with `bytes` bytes of any content. Calls may be nested.
pub(crate) fn with_buffer<R>(bytes: usize, act: impl FnOnce(&mut [u8]) -> R) -> R {
    // A thread that ends may have dropped its buffers before it comes here for the last time.
    let idle = IDLE.try_with(|idle| idle.borrow_mut().pop());
    let mut buffer = idle.ok().flatten().unwrap_or_default();
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    let result = act(&mut buffer[..bytes]);
    let _ended = IDLE.try_with(|idle| idle.borrow_mut().push(buffer));
    result
}
