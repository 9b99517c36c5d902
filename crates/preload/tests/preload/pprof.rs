//! pprof's `profile.proto`, as github.com/google/pprof publishes it. `prost` decodes as much of it
//! as these tests read.

use std::collections::HashMap;

use crate::harness::{Outcome, ensure};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
}

impl Profile {
    fn text(&self, index: i64) -> &str {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        self.string_table.get(index).map_or("?", String::as_str)
    }

    /// What the format demands of every file, and these tests of the library's files.
    pub(crate) fn check(&self) -> Outcome {
        let name = |kind: &ValueType| format!("{}/{}", self.text(kind.kind), self.text(kind.unit));
        let names: Vec<String> = self.sample_type.iter().map(name).collect();
        let expected = [
            "alloc_objects/count",
            "alloc_space/bytes",
            "inuse_objects/count",
            "inuse_space/bytes",
        ];
        ensure(names == expected, || format!("the values are {names:?}"))?;
        ensure(self.string_table.first().is_some_and(String::is_empty), || "no \"\" first".into())?;
        ensure(self.text(self.default_sample_type) == "inuse_space", || "another default".into())?;
        let period = self.period_type.as_ref().map(name);
        ensure(period.as_deref() == Some("space/bytes"), || format!("the period's is {period:?}"))?;
        ensure(self.period > 0 && self.time_nanos > 1 << 60, || "no period, or no time".into())?;
        ensure(self.comment.is_empty(), || format!("lost samples: {:?}", self.comment))?;
        let mut ids = HashMap::new();
        for location in &self.location {
            ensure(ids.insert(location.id, location.address).is_none(), || {
                format!("two locations are number {}", location.id)
            })?;
        }
        for sample in &self.sample {
            ensure(
                sample.value.len() == 4 && sample.value.iter().all(|&value| value >= 0),
                || format!("values {:?}", sample.value),
            )?;
            ensure(sample.location_id.iter().all(|id| ids.contains_key(id)), || {
                format!("a sample's location does not exist: {:?}", sample.location_id)
            })?;
        }
        let mapped = self.location.iter().filter(|location| location.mapping_id != 0);
        for location in mapped {
            let mapping = self.mapping.iter().find(|mapping| mapping.id == location.mapping_id);
            let range = mapping.map(|mapping| mapping.memory_start..mapping.memory_limit);
            ensure(range.as_ref().is_some_and(|range| range.contains(&location.address)), || {
                format!("{:#x} does not lie in its mapping {range:?}", location.address)
            })?;
        }
        Ok(())
    }

    /// Each sample's addresses, the innermost first, and its four values.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (Vec<u64>, &[i64])> {
        let addresses: HashMap<u64, u64> =
            self.location.iter().map(|location| (location.id, location.address)).collect();
        self.sample.iter().map(move |sample| {
            let stack = sample.location_id.iter().map(|id| addresses[id]).collect();
            (stack, &sample.value[..])
        })
    }

    /// The file that an address was mapped from, and its place in it.
    pub(crate) fn file_of(&self, address: u64) -> Option<(&str, u64)> {
        let location = self.location.iter().find(|location| location.address == address)?;
        let mapping = self.mapping.iter().find(|mapping| mapping.id == location.mapping_id)?;
        let offset = address - mapping.memory_start + mapping.file_offset;
        Some((self.text(mapping.filename), offset))
    }
}
