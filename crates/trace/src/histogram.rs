//! Histograms of values that spread over many powers of two: sizes, lifetimes, latencies.

/// Counts by powers of two. Each power is cut into 2^`SUB_BITS` buckets of equal width, so a value
/// is known to within one part in 2^`SUB_BITS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<const SUB_BITS: u32 = 2> {
    counts: Vec<u64>,
}

impl<const SUB_BITS: u32> Histogram<SUB_BITS> {
    /// An empty histogram.
    pub fn new() -> Self {
        Self { counts: vec![0; Self::bucket(u64::MAX) + 1] }
    }

    /// Counts `value`.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.counts[Self::bucket(value)] += 1;
    }

    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The buckets that are not empty: smallest value of the bucket, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        filled.map(|(bucket, &count)| (Self::lower(bucket), count))
    }

    /// A value that at least `share` (0 to 1) of the values do not exceed, to within a bucket's
    /// width; 0 when empty.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (share * self.total() as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return Self::lower(bucket + 1).saturating_sub(1);
            }
        }
        0
    }

    fn bucket(value: u64) -> usize {
        let small = 1_u64 << (SUB_BITS + 1);
        if value < small {
            return value as usize;
        }
        let log = value.ilog2();
        let sub = (value >> (log - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        (((log - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize
    }

    fn lower(bucket: usize) -> u64 {
        if bucket < 1 << (SUB_BITS + 1) {
            return bucket as u64;
        }
        let log = (bucket >> SUB_BITS) as u32 + SUB_BITS - 1;
        let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
        if log >= 64 { u64::MAX } else { 1_u64 << log | sub << (log - SUB_BITS) }
    }
}

impl<const SUB_BITS: u32> Default for Histogram<SUB_BITS> {
    fn default() -> Self {
        Self::new()
    }
}
