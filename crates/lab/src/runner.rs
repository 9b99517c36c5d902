//! Starts measured processes and watches them.
