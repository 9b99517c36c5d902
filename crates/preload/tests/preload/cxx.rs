//! The C++ operators.

use crate::harness::{Suite, add_cases};

const CASES: &[&str] = &[
    "every_form",
    "bad_alloc",
    "array_too_long",
    "handler_frees_memory",
    "handler_throws",
    "nothrow_is_null",
    "nothrow_calls_the_handler",
    "aligned_failure",
    "containers",
    "thread_locals",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "cxx", "operators.cpp", CASES);
}
