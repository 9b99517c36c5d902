//! A server's sessions: objects that are freed together, by whichever thread ends the session.

use std::sync::{Barrier, Mutex};

use super::heap::{Object, stamp};
use super::script::empty_slots;
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};

/// How many objects a session has, at most.
const MOST_OBJECTS: usize = 80;

/// The workload.
pub(crate) struct Sessions;

impl Workload for Sessions {
    fn name(&self) -> &'static str {
        "sessions"
    }

    fn about(&self) -> &'static str {
        "each thread opens `ops` sessions of 20 to 80 objects of 16 to 1000 bytes, one in sixteen \
         of them a buffer of 2 to 32 KB, and puts each into a random one of `sessions` places that \
         all threads share; the session that was there is freed as a whole; at the end each \
         thread frees its share; an operation is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "hectare; a server whose sessions are ended by other threads than opened them"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 12_000).with("sessions", 1000)
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn published_rows(&self) -> Vec<Parameters> {
        self.defaults().on_threads()
    }

    fn domains(&self) -> Domains {
        &[("ops", Domain::Whole(1, 1 << 32)), ("sessions", Domain::Whole(1, 10_000_000))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let threads = parameters.threads as f64;
        let slots = (threads + parameters.get::<f64>("sessions")?) * MOST_OBJECTS as f64;
        let sizes = threads * parameters.ops as f64 * MOST_OBJECTS as f64;
        Ok(script::written_bytes(0.0, slots) + sizes * size_of::<u32>() as f64)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let places: usize = parameters.get("sessions")?;
        let table: Vec<_> = (0..places).map(|_| Mutex::new(Session::new())).collect();
        let threads: Vec<_> = parameters
            .seeds()
            .map(|mut random| (Script::new(&mut random, parameters.ops, places), Session::new()))
            .enumerate()
            .collect();
        let ops = threads.iter().map(|(_, (script, _))| script.sizes.len() as u64).sum();
        let opened = Barrier::new(parameters.threads);
        let timed = team::run(threads, |(thread, (script, mut session))| {
            let mut tally = Tally::default();
            serve(&script, &mut session, &table, &mut tally);
            opened.wait();
            for place in table.iter().skip(thread).step_by(parameters.threads) {
                place.lock().expect("no thread panics").end(&mut tally);
            }
            tally
        })?;
        team::outcome(ops, timed)
    }
}

/// The objects of a session. The next session uses the slots again.
struct Session {
    objects: Vec<Object>,
    count: usize,
}

impl Session {
    fn new() -> Self {
        Self { objects: empty_slots(MOST_OBJECTS), count: 0 }
    }

    fn add(&mut self, object: Object) {
        self.objects[self.count] = object;
        self.count += 1;
    }

    /// Frees all objects in the order in which they were made.
    fn end(&mut self, tally: &mut Tally) {
        script::drain(&mut self.objects[..self.count], tally);
        self.count = 0;
    }
}

/// The sessions that one thread opens.
struct Script {
    /// Each session's place and its number of objects.
    sessions: Vec<(u32, u32)>,
    /// Sizes of the objects of all sessions, bytes.
    sizes: Vec<u32>,
}

impl Script {
    fn new(random: &mut fastrand::Rng, ops: u64, places: usize) -> Self {
        let mut script = Self { sessions: Vec::new(), sizes: Vec::new() };
        for _ in 0..ops {
            let count = random.u32(20..=MOST_OBJECTS as u32);
            script.sessions.push((random.u32(0..places as u32), count));
            script.sizes.extend((0..count).map(|_| size_bytes(random)));
        }
        script
    }
}

/// Objects uniform, buffers uniform in the logarithm.
fn size_bytes(random: &mut fastrand::Rng) -> u32 {
    if random.u32(0..16) == 0 {
        (2000.0 * 16_f64.powf(random.f64())) as u32
    } else {
        random.u32(16..=1000)
    }
}

/// Makes each session, exchanges it for the one in its place, and ends that one.
fn serve(script: &Script, session: &mut Session, table: &[Mutex<Session>], tally: &mut Tally) {
    let mut sizes = script.sizes.iter().enumerate();
    for &(place, count) in &script.sessions {
        for (nth, &size_bytes) in sizes.by_ref().take(count as usize) {
            session.add(Object::allocate(size_bytes, stamp(nth as u64, size_bytes), tally));
        }
        let shared = &table[place as usize];
        std::mem::swap(session, &mut shared.lock().expect("no thread panics"));
        session.end(tally);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_of_every_session_is_freed_once() {
        for threads in [1, 2, 5] {
            let parameters = Parameters::new(threads, 100).with("sessions", 7);
            let objects: Vec<(u64, u32)> = parameters
                .seeds()
                .flat_map(|mut random| (0_u64..).zip(Script::new(&mut random, 100, 7).sizes))
                .collect();
            let stamps = objects.iter().map(|&(nth, size_bytes)| u64::from(stamp(nth, size_bytes)));
            let outcome = Sessions.run(&parameters).unwrap();
            assert_eq!((outcome.ops, outcome.checksum), (objects.len() as u64, stamps.sum()));
        }
    }

    #[test]
    fn sessions_have_buffers_too() {
        let script = Script::new(&mut fastrand::Rng::with_seed(1), 2000, 9);
        assert!(script.sessions.iter().all(|&(place, count)| place < 9 && count <= 80));
        let objects = script.sizes.len();
        assert!((95_000..105_000).contains(&objects), "{objects}");
        let buffers = script.sizes.iter().filter(|&&size| size > 1000).count();
        let share = buffers as f64 / objects as f64;
        assert!((0.058..0.067).contains(&share), "{share}");
        assert!(script.sizes.iter().all(|size| (16..=32_000).contains(size)));
    }
}
