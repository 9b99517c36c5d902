//! What the store knows about a page.

use std::sync::Arc;

use crate::backing::Block;
use crate::objects::Object;

/// The codec that an object was compressed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CodecId(pub(crate) u8);

impl CodecId {
    /// None: the object is the page itself.
    pub(crate) const RAW: Self = Self(u8::MAX);
}

/// A page as an object.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) object: Object,
    pub(crate) bytes: u32,
    pub(crate) codec: CodecId,
}

/// An object that several slots may share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) packed: Packed,
    /// The hash of the page's content, under which the index has it.
    pub(crate) hash: u64,
}

/// Where a page's content is.
#[derive(Debug, Default)]
pub(crate) enum Content {
    /// There is no such page.
    #[default]
    Absent,
    /// One word, which fills the page.
    Filled(u64),
    Own(Packed),
    Shared(Arc<Shared>),
    /// A raw page that is longer than the pool's longest object.
    Plain(Box<[u8]>),
    /// In the file.
    Backed(Block),
}

impl Content {
    /// The page as an object, if it is one.
    pub(crate) fn packed(&self) -> Option<&Packed> {
        match self {
            Self::Own(packed) => Some(packed),
            Self::Shared(shared) => Some(&shared.packed),
            Self::Absent | Self::Filled(_) | Self::Plain(_) | Self::Backed(_) => None,
        }
    }

    /// Whether the page takes memory, and its full size of it.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, Self::Plain(_))
            || self.packed().is_some_and(|packed| packed.codec == CodecId::RAW)
    }

    /// The bytes of the page that it shares with no other.
    pub(crate) fn own_bytes(&self) -> usize {
        match self {
            Self::Own(packed) => packed.bytes as usize,
            Self::Shared(shared) if Arc::strong_count(shared) == 1 => shared.packed.bytes as usize,
            Self::Plain(page) => page.len(),
            Self::Absent | Self::Filled(_) | Self::Shared(_) | Self::Backed(_) => 0,
        }
    }

    /// The page's share of the bytes that it has together with others.
    pub(crate) fn share_bytes(&self) -> usize {
        match self {
            Self::Shared(shared) => shared.packed.bytes as usize / Arc::strong_count(shared),
            _ => self.own_bytes(),
        }
    }

    /// Whether the page takes memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Plain(_)) || self.packed().is_some()
    }
}

/// What a store keeps for each key, behind a lock of its own.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) content: Content,
    /// The lower half of the content's hash, unless one word fills the page.
    pub(crate) checksum: u32,
    /// When the page was last put or got, in seconds of the store's clock.
    pub(crate) touched_s: u32,
    /// The codec after the strongest one tried so far: weaker ones gain nothing.
    pub(crate) tried_codecs: u8,
}
