//! A line of text on the stack, for messages of code that may not allocate.

use core::fmt::{self, Write};

use crate::output::{Descriptor, Sink};

const MAX_BYTES: usize = 480;

/// What does not fit is cut off.
pub(crate) struct Line {
    bytes: [u8; MAX_BYTES],
    len: usize,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; MAX_BYTES], len: 0 }
    }

    /// Appends `text`. A character that would end the line early, or control a terminal, becomes a
    /// blank.
    #[cold] // One copy for the many places that call it.
    pub(crate) fn push(&mut self, text: &[u8]) -> &mut Self {
        for (to, &from) in self.bytes[self.len..].iter_mut().zip(text) {
            *to = if from < b' ' { b' ' } else { from };
            self.len += 1;
        }
        self
    }

    /// Writes the line, with its line end, by one call.
    pub(crate) fn write_to_standard_error(mut self) {
        let end = self.len.min(MAX_BYTES - 1);
        self.bytes[end] = b'\n';
        // If standard error is closed, there is nobody to report to.
        let _ = Descriptor(libc::STDERR_FILENO).put(&self.bytes[..=end]);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}
