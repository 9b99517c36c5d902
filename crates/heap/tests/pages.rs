//! Pages of 16 and 64 KiB, as some AArch64 systems have them: every call to the system is for
//! whole pages, and the heap is the same otherwise.

mod support;

use hectare_check::{Driver, Limits};
use support::{Front, Strict, check_heap, check_released, heap_over};

fn random_program(page_bytes: usize) {
    let heap = heap_over(Strict::with_pages(page_bytes), 64 << 20);
    let mut driver = Driver::new(hectare_check::seed(page_bytes as u64), Limits::default(), &[]);
    let mut front = Front::new(&heap);
    for step in 0..20_000 {
        driver.step(&mut front);
        if step % 1000 == 0 {
            check_heap(&heap, driver.shadow().objects(), &[&front]);
        }
    }
    driver.verify_all();
    heap.trim(0);
    driver.verify_all();
    driver.free_all(&mut front);
    drop(front);
    check_released(&heap);
}

#[test]
fn of_16_kib() {
    random_program(16 << 10);
}

#[test]
fn of_64_kib() {
    random_program(64 << 10);
}
