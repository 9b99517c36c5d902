//! Paired ratios, bootstrap intervals, and when two subjects are the same.
