//! What a heap asks for: from a seeded generator, or from a trace through a small model of slabs.

use std::path::Path;

use anyhow::Context;
use hectare_trace::{Event, ObjectId, Ordered, Trace};
use rustc_hash::FxHashMap;

use super::super::subjects::FRAME_BYTES;
use super::Args;

/// Frames of a slab, and the largest object in one, bytes: those of hectare's heap.
const SLAB_FRAMES: usize = 16;
const LARGEST_SMALL_BYTES: usize = 32 << 10;
/// Runs of up to this many frames come in steps.
const LARGEST_STEPPED_FRAMES: usize = 256;

/// One request.
#[derive(Clone, Copy)]
pub(super) enum Op {
    Take { slot: u32, frames: u32, is_slab: bool },
    Give { slot: u32 },
}

/// A list of requests, the same for every candidate.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) name: String,
    pub(super) ops: Vec<Op>,
    free_slots: Vec<u32>,
    pub(super) frames_of: Vec<u32>,
    live_frames: usize,
    pub(super) peak_frames: usize,
}

impl Requests {
    fn take(&mut self, frames: usize, is_slab: bool) -> u32 {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.frames_of.push(0);
            (self.frames_of.len() - 1) as u32
        });
        self.frames_of[slot as usize] = frames as u32;
        self.live_frames += frames;
        self.peak_frames = self.peak_frames.max(self.live_frames);
        self.ops.push(Op::Take { slot, frames: frames as u32, is_slab });
        slot
    }

    fn give(&mut self, slot: u32) {
        self.live_frames -= self.frames_of[slot as usize] as usize;
        self.free_slots.push(slot);
        self.ops.push(Op::Give { slot });
    }

    /// Half slabs, half runs of 9 to 1024 frames, short ones more often; random ones are freed.
    pub(super) fn generated(args: &Args) -> Self {
        let mut random = fastrand::Rng::with_seed(args.seed);
        let mut made = Self { name: "generated".to_owned(), ..Self::default() };
        let mut held: Vec<u32> = Vec::new();
        while made.ops.len() < args.ops {
            if made.live_frames < args.live {
                let is_slab = random.bool();
                let length = 2f64.powf(3.2 + 6.8 * random.f64()) as usize;
                let frames = if is_slab { SLAB_FRAMES } else { stepped(length) };
                held.push(made.take(frames, is_slab));
            } else {
                let ended = held.swap_remove(random.usize(..held.len()));
                made.give(ended);
            }
        }
        made
    }

    /// The requests behind the objects of a trace.
    pub(super) fn of_trace(path: &Path, name: String) -> anyhow::Result<Self> {
        let trace = Trace::open(path).with_context(|| format!("opening {}", path.display()))?;
        let mut made = Self { name, ..Self::default() };
        let mut model = Model::default();
        let mut rows = Ordered::new(&trace);
        while let Some(step) = rows.next_step()? {
            let record = step.record;
            if let Event::Free { object: Some(object) }
            | Event::SizedFree { object: Some(object) }
            | Event::Realloc { old: Some(object), .. } = record.event
            {
                model.end(object, &mut made);
            }
            if let (Some(object), Some(bytes)) = (record.made, record.event.asked_bytes()) {
                model.begin(object, bytes as usize, &mut made);
            }
        }
        trace.check().with_context(|| path.display().to_string())?;
        Ok(made)
    }
}

/// The length of a run for `frames` frames: eight steps to each doubling, as in the heap.
fn stepped(frames: usize) -> usize {
    if frames > LARGEST_STEPPED_FRAMES {
        return frames;
    }
    frames.next_multiple_of((frames.next_power_of_two() / 16).max(1))
}

/// Which slabs and runs the objects of a trace need.
#[derive(Default)]
struct Model {
    /// Slabs with room, by the size of their objects.
    with_room: FxHashMap<usize, Vec<usize>>,
    slabs: Vec<Slab>,
    place_of: FxHashMap<ObjectId, Place>,
}

struct Slab {
    slot: u32,
    object_bytes: usize,
    used: usize,
}

#[derive(Clone, Copy)]
enum Place {
    Slab(usize),
    Run(u32),
}

impl Model {
    fn begin(&mut self, object: ObjectId, bytes: usize, requests: &mut Requests) {
        if bytes > LARGEST_SMALL_BYTES {
            let slot = requests.take(stepped(bytes.div_ceil(FRAME_BYTES)), false);
            self.place_of.insert(object, Place::Run(slot));
            return;
        }
        // Steps of 16 bytes up to 128, then eight to each doubling.
        let step = (bytes.next_power_of_two() / 16).max(16);
        let object_bytes = bytes.max(1).next_multiple_of(step);
        let slabs = self.with_room.entry(object_bytes).or_default();
        let at = if let Some(&at) = slabs.last() {
            at
        } else {
            let slot = requests.take(SLAB_FRAMES, true);
            self.slabs.push(Slab { slot, object_bytes, used: 0 });
            slabs.push(self.slabs.len() - 1);
            self.slabs.len() - 1
        };
        self.slabs[at].used += 1;
        if self.slabs[at].used == SLAB_FRAMES * FRAME_BYTES / object_bytes {
            slabs.pop();
        }
        self.place_of.insert(object, Place::Slab(at));
    }

    fn end(&mut self, object: ObjectId, requests: &mut Requests) {
        match self.place_of.remove(&object) {
            Some(Place::Run(slot)) => requests.give(slot),
            Some(Place::Slab(at)) => {
                let Slab { slot, object_bytes, used } = &mut self.slabs[at];
                let slabs = self.with_room.entry(*object_bytes).or_default();
                if *used == SLAB_FRAMES * FRAME_BYTES / *object_bytes {
                    slabs.push(at);
                }
                *used -= 1;
                if *used == 0 {
                    slabs.retain(|&other| other != at);
                    requests.give(*slot);
                }
            }
            None => {}
        }
    }
}
