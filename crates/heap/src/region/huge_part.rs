//! The part of a region in which huge pages are asked for: one of these.
//!
//! ```text
//!   usual         │ single pages ─▶│ huge pages ──▶ …       from 16 MiB on, or from a big run on
//!   hollow        │ single pages ─────────────────▶│ …     not in what was committed when it was seen
//!   nowhere       │ single pages ──▶ …                     while blocks are dear
//! ```
//! The rules that lead from one to another are in `region/huge_pages.rs`.

/// The size from which on a region asks for huge pages in any case: what is untouched of the last one is
/// then a few per cent of the whole at most, and a small program does not grow.
pub(super) const HUGE_PAGES_FROM_BYTES: usize = 16 << 20;

/// Where they are asked for, in bytes from the region's start.
#[derive(Debug)]
pub(super) struct HugePart {
    from_bytes: usize,
    /// Below this, single pages are used all the same; 0 unless the region is hollow. Never beyond the frontier.
    plain_until_bytes: usize,
}

impl HugePart {
    /// That of a region whose blocks are dear.
    pub(super) const NOWHERE: Self = Self::from_byte(usize::MAX);

    /// From byte `from` on.
    pub(super) const fn from_byte(from: usize) -> Self {
        Self { from_bytes: from, plain_until_bytes: 0 }
    }

    /// The usual one of a region that is committed up to byte `frontier` and does without there.
    pub(super) fn behind(frontier: usize) -> Self {
        Self::from_byte(frontier.max(HUGE_PAGES_FROM_BYTES))
    }

    /// The byte from which on huge pages are asked for.
    pub(super) fn start(&self) -> usize {
        self.from_bytes.max(self.plain_until_bytes)
    }

    /// Whether what was committed does without, because little of it is of use.
    pub(super) fn is_hollow(&self) -> bool {
        self.plain_until_bytes > 0
    }

    /// Has what is committed, up to byte `frontier`, do without. Returns from where on that is new; `None` if
    /// it does already.
    pub(super) fn hollow_out(&mut self, frontier: usize) -> Option<usize> {
        let start = self.start();
        if start >= frontier {
            return None;
        }
        self.plain_until_bytes = frontier;
        Some(start)
    }

    /// Ends that. Returns from where on huge pages are asked for again; `None` if nothing that is committed
    /// did without.
    pub(super) fn fill_in(&mut self, frontier: usize) -> Option<usize> {
        if !self.is_hollow() || self.from_bytes >= frontier {
            return None;
        }
        self.plain_until_bytes = 0;
        Some(self.from_bytes)
    }

    /// If it began within what is committed, up to byte `frontier`, has it begin behind that, and returns where it
    /// began. Whether the region is hollow is not forgotten.
    pub(super) fn withdraw(&mut self, frontier: usize) -> Option<usize> {
        let from = self.from_bytes;
        if from >= frontier {
            return None;
        }
        self.from_bytes = frontier.max(HUGE_PAGES_FROM_BYTES);
        Some(from)
    }

    /// Whether it begins where only big runs have it begin.
    pub(super) fn is_of_runs(&self) -> bool {
        self.from_bytes < HUGE_PAGES_FROM_BYTES
    }
}
