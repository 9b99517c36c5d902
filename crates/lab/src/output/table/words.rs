//! The headings of columns, and the units in which their figures are shown.

/// Headings for columns whose names, without their units, would say too little.
const HEADINGS: [(&str, &str); 18] = [
    ("page_overhead_percent", "of pages alone"),
    ("mean_overhead_percent", "overhead, mean over time"),
    ("half_percent", "overhead, half freed"),
    ("half_compacted_percent", "half freed, compacted"),
    ("half_free_ns", "free down to half"),
    ("half_most_free_ns", "longest free down to half"),
    ("ideal_peak_bytes", "Ideal's peak"),
    ("density_percent", "stored size"),
    ("with_table_percent", "stored size with the table"),
    ("full_overhead_ratio", "overhead, all written"),
    ("half_dropped_overhead_ratio", "overhead, half dropped"),
    ("get_mem_calls", "regions taken"),
    ("put_mem_calls", "regions given back"),
    ("op_ns", "an operation"),
    ("pair_ns", "alloc and free"),
    ("p50_ns", "median"),
    ("clock_ns", "the clock itself"),
    ("write_ns", "a write"),
];

/// The heading of a column: `alloc_ns` is headed `alloc`, its cells carry the unit.
pub(super) fn heading(name: &str) -> String {
    if let Some((_, words)) = HEADINGS.iter().find(|(column, _)| *column == name) {
        return (*words).to_owned();
    }
    if let Some(percentile) = percentile(name) {
        return percentile;
    }
    let units = ["_ns", "_ms", "_bytes", "_ratio", "_percent", "_count", "_per_s"];
    let stem = units.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    let stem = stem.strip_suffix("_mib").or_else(|| stem.strip_suffix("_gib")).unwrap_or(stem);
    stem.replace('_', " ")
}

/// The percentile in a name: `p999_ns` is where 99.9 % of the calls end.
fn percentile(name: &str) -> Option<String> {
    let digits = name.strip_prefix('p')?.strip_suffix("_ns")?;
    let is_number = digits.len() >= 2 && digits.chars().all(|c| c.is_ascii_digit());
    let (whole, rest) = is_number.then(|| digits.split_at(2))?;
    Some(if rest.is_empty() { format!("{whole} %") } else { format!("{whole}.{rest} %") })
}

/// A figure in the unit given by the last word of its name.
pub(crate) fn figure(name: &str, value: f64) -> String {
    match name.rsplit('_').next() {
        Some("ns") => time(value),
        Some("ms") => time(value * 1e6),
        Some("bytes") => bytes(value),
        Some("percent") => format!("{value:.2} %"),
        Some("ratio") if name.ends_with("overhead_ratio") => share(value),
        Some("ratio") => format!("{value:.3}"),
        _ if name.ends_with("_mib_per_s") => format!("{value:.1} MiB/s"),
        _ if name.ends_with("_gib_per_s") => format!("{value:.1} GiB/s"),
        _ => count(value),
    }
}

/// A signed share: how much more or less than the whole.
pub(super) fn share(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Nanoseconds, in the unit a person would choose.
pub(crate) fn time(ns: f64) -> String {
    match ns.abs() {
        ..1e3 => format!("{ns:.1} ns"),
        ..1e6 => format!("{:.2} µs", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Bytes, in the binary unit a person would choose.
pub(crate) fn bytes(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    match bytes.abs() {
        ..KIB => format!("{bytes:.0} B"),
        size if size < KIB * KIB => format!("{:.1} KiB", bytes / KIB),
        size if size < KIB * KIB * KIB => format!("{:.1} MiB", bytes / KIB / KIB),
        _ => format!("{:.2} GiB", bytes / KIB / KIB / KIB),
    }
}

pub(super) fn count(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1e4 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_in_fitting_units() {
        assert_eq!(time(12.34), "12.3 ns");
        assert_eq!(time(12_340_000.0), "12.3 ms");
        assert_eq!([time(1000.0), time(-12_345.0)], ["1.00 µs", "-12.35 µs"]);
        assert_eq!([time(1e6), time(1e9), time(1.5e9)], ["1.0 ms", "1.00 s", "1.50 s"]);
        assert_eq!([bytes(512.0), bytes(1023.0)], ["512 B", "1023 B"]);
        assert_eq!([bytes(1024.0), bytes(-1536.0)], ["1.0 KiB", "-1.5 KiB"]);
        assert_eq!(bytes(3.0 * 1024.0 * 1024.0), "3.0 MiB");
        assert_eq!([bytes(1_048_576.0), bytes(1_610_612_736.0)], ["1.0 MiB", "1.50 GiB"]);
        assert_eq!(
            [figure("time_ratio", 0.5), figure("read_gib_per_s", 2.0)],
            ["0.500", "2.0 GiB/s"]
        );
        assert_eq!(figure("alloc_ns", 5.0), "5.0 ns");
        assert_eq!(figure("alloc_ms", 5.0), "5.0 ms");
        assert_eq!(figure("overhead_percent", 5.678), "5.68 %");
        assert_eq!(figure("peak_overhead_ratio", 0.0567), "+5.7 %");
        assert_eq!(figure("put_mib_per_s", 812.34), "812.3 MiB/s");
        assert_eq!(figure("frames", 12.0), "12");
    }

    #[test]
    fn headings_are_words() {
        for (name, words) in [
            ("alloc_ns", "alloc"),
            ("put_mib_per_s", "put"),
            ("p50_ns", "median"),
            ("p99_ns", "99 %"),
            ("p9999_ns", "99.99 %"),
            ("page_faults", "page faults"),
            ("worst_instructions", "worst instructions"),
        ] {
            assert_eq!(heading(name), words, "{name}");
        }
    }
}
