//! Buffers that a thread reuses.

use std::cell::RefCell;

use hectare_pool::PoolError;

thread_local! {
    static IDLE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `act` with `bytes` bytes of arbitrary content. Calls may be nested.
pub(crate) fn with_buffer<R>(
    bytes: usize,
    act: impl FnOnce(&mut [u8]) -> R,
) -> Result<R, PoolError> {
    // An exiting thread may have dropped its buffers before its last call.
    let idle = IDLE.try_with(|idle| idle.borrow_mut().pop());
    let mut buffer = idle.ok().flatten().unwrap_or_default();
    if buffer.len() < bytes {
        let more_bytes = bytes - buffer.len();
        buffer.try_reserve_exact(more_bytes).map_err(|_| PoolError::OutOfMemory)?;
        buffer.resize(bytes, 0);
    }
    let result = act(&mut buffer[..bytes]);
    let _ended = IDLE.try_with(|idle| {
        let mut idle = idle.borrow_mut();
        // If there is no memory to keep it, it is dropped.
        if idle.try_reserve(1).is_ok() {
            idle.push(buffer);
        }
    });
    Ok(result)
}
