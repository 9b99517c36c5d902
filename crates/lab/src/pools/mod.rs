//! The pools for compressed data as subjects: by name, over the operating system's pages.

mod grown;
pub(crate) mod process;
pub(crate) mod zram;

use anyhow::{Context, bail, ensure};
use hectare_pages::{FutexPark, Os};
use hectare_pool::{Dense, Limits, Pool, Xv, Zs, ZsConfig};

use crate::cmd::{Exit, OrMisused};
use crate::list;

use grown::{PageGranular, PowersOfTwo, StandIn};

/// What `--pools` understands, for help texts.
pub(crate) const SPECS: &str = "xv, zs, zs:chain=N,step=N, dense, \
     dense:pieces=N,shards=N,area-mib=N,compact=PERCENT, page-granular, powers-of-two";

const MIB: usize = 1 << 20;

/// An empty pool of that description.
///
/// # Errors
/// When the name or a parameter is unknown. The message lists those that exist.
pub(crate) fn make(spec: &str) -> anyhow::Result<Box<dyn Pool + Send>> {
    let (name, parameters) = spec.split_once(':').unwrap_or((spec, ""));
    let mut parameters = Parameters::parse(spec, parameters)?;
    let page_bytes = crate::machine::page_bytes() as usize;
    let wrong = || format!("the pool `{spec}`");
    let pool: Box<dyn Pool + Send> = match name {
        "xv" => Box::new(Xv::<Os, FutexPark>::new(Os)),
        "zs" => {
            let mut config = ZsConfig::for_page_bytes(page_bytes);
            config.chain_pages = parameters.take("chain").unwrap_or(config.chain_pages);
            config.class_step_bytes = parameters.take("step").unwrap_or(config.class_step_bytes);
            config.check(page_bytes).with_context(wrong)?;
            Box::new(Zs::<Os, FutexPark>::with_config(Os, config)?)
        }
        "dense" => {
            let mut limits = Limits::new();
            limits.max_pieces = parameters.take("pieces").unwrap_or(limits.max_pieces);
            limits.shards = parameters.take("shards").unwrap_or(limits.shards);
            limits.compact_percent = parameters.take("compact").unwrap_or(limits.compact_percent);
            let area_mib = parameters.take("area-mib");
            limits.area_bytes = area_mib.map_or(limits.area_bytes, |mib| mib.saturating_mul(MIB));
            limits.check(page_bytes).with_context(wrong)?;
            Box::new(Dense::<Os, FutexPark>::with_limits(Os, limits))
        }
        "page-granular" => Box::new(StandIn(PageGranular::new())),
        "powers-of-two" => Box::new(StandIn(PowersOfTwo::new())),
        _ => bail!("there is no pool `{name}`; there are: {SPECS}"),
    };
    parameters.done()?;
    Ok(pool)
}

/// The pools that `--pools` asks for. Each of them can be made.
///
/// # Errors
/// As [`make`], as a wrong argument, and when a pool is given twice.
pub(crate) fn asked(given: &[String]) -> anyhow::Result<Vec<String>> {
    let specs = list::with_parameters(given);
    ensure!(!specs.is_empty(), Exit::misused(format!("no pool is given; there are: {SPECS}")));
    specs.iter().try_for_each(|spec| make(spec).map(drop)).or_misused()?;
    list::refuse_twice("--pools", &specs)?;
    Ok(specs)
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

    /// The value of a parameter, if it is given.
    fn take(&mut self, key: &str) -> Option<usize> {
        let at = self.pairs.iter().position(|&(name, _)| name == key)?;
        Some(self.pairs.remove(at).1)
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
            let told = format!("{:#}", make(bad).err().expect(bad));
            assert!(told.contains(bad) && told.contains("; it can be "), "{told}");
        }
    }
}
