//! The C names and their contracts.

use crate::harness::{Suite, add_cases};

pub(crate) const CASES: &[&str] = &[
    "names_are_ours",
    "free_keeps_errno",
    "too_large_is_enomem",
    "calloc_overflow",
    "calloc_is_zero",
    "posix_memalign_einval",
    "aligned",
    "least_alignment",
    "zero_bytes_unique",
    "realloc_to_zero",
    "realloc_keeps_contents",
    "realloc_huge_moves_pages",
    "untouched_contents_move",
    "reallocarray",
    "usable_size",
    "valloc_pvalloc",
    "sized_frees",
    "libc_aliases",
    "mallopt",
    "mallinfo2_is_true",
    "mallinfo2_is_exact",
    "mallinfo_agrees",
    "malloc_info_is_true",
    "malloc_stats_prints",
    "malloc_trim_gives_back",
    "a_peak_goes_back",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "contract", "contract.c", CASES);
}
