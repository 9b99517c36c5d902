//! The part of a region in which huge pages are asked for. It has one of these states:
//!
//! ```text
//!   usual         │ single pages ─▶│ huge pages ──▶ …       from 16 MiB on, or from a big run on
//!   hollow        │ single pages ─────────────────▶│ …     not in what was committed when it was seen
//!   nowhere       │ single pages ──▶ …                     while blocks are dear
//! ```
//! `region/huge_pages.rs` has the rules that lead from one state to another.

/// From this size on, a region asks for huge pages in any case. What is untouched of the last one
/// is then a few per cent of the whole at most, and a small program does not grow.
pub(super) const HUGE_PAGES_FROM_BYTES: usize = 16 << 20;

/// Where huge pages are asked for, in bytes from the region's start.
#[derive(Debug)]
pub(super) struct HugePart {
    from_bytes: usize,
    /// Below this, single pages are used all the same. 0 unless the region is hollow. Never beyond
    /// the frontier.
    plain_until_bytes: usize,
}

impl HugePart {
    /// The state of a region whose blocks are dear.
    pub(super) const NOWHERE: Self = Self::from_byte(usize::MAX);

    /// From byte `from` on.
    pub(super) const fn from_byte(from: usize) -> Self {
        Self { from_bytes: from, plain_until_bytes: 0 }
    }

    /// The usual state of a region that is committed up to byte `frontier` and does without huge
    /// pages there.
    pub(super) fn behind(frontier: usize) -> Self {
        Self::from_byte(frontier.max(HUGE_PAGES_FROM_BYTES))
    }

    /// The byte from which on huge pages are asked for.
    pub(super) fn start(&self) -> usize {
        self.from_bytes.max(self.plain_until_bytes)
    }

    /// Whether what was committed does without huge pages, because little of it is of use.
    pub(super) fn is_hollow(&self) -> bool {
        self.plain_until_bytes > 0
    }

    /// Has what is committed, up to byte `frontier`, do without huge pages. Returns from where on
    /// that is new; `None` if it is not new.
    pub(super) fn hollow_out(&mut self, frontier: usize) -> Option<usize> {
        let start = self.start();
        if start >= frontier {
            return None;
        }
        self.plain_until_bytes = frontier;
        Some(start)
    }

    /// Ends what [`hollow_out`](Self::hollow_out) began. Returns from where on huge pages are asked
    /// for again; `None` if nothing that is committed did without.
    pub(super) fn fill_in(&mut self, frontier: usize) -> Option<usize> {
        if !self.is_hollow() || self.from_bytes >= frontier {
            return None;
        }
        self.plain_until_bytes = 0;
        Some(self.from_bytes)
    }

    /// If the part began within what is committed, up to byte `frontier`, has it begin behind that,
    /// and returns where it began. A hollow region stays hollow.
    pub(super) fn withdraw(&mut self, frontier: usize) -> Option<usize> {
        let from = self.from_bytes;
        if from >= frontier {
            return None;
        }
        self.from_bytes = frontier.max(HUGE_PAGES_FROM_BYTES);
        Some(from)
    }

    /// Whether the part begins where it does only because of big runs.
    pub(super) fn is_of_runs(&self) -> bool {
        self.from_bytes < HUGE_PAGES_FROM_BYTES
    }
}
