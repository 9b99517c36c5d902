//! The longest runs of dirty frames, noted for quick searches.
//!
//! A search reads all notes, so they stand in two arrays, of which the processor compares several
//! entries at once.

use hectare_base::align::align_up;

/// The most runs that are noted.
pub(super) const NOTED: usize = 64;

/// How many notes are compared at once before one is looked at by itself.
const LANES: usize = 4;

/// A run of frames: where it begins and where it ends. (No region has 2³¹ frames, which is 8 TiB.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) fn length(self) -> usize {
        self.end - self.start
    }
}

/// Up to [`NOTED`] runs, none of which overlap.
///
/// Invariant: the first `len` places hold a run each, the others an empty one, which overlaps nothing.
#[derive(Debug)]
pub(super) struct Notes {
    starts: [i32; NOTED],
    ends: [i32; NOTED],
    len: usize,
}

impl Notes {
    pub(super) const fn new() -> Self {
        Self { starts: [0; NOTED], ends: [0; NOTED], len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Span> {
        (0..self.len).map(|at| self.at(at))
    }

    fn at(&self, at: usize) -> Span {
        Span { start: self.starts[at % NOTED] as usize, end: self.ends[at % NOTED] as usize }
    }

    fn set(&mut self, at: usize, span: Span) {
        self.starts[at % NOTED] = span.start as i32;
        self.ends[at % NOTED] = span.end as i32;
    }

    /// Notes a run. Returns the shortest of all if there is no room for it.
    pub(super) fn add(&mut self, span: Span) -> Option<Span> {
        if self.len < NOTED {
            self.set(self.len, span);
            self.len += 1;
            return None;
        }
        let (at, shortest) = self.iter().enumerate().min_by_key(|&(_, noted)| noted.length())?;
        if shortest.length() >= span.length() {
            return Some(span);
        }
        self.set(at, span);
        Some(shortest)
    }

    /// Drops the runs that overlap `span`. Returns one of them, and how many there were.
    pub(super) fn drop_overlapping(&mut self, span: Span) -> (Option<Span>, usize) {
        let (start, end) = (span.start as i32, span.end as i32);
        let before = self.len;
        let mut dropped = None;
        // From the last on: the run that fills the place of a dropped one has been looked at.
        for group in (0..self.len.div_ceil(LANES)).rev() {
            let starts = &self.starts.as_chunks::<LANES>().0[group];
            let ends = &self.ends.as_chunks::<LANES>().0[group];
            let overlaps =
                |lane: usize| i32::from(starts[lane] < end) & i32::from(start < ends[lane]);
            if (0..LANES).map(overlaps).fold(0, |any, lane| any | lane) == 0 {
                continue;
            }
            let lanes = group * LANES..(group + 1) * LANES;
            for at in lanes.rev() {
                if self.starts[at] < end && start < self.ends[at] {
                    dropped = Some(self.remove(at));
                }
            }
        }
        (dropped, before - self.len)
    }

    #[inline(never)]
    fn remove(&mut self, at: usize) -> Span {
        let removed = self.at(at);
        self.len -= 1;
        self.set(at, self.at(self.len));
        self.set(self.len, Span { start: 0, end: 0 });
        removed
    }

    /// Where `frames` frames at a multiple of `align` begin in the shortest run that has room for
    /// them, the lowest of several.
    #[inline(never)]
    pub(super) fn best(&self, frames: usize, align: usize) -> Option<usize> {
        let (frames, mask) = (frames as i32, align as i32 - 1);
        let length = |start: i32, end: i32| {
            let first = start.wrapping_add(mask) & !mask;
            let fits = first.wrapping_add(frames) <= end;
            if fits { end.wrapping_sub(start) } else { i32::MAX }
        };
        let shortest = self.least(length);
        if shortest == i32::MAX {
            return None;
        }
        let lowest =
            self.least(|start, end| if length(start, end) == shortest { start } else { i32::MAX });
        Some(align_up(lowest as usize, align))
    }

    /// The least value that `of` returns for any place.
    #[inline(always)]
    fn least(&self, of: impl Fn(i32, i32) -> i32) -> i32 {
        let mut least = [i32::MAX; LANES];
        let groups =
            self.starts.as_chunks::<LANES>().0.iter().zip(self.ends.as_chunks::<LANES>().0);
        for (starts, ends) in groups.take(self.len.div_ceil(LANES)) {
            for lane in 0..LANES {
                least[lane] = least[lane].min(of(starts[lane], ends[lane]));
            }
        }
        least.into_iter().fold(i32::MAX, i32::min)
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_are_noted() {
        let span = |at: usize, length| Span { start: at * 1000, end: at * 1000 + length };
        let mut notes = Notes::new();
        assert!((0..NOTED).all(|at| notes.add(span(at, 100 + at)).is_none()));
        assert_eq!(notes.add(span(NOTED, 99)), Some(span(NOTED, 99)));
        assert_eq!(notes.add(span(NOTED, 100)), Some(span(NOTED, 100)), "one as long stays");
        assert_eq!(notes.add(span(NOTED, 101)), Some(span(0, 100)));
        assert_eq!(notes.add(span(0, 500)), Some(span(NOTED, 101)), "the first as short");
        assert_eq!(notes.len(), NOTED);
        assert_eq!(notes.iter().map(Span::length).min(), Some(101));
        assert_eq!(notes.best(400, 1), Some(0));
        notes.clear();
        assert_eq!((notes.len(), notes.best(1, 1)), (0, None));
    }
}
