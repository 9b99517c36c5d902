//! The pools for compressed data as subjects: by name, over the operating system's pages.

mod grown;
pub(crate) mod process;
pub(crate) mod zram;

use std::ops::RangeInclusive;

use anyhow::{Context, bail, ensure};
use hectare_pages::{FutexPark, Os};
use hectare_pool::{Dense, Limits, Pool, Xv, Zs, ZsConfig};

use crate::cmd::OrMisused;

pub(crate) use grown::{PageGranular, PowersOfTwo};

/// What `--pools` understands, for help texts.
pub(crate) const SPECS: &str = "xv, zs, zs:chain=N,step=N, dense, \
     dense:pieces=N,shards=N,area-mib=N,compact=PERCENT, page-granular, powers-of-two";

/// An empty pool of that description.
///
/// # Errors
/// When the name or a parameter is unknown; the message lists what there is.
pub(crate) fn make(spec: &str) -> anyhow::Result<Box<dyn Pool + Send>> {
    let (name, parameters) = spec.split_once(':').unwrap_or((spec, ""));
    let mut parameters = Parameters::parse(spec, parameters)?;
    let pool: Box<dyn Pool + Send> = match name {
        "xv" => Box::new(Xv::<Os, FutexPark>::new(Os)),
        "zs" => {
            let page_bytes = crate::machine::page_bytes() as usize;
            let mut config = ZsConfig::for_page_bytes(page_bytes);
            let chain = parameters.take("chain", 1..=64, |_| true, "a number from 1 to 64")?;
            let is_step = |step: usize| step.is_multiple_of(4);
            let step = parameters.take(
                "step",
                4..=page_bytes,
                is_step,
                "a multiple of 4, up to a page",
            )?;
            config.chain_pages = chain.unwrap_or(config.chain_pages);
            config.class_step_bytes = step.unwrap_or(config.class_step_bytes);
            Box::new(Zs::<Os, FutexPark>::with_config(Os, config)?)
        }
        "dense" => {
            let mut limits = Limits::new();
            let pieces = parameters.take("pieces", 1..=16, |_| true, "a number from 1 to 16")?;
            let powers = usize::is_power_of_two;
            let shards = parameters.take("shards", 1..=16, powers, "a power of two up to 16")?;
            let compact = parameters.take("compact", 0..=100, |_| true, "a number up to 100")?;
            let area_mib =
                parameters.take("area-mib", 1..=2048, powers, "a power of two up to 2048")?;
            limits.max_pieces = pieces.unwrap_or(limits.max_pieces);
            limits.shards = shards.unwrap_or(limits.shards);
            limits.compact_percent = compact.unwrap_or(limits.compact_percent);
            limits.area_bytes = area_mib.map_or(limits.area_bytes, |mib| mib << 20);
            Box::new(Dense::<Os, FutexPark>::with_limits(Os, limits))
        }
        "page-granular" => Box::new(PageGranular::new()),
        "powers-of-two" => Box::new(PowersOfTwo::new()),
        _ => bail!("there is no pool `{name}`; there are: {SPECS}"),
    };
    parameters.done()?;
    Ok(pool)
}

/// Checks the names of pools, for verbs with work to do before the last of them is made.
///
/// # Errors
/// As [`make`], as a wrong argument.
pub(crate) fn check(specs: &[String]) -> anyhow::Result<()> {
    specs.iter().try_for_each(|spec| make(spec).map(drop).or_misused())
}

/// `key=value,…` after the name of a pool.
struct Parameters<'a> {
    spec: &'a str,
    pairs: Vec<(&'a str, usize)>,
}

impl<'a> Parameters<'a> {
    fn parse(spec: &'a str, text: &'a str) -> anyhow::Result<Self> {
        let words = text.split(',').filter(|word| !word.is_empty());
        let pairs = words.map(|word| {
            let (key, value) = word.split_once('=').with_context(|| {
                format!("`{word}` in the pool `{spec}` is no parameter: key=number")
            })?;
            let value = value.parse();
            let value = value.with_context(|| format!("`{word}` in the pool `{spec}`"))?;
            Ok((key, value))
        });
        Ok(Self { spec, pairs: pairs.collect::<anyhow::Result<_>>()? })
    }

    /// The value of a parameter, if it is given: one of those that the pool takes, which `which` names.
    fn take(
        &mut self,
        key: &str,
        range: RangeInclusive<usize>,
        is_one: impl Fn(usize) -> bool,
        which: &str,
    ) -> anyhow::Result<Option<usize>> {
        let Some(at) = self.pairs.iter().position(|&(name, _)| name == key) else {
            return Ok(None);
        };
        let (_, value) = self.pairs.remove(at);
        let is_one = range.contains(&value) && is_one(value);
        ensure!(is_one, "`{key}={value}` in the pool `{}`: it can be {which}", self.spec);
        Ok(Some(value))
    }

    fn done(self) -> anyhow::Result<()> {
        if let Some((key, _)) = self.pairs.first() {
            bail!("the pool `{}` has no parameter `{key}`; there are: {SPECS}", self.spec);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_that_the_pools_take() {
        for good in ["zs:chain=1,step=4", "zs:chain=64", "dense:pieces=16,shards=16,area-mib=2048"]
        {
            assert!(make(good).is_ok(), "{good}");
        }
        for bad in [
            "zs:chain=0",
            "zs:chain=65",
            "zs:step=7",
            "zs:step=0",
            "dense:compact=101",
            "dense:shards=3",
            "dense:pieces=0",
            "dense:area-mib=0",
            "dense:area-mib=17592186044417",
        ] {
            let told = make(bad).err().expect(bad).to_string();
            assert!(told.contains(bad) && told.contains(": it can be "), "{told}");
        }
    }
}
