//! Time over block count: the complexity made visible.

use hectare_buddy::{MAX_ORDER, Order};

use super::subjects::{Growth, Job, Subject};
use super::{Common, MOST_FRAMES, PLOT_ALONE, order};
use crate::report::{Report, Row, Series};
use crate::within::{number, within};

/// The arguments of `hectare buddy growth`.
#[derive(clap::Args)]
#[command(after_help = PLOT_ALONE)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// The largest block count
    #[arg(short, long, default_value_t = 1 << 18, value_parser = number(1, MOST_FRAMES))]
    blocks: usize,
    /// Size of a block: 2^ORDER frames of 4 KiB, 0 to 18
    #[arg(short, long, default_value_t = 0, value_parser = number(0, MAX_ORDER))]
    order: u8,
    /// A quadratic allocator gets no more blocks when twice as many would take this long
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = within(0_u64, u64::MAX))]
    patience_ms: u64,
}

/// Takes that many blocks and returns the time in ns.
struct Take {
    blocks: usize,
    order: Order,
}

impl Job for Take {
    type Output = f64;

    fn run<S: Subject>(self, mut subject: S) -> f64 {
        let start = std::time::Instant::now();
        for _ in 0..self.blocks {
            std::hint::black_box(subject.alloc(self.order)).expect("there are frames for all");
        }
        start.elapsed().as_nanos() as f64
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let order = order(args.order)?;
    super::frames(args.blocks, order)?;
    let mut report = Report::new("buddy growth");
    report.parameter("blocks", args.blocks);
    report.parameter("order", args.order);
    report.parameter("patience_ms", args.patience_ms);
    for subject in args.common.subjects()? {
        let mut points = Vec::new();
        let mut blocks = 64.min(args.blocks);
        loop {
            if let Some(why) = subject.refuses(blocks * order.frames()) {
                let note = format!("{}: {why}", subject.name);
                args.common.tell(&format!("{note}\n"));
                report.notes.push(note);
                break;
            }
            let best = (0..3)
                .map(|_| subject.with(blocks * order.frames(), 1, Take { blocks, order }))
                .fold(f64::INFINITY, f64::min);
            points.push([blocks as f64, best / 1e6]);
            report.rows.push(
                Row::new(subject.name, "growth")
                    .with("blocks", blocks)
                    .with("best_alloc_ms", best / 1e6)
                    .with("alloc_ns", best / blocks as f64),
            );
            args.common.tell(&format!(
                "{:30} {blocks:>9} blocks {:>12.4} ms {:>10.2} ns/block\n",
                subject.name,
                best / 1e6,
                best / blocks as f64
            ));
            let is_slow = best / 1e6 * 4.0 > args.patience_ms as f64;
            if blocks == args.blocks || (subject.growth == Growth::Quadratic && is_slow) {
                break;
            }
            blocks = (blocks * 2).min(args.blocks);
        }
        if points.is_empty() {
            continue;
        }
        report.series.push(Series {
            plot: "time over block count".to_owned(),
            subject: subject.name.to_owned(),
            workload: "growth".to_owned(),
            x_name: "blocks".to_owned(),
            y_name: "alloc_ms".to_owned(),
            points,
        });
    }
    args.common.finish(&report, &[])
}
