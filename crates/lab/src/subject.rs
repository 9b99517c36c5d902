//! Allocators under measurement.
