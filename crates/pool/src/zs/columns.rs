//! The statistics of the classes, and the columns of the kernel's `classes` file.

use core::fmt;

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::Zs;
use super::class::{FULL, GROUPS};
use super::geometry::{self, Geometry};

/// A row of the kernel's `classes` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// The number of the largest size step that the class serves.
    pub class: usize,
    /// Bytes from one object to the next, the header included.
    pub size_bytes: usize,
    /// Zspages by fullness: under 10 %, 20 %, … 90 %, 99 %, full.
    pub zspages: [u32; GROUPS - 1],
    /// Objects that the class's zspages have room for.
    pub obj_allocated: usize,
    /// Objects in use.
    pub obj_used: usize,
    /// Pages of all its zspages.
    pub pages_used: usize,
    /// Pages of one zspage.
    pub pages_per_zspage: usize,
    /// Pages that compaction would give back.
    pub freeable: usize,
}

impl<S: PageSource, P: Park> Zs<S, P> {
    /// Calls `each` with the statistics of every class, from the smallest on. `each` may use the
    /// pool.
    pub fn for_each_class(&self, mut each: impl FnMut(ClassStats)) {
        for class in self.classes().iter().rev() {
            let Geometry { size_bytes, pages, objects } = class.geometry;
            let state = class.state.lock();
            let mut zspages = [0; GROUPS - 1];
            zspages.copy_from_slice(&state.counts[1..]);
            let stats = ClassStats {
                class: (size_bytes - geometry::MIN_CLASS).div_ceil(self.config.class_step_bytes),
                size_bytes,
                zspages,
                obj_allocated: state.allocated,
                obj_used: state.in_use,
                pages_used: state.allocated / objects * pages,
                pages_per_zspage: pages,
                freeable: state.freeable_zspages(class.geometry) * pages,
            };
            drop(state);
            each(stats);
        }
    }

    /// The statistics in the columns of the kernel's `/sys/kernel/debug/zsmalloc/*/classes`.
    pub const fn class_table(&self) -> ClassTable<'_, S, P> {
        ClassTable(self)
    }
}

/// [`Zs::class_table`].
pub struct ClassTable<'a, S: PageSource, P>(&'a Zs<S, P>);

impl<S: PageSource, P> fmt::Debug for ClassTable<'_, S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClassTable").finish_non_exhaustive()
    }
}

impl<S: PageSource, P: Park> fmt::Display for ClassTable<'_, S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; FULL] =
            ["10%", "20%", "30%", "40%", "50%", "60%", "70%", "80%", "90%", "99%", "100%"];
        write!(f, " {:>5} {:>5}", "class", "size")?;
        NAMES.iter().try_for_each(|name| write!(f, " {name:>9}"))?;
        let rest = ["obj_allocated", "obj_used", "pages_used"];
        rest.iter().try_for_each(|name| write!(f, " {name:>13}"))?;
        writeln!(f, " {:>16} {:>8}", "pages_per_zspage", "freeable")?;
        let mut total = [0usize; FULL + 4];
        let mut result = Ok(());
        self.0.for_each_class(|row| {
            if row.obj_allocated == 0 || result.is_err() {
                return;
            }
            let mut numbers = [0; FULL + 4];
            for (number, &zspages) in numbers.iter_mut().zip(&row.zspages) {
                *number = zspages as usize;
            }
            let rest = [row.obj_allocated, row.obj_used, row.pages_used, row.freeable];
            numbers[FULL..].copy_from_slice(&rest);
            total.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum += number);
            result = write!(f, " {:>5} {:>5}", row.class, row.size_bytes)
                .and_then(|()| columns(f, &numbers, row.pages_per_zspage));
        });
        result?;
        write!(f, "\n {:>5} {:>5}", "Total", "")?;
        columns(f, &total, "")
    }
}

fn columns(
    f: &mut fmt::Formatter<'_>,
    numbers: &[usize; FULL + 4],
    pages_per_zspage: impl fmt::Display,
) -> fmt::Result {
    numbers[..FULL].iter().try_for_each(|number| write!(f, " {number:>9}"))?;
    numbers[FULL..FULL + 3].iter().try_for_each(|number| write!(f, " {number:>13}"))?;
    writeln!(f, " {:>16} {:>8}", pages_per_zspage, numbers[FULL + 3])
}
