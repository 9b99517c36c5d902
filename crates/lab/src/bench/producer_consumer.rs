//! Producers and consumers: what one thread allocates, another frees.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use super::heap::{Object, stamp};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};

const SIZES: [u32; 11] = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The workload.
pub(crate) struct ProducerConsumer;

impl Workload for ProducerConsumer {
    fn name(&self) -> &'static str {
        "producer-consumer"
    }

    fn about(&self) -> &'static str {
        "half of the threads allocate `ops` objects of 8 to 256 bytes each and pass them in \
         batches of `batch` through one queue of `depth` batches; the other half free them; an \
         operation is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "after xmalloc-test (Lever and Boreham, malloc() Performance in a Multithreaded Linux \
         Environment, USENIX 2000)"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 2_000_000).with("batch", 256).with("depth", 16)
    }

    fn rows(&self) -> Vec<Parameters> {
        let many = Parameters { threads: 100, ops: 40_000, ..self.defaults() };
        vec![self.defaults(), many.with("depth", 64)]
    }

    fn published_rows(&self) -> Vec<Parameters> {
        // One thread alone is not a pair.
        self.defaults().on_threads().split_off(1)
    }

    fn domains(&self) -> Domains {
        &[("batch", Domain::Whole(1, 1_000_000)), ("depth", Domain::Whole(1, 1_000_000))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        producers(parameters)?;
        let threads = parameters.threads as f64;
        let batches = threads + parameters.get::<f64>("depth")?;
        let queued = script::written_bytes(0.0, batches * parameters.get::<f64>("batch")?);
        Ok(queued + threads * parameters.ops as f64)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let batch: usize = parameters.get("batch")?;
        let depth: usize = parameters.get("depth")?;
        let producers = producers(parameters)?;
        let queue = Queue::new(parameters.threads + depth, depth, batch, producers);
        let inputs: Vec<Option<Vec<u8>>> = parameters
            .seeds()
            .enumerate()
            .map(|(thread, mut random)| {
                // Producers and consumers alternate, in the order in which they would be started.
                (thread % 2 == 0).then(|| (0..parameters.ops).map(|_| random.u8(0..11)).collect())
            })
            .collect();
        let timed = team::run(inputs, |sizes| match sizes {
            Some(sizes) => produce(&queue, batch, &sizes),
            None => consume(&queue),
        })?;
        team::outcome(parameters.ops * producers as u64, timed)
    }
}

/// Half of the threads.
fn producers(parameters: &Parameters) -> anyhow::Result<usize> {
    anyhow::ensure!(
        parameters.threads.is_multiple_of(2),
        "--threads {}: producer-consumer needs an even number",
        parameters.threads
    );
    Ok(parameters.threads / 2)
}

fn produce(queue: &Queue, batch: usize, sizes: &[u8]) -> Tally {
    let mut tally = Tally::default();
    for (chunk, sizes) in sizes.chunks(batch).enumerate() {
        let mut objects = queue.empty();
        for (place, &size) in sizes.iter().enumerate() {
            let size_bytes = SIZES[usize::from(size)];
            let stamp = stamp((chunk * batch + place) as u64, size_bytes);
            objects.push(Object::allocate(size_bytes, stamp, &mut tally));
        }
        queue.put(objects);
    }
    queue.leave();
    tally
}

fn consume(queue: &Queue) -> Tally {
    let mut tally = Tally::default();
    while let Some(mut objects) = queue.take() {
        objects.drain(..).for_each(|object| object.free(&mut tally));
        queue.give_back(objects);
    }
    tally
}

/// A bounded queue of batches. Empty batches circulate, so nothing is allocated while the queue is
/// used.
struct Queue {
    state: Mutex<State>,
    can_put: Condvar,
    can_take: Condvar,
    depth: usize,
    producers: AtomicUsize,
}

struct State {
    full: std::collections::VecDeque<Vec<Object>>,
    empty: Vec<Vec<Object>>,
}

impl Queue {
    fn new(batches: usize, depth: usize, batch: usize, producers: usize) -> Self {
        let state = State {
            full: std::collections::VecDeque::with_capacity(depth),
            empty: (0..batches).map(|_| Vec::with_capacity(batch)).collect(),
        };
        Self {
            state: Mutex::new(state),
            can_put: Condvar::new(),
            can_take: Condvar::new(),
            depth,
            producers: AtomicUsize::new(producers),
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the queue locked")
    }

    /// An empty batch. There is one for each thread and each place in the queue.
    fn empty(&self) -> Vec<Object> {
        self.locked().empty.pop().expect("as many batches as threads and places")
    }

    fn give_back(&self, batch: Vec<Object>) {
        self.locked().empty.push(batch);
    }

    fn put(&self, batch: Vec<Object>) {
        let full = |state: &mut State| state.full.len() == self.depth;
        let mut state =
            self.can_put.wait_while(self.locked(), full).expect("no thread panics while waiting");
        state.full.push_back(batch);
        drop(state);
        self.can_take.notify_one();
    }

    /// The oldest batch; `None` when every producer has left and the queue is empty.
    fn take(&self) -> Option<Vec<Object>> {
        let nothing_yet =
            |state: &mut State| state.full.is_empty() && self.producers.load(Ordering::Relaxed) > 0;
        let mut state = self
            .can_take
            .wait_while(self.locked(), nothing_yet)
            .expect("no thread panics while waiting");
        let batch = state.full.pop_front();
        drop(state);
        self.can_put.notify_one();
        batch
    }

    /// A producer is done.
    fn leave(&self) {
        // Under the lock, so that a consumer between its test and its wait cannot miss it.
        let state = self.locked();
        self.producers.fetch_sub(1, Ordering::Relaxed);
        drop(state);
        self.can_take.notify_all();
    }
}
