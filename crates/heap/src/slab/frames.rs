//! The states of a slab's frames: whether each holds memory, and what the page map says of it.
//!
//! | bare | hidden | |
//! |------|--------|-|
//! | no   | no     | objects may be in use there |
//! | yes  | no     | no memory has come since the slab was opened |
//! | yes  | yes    | its memory has gone, and the page map says that nothing is allocated there |
//! | no   | yes    | its memory has come along with others': no object was taken there yet |

use core::ptr::NonNull;

use crate::gathered::Gathered;
use crate::region::{FRAME_BYTES, SLAB_FRAMES};

const _: () = assert!(SLAB_FRAMES == 16, "one bit a frame in a u16");
const ALL: u16 = u16::MAX;

/// The bits of the frames `first` to `last`.
pub(super) fn bits(first: usize, last: usize) -> u16 {
    (ALL >> (SLAB_FRAMES - 1 - last)) & (ALL << first)
}

/// The stretches of set bits: the first frame of each, and its length.
pub(super) fn stretches(mut bits: u16) -> impl Iterator<Item = (usize, usize)> {
    core::iter::from_fn(move || {
        let first = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        let length = (bits >> first).trailing_ones() as usize;
        bits &= !self::bits(first, first + length - 1);
        Some((first, length))
    })
}

/// One bit a frame. All zeros mean that the frames hold memory and that the page map tells the
/// slab's class for them.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Frames {
    /// The frame holds no memory.
    bare: u16,
    /// The frame was scavenged, and the page map says that nothing is allocated there.
    hidden: u16,
    /// The page map must still be told of objects taken in the frame.
    to_show: u16,
    /// The slab is given up: the page map says so for all frames that are not hidden.
    given_up: bool,
    /// How many threads are populating stretches of the frames, without a lock. (A thread that a
    /// fork interrupts here never finishes in the child, nor do the objects that it has taken come
    /// back there.)
    coming: u8,
}

impl Frames {
    /// The frames of a slab that was just opened.
    pub(super) fn new(bare: bool) -> Self {
        Self { bare: if bare { ALL } else { 0 }, hidden: 0, to_show: 0, given_up: false, coming: 0 }
    }

    /// The frames that hold memory.
    pub(super) fn held(&self) -> u16 {
        !self.bare
    }

    /// How many frames hold no memory.
    pub(super) fn bare_count(&self) -> usize {
        self.bare.count_ones() as usize
    }

    /// Notes that the frames `gone` lose their memory, or will never get any, and that nothing is
    /// allocated there.
    pub(super) fn go(&mut self, gone: u16) {
        self.bare |= gone;
        self.hidden |= gone;
    }

    /// Whether an object in the frames `first` to `last` cannot simply be taken, because one of
    /// them is bare or hidden.
    #[inline]
    pub(super) fn are_away(&self, (first, last): (usize, usize)) -> bool {
        let away = self.bare | self.hidden;
        away != 0 && away & bits(first, last) != 0
    }

    /// Notes that an object is taken in the frames `first` to `last`, some of which
    /// [are away](Self::are_away). `gathered` notes the bare ones and the next bare ones up to the
    /// frame `end`, at most `stretch` in all. The slab is at `start`.
    #[cold]
    pub(super) fn come(
        &mut self,
        (first, last): (usize, usize),
        end: usize,
        stretch: usize,
        start: NonNull<u8>,
        gathered: &mut Gathered,
    ) {
        let touched = bits(first, last);
        let (bare, hidden) = (self.bare, self.hidden);
        self.to_show |= hidden & touched;
        self.hidden &= !touched;
        if bare & touched == 0 {
            return;
        }
        // The next bare frames are needed next, whatever lies between: a call of their own would
        // cost as much. (Frames behind the last object are left out: they may be sealed.)
        let first = (bare & touched).trailing_zeros() as usize;
        let mut last = first;
        let mut ahead = bare & !bits(0, first) & bits(0, end);
        for _ in 1..stretch {
            if ahead == 0 {
                break;
            }
            last = ahead.trailing_zeros() as usize;
            ahead &= ahead - 1;
        }
        if last > first && self.coming < u8::MAX {
            // SAFETY: the slab has SLAB_FRAMES frames.
            let start = unsafe { start.add(first * FRAME_BYTES) };
            if gathered.note_bare(start, (last + 1 - first) * FRAME_BYTES) {
                self.bare &= !bits(first, last);
                self.coming += 1;
            }
        }
        self.bare &= !touched;
        let revived = bare & !self.bare;
        gathered.revived_frames += revived.count_ones() as usize;
        gathered.returned_frames += (revived & hidden).count_ones() as usize;
    }

    /// Notes that the memory of a stretch has come.
    pub(super) fn have_come(&mut self) {
        self.coming = self.coming.saturating_sub(1);
    }

    /// Whether memory is on its way to any frame. If such frames went before it comes, it would be
    /// there and count as gone.
    pub(super) fn are_coming(&self) -> bool {
        self.coming > 0
    }

    /// Notes that objects are taken from the slab again: it is no longer given up.
    #[inline]
    pub(super) fn resume(&mut self) {
        if core::mem::take(&mut self.given_up) {
            self.to_show |= !self.hidden;
        }
    }

    /// Gives the slab up. Returns the frames for which the page map must say so: none if it was
    /// given up before.
    pub(super) fn give_up(&mut self) -> u16 {
        if core::mem::replace(&mut self.given_up, true) { 0 } else { !self.hidden }
    }

    /// Whether it is given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// The frames that must be entered into the page map after objects were taken: hidden ones in
    /// which they were taken, and if the slab had been given up, all that are not hidden.
    pub(super) fn take_to_show(&mut self) -> u16 {
        core::mem::take(&mut self.to_show)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes an object in the frames `touched`. Frames behind the frame 12 hold no object.
    fn take(frames: &mut Frames, touched: (usize, usize), stretch: usize) -> Gathered {
        let mut gathered = Gathered::new();
        if frames.are_away(touched) {
            frames.come(touched, 12, stretch, NonNull::dangling(), &mut gathered);
        }
        gathered
    }

    fn counts(gathered: &Gathered) -> [usize; 3] {
        let [mut populated_bytes, revived, returned] =
            [0, gathered.revived_frames, gathered.returned_frames];
        gathered.bare().for_each(|(_, bytes)| populated_bytes += bytes);
        [populated_bytes / FRAME_BYTES, revived, returned]
    }

    #[test]
    fn bare_frames_come_with_the_next_ones() {
        let mut frames = Frames::new(true);
        assert_eq!(counts(&take(&mut frames, (0, 1), 4)), [4, 4, 0]);
        assert_eq!(frames.held(), 0b1111);
        assert_eq!(counts(&take(&mut frames, (2, 3), 4)), [0, 0, 0]);
        assert_eq!(counts(&take(&mut frames, (3, 4), 1)), [0, 1, 0], "by touch");
        assert_eq!(
            counts(&take(&mut frames, (10, 10), 16)),
            [3, 3, 0],
            "none behind the last object"
        );
        assert_eq!(frames.bare_count(), SLAB_FRAMES - 5 - 3);
        assert_eq!(frames.take_to_show(), 0, "the page map has them all");
    }

    #[test]
    fn what_had_gone_is_shown_where_an_object_is_taken() {
        let mut frames = Frames::new(false);
        frames.go(0b0110_0100);
        assert_eq!(counts(&take(&mut frames, (2, 2), 16)), [5, 3, 3], "what lies between is there");
        assert_eq!((frames.held(), frames.take_to_show()), (ALL, 0b100));
        assert_eq!(counts(&take(&mut frames, (5, 7), 16)), [0, 0, 0]);
        assert_eq!((frames.take_to_show(), frames.take_to_show()), (0b110_0000, 0));
    }

    #[test]
    fn a_slab_given_up_is_shown_but_for_what_has_gone() {
        let mut frames = Frames::new(false);
        frames.go(0b11);
        assert_eq!((frames.give_up(), frames.give_up()), (!0b11, 0));
        frames.resume();
        assert!(!frames.is_given_up());
        assert_eq!(counts(&take(&mut frames, (1, 2), 1)), [0, 1, 1]);
        assert_eq!(frames.take_to_show(), !0b01);
    }

    #[test]
    fn finds_stretches() {
        let found = |bits, expected: &[(usize, usize)]| {
            assert!(stretches(bits).eq(expected.iter().copied()), "{bits:b}");
        };
        found(0, &[]);
        found(ALL, &[(0, 16)]);
        found(0b1000_0000_0110_0001, &[(0, 1), (5, 2), (15, 1)]);
    }
}
