//! Compressing chunks on every processor, in the order in which they were given.
//!
//! ```text
//!           ┌─▶ worker 0 ─┐
//!  chunk n ─┼─▶ worker 1 ─┼─▶ chunk n − MOST   chunk n goes to worker n mod workers, and comes
//!           └─▶ worker 2 ─┘                    back before those given after it
//! ```
//!
//! 1. At most [`CHUNKS_EACH`] chunks per worker are under way, whatever the length of the trace.
//! 2. A worker is started with its first chunk, so a short trace costs one thread.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::frame::{Cuts, Packer};

/// Chunks under way for each worker: one in its hands, and the next.
const CHUNKS_EACH: usize = 2;

/// More workers than this would wait for the one thread that reads the rows.
const MOST_WORKERS: usize = 8;

/// Rows of one chunk.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) count: u32,
    pub(crate) cuts: Cuts,
}

#[derive(Debug)]
struct Worker {
    chunks: SyncSender<Rows>,
    packed: Receiver<Vec<u8>>,
}

/// The workers, and a label for each chunk under way.
#[derive(Debug)]
pub(crate) struct Packers<T> {
    workers: Vec<Worker>,
    most: usize,
    given: usize,
    labels: VecDeque<T>,
}

impl<T> Packers<T> {
    pub(crate) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let most = processors.min(MOST_WORKERS);
        Self { workers: Vec::new(), most, given: 0, labels: VecDeque::new() }
    }

    /// Whether the oldest chunk must be taken before another is given.
    pub(crate) fn is_full(&self) -> bool {
        self.labels.len() >= self.most * CHUNKS_EACH
    }

    /// Begins to compress a chunk.
    ///
    /// # Errors
    /// When a thread cannot be started, or has died.
    pub(crate) fn give(&mut self, label: T, rows: Rows) -> io::Result<()> {
        let nth = self.given % self.most;
        if nth == self.workers.len() {
            self.workers.push(Worker::start()?);
        }
        self.workers[nth].chunks.send(rows).map_err(|_| died())?;
        self.given += 1;
        self.labels.push_back(label);
        Ok(())
    }

    /// Waits for the oldest chunk under way; `None` when there is none.
    ///
    /// # Errors
    /// When its thread has died.
    pub(crate) fn take(&mut self) -> io::Result<Option<(T, Vec<u8>)>> {
        let nth = (self.given - self.labels.len()) % self.most;
        let Some(label) = self.labels.pop_front() else { return Ok(None) };
        let packed = self.workers[nth].packed.recv().map_err(|_| died())?;
        Ok(Some((label, packed)))
    }
}

impl Worker {
    /// Starts a thread that ends when there are no more chunks for it.
    fn start() -> io::Result<Self> {
        let (chunks, given) = sync_channel::<Rows>(CHUNKS_EACH);
        let (done, packed) = sync_channel(CHUNKS_EACH);
        thread::Builder::new().name("hectare-pack".to_owned()).spawn(move || {
            let mut packer = Packer::new();
            for rows in given {
                if done.send(packer.pack(&rows.bytes, rows.count, rows.cuts)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { chunks, packed })
    }
}

#[cold]
fn died() -> io::Error {
    io::Error::other("a thread that compresses has died")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Unpacker;

    #[test]
    fn chunks_come_back_in_order_and_a_bounded_number_is_under_way() {
        let mut packers = Packers::new();
        let mut random = fastrand::Rng::with_seed(1);
        let (mut given, mut taken) = (Vec::new(), 0);
        let mut check = |given: &[Vec<u8>], (label, packed): (usize, Vec<u8>)| {
            let mut plain = Vec::new();
            Unpacker::new().unpack(&packed, given[label].len(), &mut plain);
            assert_eq!((label, &plain), (taken, &given[label]));
            taken += 1;
        };
        for label in 0..100 {
            // Chunks of very different lengths finish in a different order than they start.
            let length = random.usize(1..if label % 7 == 0 { 200_000 } else { 100 });
            let bytes: Vec<u8> = (0..length).map(|_| random.u8(0..50)).collect();
            given.push(bytes.clone());
            if packers.is_full() {
                check(&given, packers.take().unwrap().unwrap());
            }
            packers.give(label, Rows { bytes, count: 1, cuts: Cuts::default() }).unwrap();
            assert!(packers.labels.len() <= packers.most * CHUNKS_EACH);
        }
        while let Some(chunk) = packers.take().unwrap() {
            check(&given, chunk);
        }
        assert_eq!(taken, 100);
    }
}
