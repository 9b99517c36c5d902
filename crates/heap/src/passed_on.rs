//! For tests: methods that a source which changes some calls of another passes on unchanged.

/// The named methods of a `PageSource`, as those of `$inner`, an expression in which `$this` is the source itself.
macro_rules! passed_on {
    ($this:pat => $inner:expr; $($method:ident)+) => {
        $(passed_on!(@$method $this => $inner);)+
    };
    (@page_bytes $this:pat => $inner:expr) => {
        fn page_bytes(&self) -> usize {
            let $this = self;
            $inner.page_bytes()
        }
    };
    (@reserve $this:pat => $inner:expr) => {
        fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
            let $this = self;
            $inner.reserve(bytes, align)
        }
    };
    (@release $this:pat => $inner:expr) => {
        unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
            let $this = self;
            // SAFETY: the caller's promise, passed on.
            unsafe { $inner.release(start, bytes) };
        }
    };
    // `commit` and `decommit`.
    (@$method:ident $this:pat => $inner:expr) => {
        unsafe fn $method(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
            let $this = self;
            // SAFETY: the caller's promise, passed on.
            unsafe { $inner.$method(start, bytes) }
        }
    };
}
