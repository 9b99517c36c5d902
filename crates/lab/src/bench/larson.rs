//! Larson: server threads that die and leave their objects to their successors.

use std::time::Instant;

use super::heap::{Object, stamp};
use super::script::{Step, drain, execute, live_peak_bytes, replacements};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::Window;
use crate::threads;

/// The workload.
pub(crate) struct Larson;

impl Workload for Larson {
    fn name(&self) -> &'static str {
        "larson"
    }

    fn about(&self) -> &'static str {
        "the main thread fills `slots` objects of 8 to 1000 bytes for each of `threads` lines of \
         threads; each thread replaces `ops` random ones (`read_back=no`: without a look at what is \
         in them), then starts its successor on the same slots and dies; `lives` threads a line; an \
         operation is one free and one malloc"
    }

    fn source(&self) -> &'static str {
        "Larson and Krishnan, Memory Allocation for Long-Running Server Applications, ISMM 1998"
    }

    fn defaults(&self) -> Parameters {
        let parameters = Parameters::new(8, 25_000).with("slots", 5000);
        parameters.with("lives", 10).with("read_back", "yes")
    }

    fn published_rows(&self) -> Vec<Parameters> {
        let longer = Parameters { ops: 100_000, ..self.defaults() };
        longer.with("read_back", "no").on_threads()
    }

    fn domains(&self) -> Domains {
        &[
            ("slots", Domain::Whole(1, 1 << 30)),
            ("lives", Domain::Whole(1, 1_000_000)),
            Tally::READ_BACK,
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let slots: f64 = parameters.get("slots")?;
        // A line of lives is assembled a second time, to see how much of it is live at once.
        let steps = slots + parameters.get::<f64>("lives")? * parameters.ops as f64;
        Ok(parameters.threads as f64 * 2.0 * script::written_bytes(steps, slots))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let lives: usize = parameters.get("lives")?;
        let size_bytes = |random: &mut fastrand::Rng| random.u32(8..=1000);
        let mut lines: Vec<Vec<Vec<Step>>> = Vec::new();
        let mut live_bytes = 0;
        for mut random in parameters.seeds() {
            // The first fill is one object per slot in order; the rest are replacements.
            let fill = (0..slots as u32)
                .map(|slot| Step { slot, size_bytes: size_bytes(&mut random) })
                .collect::<Vec<_>>();
            let mut line = vec![fill];
            for _ in 0..lives {
                line.push(replacements(&mut random, slots, parameters.ops, size_bytes));
            }
            live_bytes += live_peak_bytes(&line.concat(), slots);
            lines.push(line);
        }
        let mut tables: Vec<Vec<Object>> =
            (0..parameters.threads).map(|_| script::empty_slots(slots)).collect();
        let nothing_yet = Tally::of(parameters)?;
        let mut tally = nothing_yet;
        let window = Window::open()?;
        let start = Instant::now();
        fill_shuffled(&lines, &mut tables, parameters.seed, &mut tally);
        std::thread::scope(|scope| {
            let ends: Vec<_> = lines
                .iter()
                .zip(tables)
                .map(|(line, table)| {
                    let (end, ended) = std::sync::mpsc::channel();
                    threads::start(scope, move || {
                        live(scope, &line[1..], table, nothing_yet, end);
                    });
                    ended
                })
                .collect();
            for ended in ends {
                tally.add(&ended.recv().expect("every line comes to its end"));
            }
        });
        let ns = start.elapsed().as_nanos() as u64;
        let ops = (parameters.ops * lives as u64 + slots as u64) * parameters.threads as u64;
        let outcome = team::finish(ops, ns, window.close()?, tally)?;
        Ok(Outcome { live_peak_bytes: live_bytes, ..outcome })
    }
}

/// The first objects come from the main thread. They are dealt out in random order, so that
/// neighbours in memory belong to different threads.
fn fill_shuffled(
    lines: &[Vec<Vec<Step>>],
    tables: &mut [Vec<Object>],
    seed: u64,
    tally: &mut Tally,
) {
    let mut places: Vec<(usize, Step)> = lines
        .iter()
        .enumerate()
        .flat_map(|(line, lives)| lives[0].iter().map(move |step| (line, *step)))
        .collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut places);
    for (line, step) in places {
        tables[line][step.slot as usize] =
            Object::allocate(step.size_bytes, stamp(u64::from(step.slot), step.size_bytes), tally);
    }
}

/// One life: work, then hand the slots to a successor, or drain them after the last one.
fn live<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    lives: &'scope [Vec<Step>],
    mut table: Vec<Object>,
    mut tally: Tally,
    end: std::sync::mpsc::Sender<Tally>,
) {
    execute(&lives[0], &mut table, &mut tally);
    if lives.len() > 1 {
        threads::start(scope, move || live(scope, &lives[1..], table, tally, end));
    } else {
        drain(&mut table, &mut tally);
        end.send(tally).expect("the main thread waits for every line");
    }
}
