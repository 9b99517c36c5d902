//! How much memory many idle threads keep.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::heap::{Object, stamp};
use super::script::{drain, empty_slots};
use super::{Domain, Domains, Memory, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::{Window, resident_bytes};
use crate::threads;

/// The workload.
pub(crate) struct IdleThreads;

impl Workload for IdleThreads {
    fn name(&self) -> &'static str {
        "idle-threads"
    }

    fn about(&self) -> &'static str {
        "`threads` threads allocate `ops` objects of 16 to 256 bytes each (about 100 KB), free \
         them all and sleep; resident memory after `sleep_ms` is the figure of interest; an \
         operation is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "hectare; the shape of a server with a thread per connection"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1000, 750).with("sleep_ms", 100)
    }

    fn memory(&self) -> Memory {
        Memory::Figure("idle_bytes")
    }

    fn domains(&self) -> Domains {
        &[("sleep_ms", Domain::Whole(0, 3_600_000))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let objects = parameters.ops as f64;
        Ok(parameters.threads as f64 * script::written_bytes(objects, objects))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let sleep_ms: u64 = parameters.get("sleep_ms")?;
        let inputs: Vec<_> = parameters
            .seeds()
            .map(|mut random| {
                let count = parameters.ops as usize;
                let sizes: Vec<u32> = (0..count).map(|_| random.u32(16..=256)).collect();
                (sizes, empty_slots(count))
            })
            .collect();
        let before_bytes = resident_bytes()?;
        let [ready, go, done, leave] = [(); 4].map(|()| Barrier::new(parameters.threads + 1));
        std::thread::scope(|scope| {
            let threads: Vec<_> = inputs
                .into_iter()
                .map(|(sizes, slots)| {
                    let barriers = [&ready, &go, &done, &leave];
                    let builder = std::thread::Builder::new().stack_size(64 * 1024);
                    threads::start_by(builder, scope, move || live(&sizes, slots, barriers))
                })
                .collect();
            ready.wait();
            let window = Window::open_for_threads(before_bytes);
            let baseline_bytes = resident_bytes();
            let start = Instant::now();
            go.wait();
            done.wait();
            let ns = start.elapsed().as_nanos() as u64;
            std::thread::sleep(Duration::from_millis(sleep_ms));
            let idle_bytes = resident_bytes();
            let window = window.and_then(Window::close);
            leave.wait();
            let mut tally = Tally::default();
            for thread in threads {
                tally.add(&thread.join().expect("an idle thread panicked"));
            }
            let ops = parameters.ops * parameters.threads as u64;
            let mut outcome = team::finish(ops, ns, window?, tally)?;
            let idle_bytes = idle_bytes?.saturating_sub(baseline_bytes?);
            outcome.more.insert("idle_bytes".to_owned(), idle_bytes as f64);
            Ok(outcome)
        })
    }
}

fn live(sizes: &[u32], mut slots: Vec<Object>, barriers: [&Barrier; 4]) -> Tally {
    let [ready, go, done, leave] = barriers;
    let mut tally = Tally::default();
    ready.wait();
    go.wait();
    for (place, (slot, &size_bytes)) in slots.iter_mut().zip(sizes).enumerate() {
        *slot = Object::allocate(size_bytes, stamp(place as u64, size_bytes), &mut tally);
    }
    drain(&mut slots, &mut tally);
    done.wait();
    leave.wait();
    tally
}
