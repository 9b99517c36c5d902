//! Files whose checksums are right and whose claims are not: lengths, counts, places.

use super::*;

/// What follows a chunk that was lost names objects of that chunk.
#[test]
fn the_copy_of_a_trace_with_a_lost_chunk_holds_what_was_good() {
    let (file, copy) = (Temp::new("lost"), Temp::new("lost-copy"));
    for seed in 0..8 {
        let (_, order) = random_rows(60 + seed, 2, 90_000);
        write(&file.0, &order);
        let mut content = fs::read(&file.0).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        let place = trace.threads()[&ThreadId(1)][seed as usize % 2];
        content[place.offset as usize] ^= 1;
        fs::write(&file.0, &content).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        let good = read(&trace);
        assert!(trace.damage().bad_chunks == 1);
        seal(&file.0, &copy.0, SealOptions::default()).unwrap();
        let again = Trace::open(&copy.0).unwrap();
        assert_eq!(read(&again), good, "seed {seed}");
        again.check().unwrap();
    }
}
