//! A server through its days, in real time: the load swings, sizes change, and memory is observed
//! throughout.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::heap::Object;
use super::script::{Draft, Step, drain, empty_slots, execute_counted};
use super::{Domain, Domains, Memory, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::{Window, resident_bytes};
use crate::threads;

/// Ticks in a day. In each tick a thread does its share of work and sleeps for the rest.
const TICKS: usize = 600;

/// The parts of the day: the load at the beginning and at the end of each, in per cent of the peak,
/// and the sizes of the values put into the cache meanwhile, bytes.
const HOURS: [(u64, u64, (u32, u32)); 6] = [
    (25, 100, (64, 512)),
    (100, 100, (64, 512)),
    (100, 100, (512, 4096)),
    (100, 25, (512, 4096)),
    (25, 25, (4096, 40_000)),
    (60, 25, (200, 2000)),
];

/// How many objects a session has, of which sizes, and the share of live memory that belongs to
/// sessions, in per cent. The rest is the cache.
const SESSION_OBJECTS: (usize, usize) = (10, 30);
const SESSION_BYTES: (u32, u32) = (24, 1000);
const SESSIONS_SHARE: u64 = 30;

/// How many objects a request has, and of which sizes. One in eight is a buffer.
const REQUEST_OBJECTS: (usize, usize) = (8, 40);
const REQUEST_BYTES: (u32, u32) = (16, 1500);
const BUFFER_BYTES: (u32, u32) = (2000, 60_000);

/// The workload.
pub(crate) struct Server;

impl Workload for Server {
    fn name(&self) -> &'static str {
        "server"
    }

    fn about(&self) -> &'static str {
        "for `seconds` of real time, in days of `day_seconds`, each thread does `ops` operations a \
         day, a share in each tick: requests whose objects all go at once, sessions of 10 to 30 \
         objects that close at random, and a cache of keys and values that forgets the oldest; \
         load grows to `mib` MiB of all threads together, stays, shrinks to a quarter, surges, and \
         the sizes of values change with the hour; the figure of interest is the mean over time of \
         resident over live memory; not part of `bench all`; an operation is one malloc or free"
    }

    fn source(&self) -> &'static str {
        "hectare; fragmentation of long-running servers, and memory that is not given back"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 8_000_000).with("mib", 64).with("seconds", 6).with("day_seconds", 6)
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn memory(&self) -> Memory {
        Memory::Ratio { name: "resident_over_live_ratio", live: "harmonic_live_bytes" }
    }

    fn domains(&self) -> Domains {
        &[
            ("mib", Domain::Whole(1, 1 << 20)),
            ("seconds", Domain::Number(0.001, 1e6)),
            ("day_seconds", Domain::Number(0.001, 1e6)),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let live = parameters.get::<f64>("mib")? * f64::from(1 << 20) / 64.0;
        let steps = parameters.threads as f64 * parameters.ops as f64;
        Ok(script::written_bytes(steps, live))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let top_bytes = (parameters.get::<u64>("mib")? << 20) / parameters.threads as u64;
        let seconds: f64 = parameters.get("seconds")?;
        let day_seconds: f64 = parameters.get("day_seconds")?;
        let clock = Clock {
            tick: Duration::from_secs_f64(day_seconds / TICKS as f64),
            ticks: (seconds / day_seconds * TICKS as f64).ceil() as u32,
        };
        let mut workers: Vec<Worker> = parameters
            .seeds()
            .map(|random| Worker::new(Script::write(random, parameters.ops as usize, top_bytes)))
            .collect();
        serve(&mut workers, clock, top_bytes as i64 / 8)
    }
}

/// The times of the ticks.
#[derive(Clone, Copy)]
struct Clock {
    tick: Duration,
    ticks: u32,
}

impl Clock {
    /// Sleeps until `tick` ticks and the fraction `part` of one have passed since `start`.
    fn sleep_until(self, start: Instant, tick: u32, part: f64) {
        let due = self.tick * tick + self.tick.mul_f64(part);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

/// Runs the workers, and looks at memory in the middle of each tick, once `first_bytes` are live.
fn serve(workers: &mut [Worker], clock: Clock, first_bytes: i64) -> anyhow::Result<Outcome> {
    let live = AtomicI64::new(0);
    let before_bytes = resident_bytes()?;
    let [ready, go, done, leave] = [(); 4].map(|()| Barrier::new(workers.len() + 1));
    let (window, samples) = std::thread::scope(|scope| {
        for worker in &mut *workers {
            let (live, barriers) = (&live, [&ready, &go, &done, &leave]);
            threads::start(scope, move || worker.work(clock, live, barriers));
        }
        ready.wait();
        // Every barrier is passed before an error is returned, since the threads wait for this one.
        let window = Window::open_for_threads(before_bytes);
        let baseline_bytes = resident_bytes();
        go.wait();
        let samples =
            baseline_bytes.and_then(|bytes| Samples::take(clock, &live, bytes, first_bytes));
        done.wait();
        let window = window.and_then(Window::close);
        leave.wait();
        anyhow::Ok((window?, samples?))
    })?;
    let mut tally = Tally::default();
    workers.iter().for_each(|worker| tally.add(&worker.tally));
    let ops = workers.iter().map(|worker| worker.ops).sum();
    let ns = workers.iter().map(|worker| worker.busy.as_nanos() as u64).max().unwrap_or(0);
    let mut outcome = team::finish(ops, ns, window, tally)?;
    outcome.live_peak_bytes = samples.live_peak_bytes as u64;
    let count = samples.count;
    anyhow::ensure!(
        count > 0.0,
        "it was done before memory was looked at once: more --ops or seconds=N"
    );
    for (name, figure) in [
        ("resident_over_live_ratio", samples.ratio_sum / count),
        ("mean_over_mean_ratio", samples.resident_sum / samples.live_sum),
        ("worst_ratio", samples.worst_ratio),
        ("mean_live_bytes", samples.live_sum / count),
        // The bytes that, resident in addition throughout, raise the mean of the ratios by one.
        ("harmonic_live_bytes", count / samples.inverse_live_sum),
        ("mean_resident_bytes", samples.resident_sum / count),
    ] {
        outcome.more.insert(name.to_owned(), figure);
    }
    Ok(outcome)
}

/// Sums of what was observed of memory.
#[derive(Default)]
struct Samples {
    count: f64,
    ratio_sum: f64,
    worst_ratio: f64,
    live_sum: f64,
    inverse_live_sum: f64,
    resident_sum: f64,
    live_peak_bytes: i64,
}

impl Samples {
    fn take(
        clock: Clock,
        live: &AtomicI64,
        baseline_bytes: u64,
        first_bytes: i64,
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        let mut samples = Self::default();
        for tick in 0..clock.ticks {
            clock.sleep_until(start, tick, 0.5);
            let live_bytes = live.load(Relaxed);
            if live_bytes < first_bytes.max(1) {
                continue;
            }
            let live = live_bytes as f64;
            samples.count += 1.0;
            let resident = resident_bytes()?.saturating_sub(baseline_bytes) as f64;
            samples.ratio_sum += resident / live;
            samples.worst_ratio = samples.worst_ratio.max(resident / live);
            samples.live_sum += live;
            samples.inverse_live_sum += 1.0 / live;
            samples.resident_sum += resident;
            samples.live_peak_bytes = samples.live_peak_bytes.max(live_bytes);
        }
        Ok(samples)
    }
}

/// A thread of the server, and its work so far.
struct Worker {
    script: Script,
    slots: Vec<Object>,
    tally: Tally,
    ops: u64,
    busy: Duration,
}

impl Worker {
    fn new(script: Script) -> Self {
        let slots = empty_slots(script.slots);
        Self { script, slots, tally: Tally::default(), ops: 0, busy: Duration::ZERO }
    }

    fn work(&mut self, clock: Clock, live: &AtomicI64, barriers: [&Barrier; 4]) {
        let [ready, go, done, leave] = barriers;
        ready.wait();
        go.wait();
        let start = Instant::now();
        for tick in 0..clock.ticks {
            clock.sleep_until(start, tick, 0.0);
            let begun = Instant::now();
            let (place, steps) = self.script.tick(tick as usize % TICKS);
            let gained = execute_counted(steps, place, &mut self.slots, &mut self.tally);
            self.busy += begun.elapsed();
            self.ops += steps.len() as u64;
            live.fetch_add(gained, Relaxed);
        }
        done.wait();
        leave.wait();
        drain(&mut self.slots, &mut self.tally);
    }
}

/// The operations of a day. The next day repeats them, on what the day before has left: a step
/// empties its slot first.
struct Script {
    steps: Vec<Step>,
    /// Where the steps of each tick begin.
    begins: Vec<usize>,
    slots: usize,
}

impl Script {
    fn write(random: fastrand::Rng, ops: usize, top_bytes: u64) -> Self {
        let mut author = Author { random, ..Author::default() };
        let mut begins = Vec::with_capacity(TICKS + 1);
        for tick in 0..TICKS {
            begins.push(author.draft.steps.len());
            let (from, to, values) = HOURS[tick * HOURS.len() / TICKS];
            let within = (tick * HOURS.len() % TICKS) as u64;
            let load = (from * (TICKS as u64 - within) + to * within) / TICKS as u64;
            let target = top_bytes * load / 100;
            while author.draft.steps.len() < ops * (tick + 1) / TICKS {
                author.write_event(target, values);
            }
        }
        begins.push(author.draft.steps.len());
        let slots = author.draft.slots();
        Self { steps: author.draft.steps, begins, slots }
    }

    /// The steps of a tick of the day, and the place of the first.
    fn tick(&self, tick: usize) -> (usize, &[Step]) {
        let place = self.begins[tick];
        (place, &self.steps[place..self.begins[tick + 1]])
    }
}

/// Objects that are made and freed together, by their slots.
type Group = Vec<u32>;

/// Writes a script.
#[derive(Default)]
struct Author {
    random: fastrand::Rng,
    draft: Draft,
    sessions: Vec<Group>,
    sessions_bytes: u64,
    /// The groups of the cache, the oldest first.
    cache: VecDeque<Group>,
    cache_bytes: u64,
}

impl Author {
    /// Writes the next event: a request, a new session or a new cache entry, and the frees that
    /// make room for it.
    fn write_event(&mut self, target_bytes: u64, values: (u32, u32)) {
        let sessions_target = target_bytes * SESSIONS_SHARE / 100;
        match self.random.u32(0..16) {
            0..2 => {
                let count = self.random.usize(REQUEST_OBJECTS.0..=REQUEST_OBJECTS.1);
                let mut request: Group = (0..count).map(|_| self.allocate_for_request()).collect();
                self.random.shuffle(&mut request);
                self.free(request);
            }
            2 => {
                let count = self.random.usize(SESSION_OBJECTS.0..=SESSION_OBJECTS.1);
                let session = (0..count).map(|_| self.allocate(SESSION_BYTES)).collect();
                self.sessions_bytes += self.bytes_of(&session);
                self.sessions.push(session);
                while self.sessions_bytes > sessions_target {
                    let at = self.random.usize(0..self.sessions.len());
                    let session = self.sessions.swap_remove(at);
                    self.sessions_bytes -= self.bytes_of(&session);
                    self.free(session);
                }
            }
            _ => {
                // A node of the table, a key, a value.
                let entry = [(56, 56), (16, 64), values].map(|sizes| self.allocate(sizes));
                let entry = entry.to_vec();
                self.cache_bytes += self.bytes_of(&entry);
                self.cache.push_back(entry);
                while self.cache_bytes > target_bytes - sessions_target {
                    let Some(entry) = self.cache.pop_front() else { break };
                    self.cache_bytes -= self.bytes_of(&entry);
                    self.free(entry);
                }
            }
        }
    }

    fn bytes_of(&self, group: &Group) -> u64 {
        group.iter().map(|&slot| u64::from(self.draft.size_bytes(slot))).sum()
    }

    fn allocate_for_request(&mut self) -> u32 {
        let buffer = self.random.u32(0..8) == 0;
        self.allocate(if buffer { BUFFER_BYTES } else { REQUEST_BYTES })
    }

    fn allocate(&mut self, sizes: (u32, u32)) -> u32 {
        self.draft.allocate(self.random.u32(sizes.0..=sizes.1))
    }

    fn free(&mut self, group: Group) {
        group.into_iter().for_each(|slot| self.draft.free(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_follows_its_load() {
        let top_bytes = 4 << 20;
        let script = Script::write(fastrand::Rng::with_seed(1), 1_000_000, top_bytes);
        let mut held = vec![0; script.slots];
        let mut live = 0_i64;
        let mut after = Vec::new();
        for tick in 0..TICKS {
            for step in script.tick(tick).1 {
                let was = std::mem::replace(&mut held[step.slot as usize], step.size_bytes);
                live += i64::from(step.size_bytes) - i64::from(was);
            }
            after.push(live as f64 / top_bytes as f64);
        }
        let about = |tick: usize, load: f64| (after[tick] - load).abs() < 0.05;
        assert!(about(150, 1.0) && about(299, 1.0), "{} {}", after[150], after[299]);
        assert!(about(450, 0.25) && about(599, 0.25), "{} {}", after[450], after[599]);
        assert!(about(505, 0.6), "{}", after[505]);
    }
}
