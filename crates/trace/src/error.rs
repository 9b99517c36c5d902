//! What can be wrong with a trace.

use std::fmt;
use std::io;

/// Why a trace cannot be read, or not any further.
#[derive(Debug)]
pub enum Error {
    /// The operating system refused.
    Io(io::Error),
    /// The operating system refused to write a copy.
    Write(io::Error),
    /// The path does not lead to a regular file.
    NotAFile {
        /// What it leads to, with its article.
        found: &'static str,
    },
    /// The file does not begin like a trace.
    NotATrace,
    /// The file has another version of the format.
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file begins like a trace, but its header is damaged.
    BadHeader,
    /// Part of the file is damaged. Everything readable has been returned.
    Damaged(Damage),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) => f.write_str("cannot read the trace"),
            Self::Write(_) => f.write_str("cannot be written"),
            Self::NotAFile { found } => {
                write!(f, "this is {found}; a trace must be a regular file")
            }
            Self::NotATrace => f.write_str(
                "this is not a hectare trace (it does not begin with \"HECTRACE\"); \
                 `hectare record -o F.hxt -- CMD` makes one",
            ),
            Self::Version { found } => {
                let remedy = match *found > crate::VERSION {
                    true => "a newer hectare reads it",
                    false => "record it again",
                };
                let known = crate::VERSION;
                write!(
                    f,
                    "the trace has format version {found}, this program reads version {known}; {remedy}"
                )
            }
            Self::BadHeader => {
                f.write_str("the header of the trace is damaged; nothing after it can be trusted")
            }
            Self::Damaged(damage) => {
                damage.fmt(f)?;
                if damage.good_rows > 0 {
                    let them = if damage.good_rows == 1 { "it" } else { "them" };
                    write!(f, " (`hectare info F --salvage NEW.hxt` makes a trace of {them})")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) | Self::Write(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// How much of a trace is damaged and how much was good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Where the first damage is, bytes from the beginning of the file.
    pub offset: u64,
    /// Chunks with a wrong checksum or unreadable rows.
    pub bad_chunks: u64,
    /// Chunks of which only the beginning is good.
    pub partial_chunks: u64,
    /// Bytes between chunks that do not belong to a chunk, or bytes missing at the end.
    pub stray_bytes: u64,
    /// Whether the index of a sealed file is missing or damaged (the chunks were found without it).
    pub index_lost: bool,
    /// Chunks that were good.
    pub good_chunks: u64,
    /// Rows read from them.
    pub good_rows: u64,
}

impl Damage {
    /// Whether there is any damage.
    pub fn any(&self) -> bool {
        self.bad_chunks > 0 || self.partial_chunks > 0 || self.stray_bytes > 0 || self.index_lost
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the trace is damaged from byte {} on:", self.offset)?;
        for (count, one, more) in [
            (self.bad_chunks, "chunk is unreadable", "chunks are unreadable"),
            (self.partial_chunks, "chunk is readable in part", "chunks are readable in part"),
            (
                self.stray_bytes,
                "byte is missing or no part of it",
                "bytes are missing or no part of it",
            ),
        ] {
            match count {
                0 => {}
                1 => write!(f, " 1 {one};")?,
                _ => write!(f, " {count} {more};")?,
            }
        }
        if self.index_lost {
            f.write_str(" its index is lost (cut short, changed, or followed by something);")?;
        }
        let [of_chunks, of_rows] =
            [self.good_chunks, self.good_rows].map(|count| if count == 1 { "" } else { "s" });
        write!(
            f,
            " good: {} chunk{of_chunks} with {} event{of_rows}",
            self.good_chunks, self.good_rows
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let told = |count| {
            Error::Damaged(Damage {
                offset: 7,
                bad_chunks: count,
                partial_chunks: count,
                stray_bytes: count,
                index_lost: false,
                good_chunks: count,
                good_rows: count,
            })
            .to_string()
        };
        assert_eq!(
            told(1),
            "the trace is damaged from byte 7 on: 1 chunk is unreadable; 1 chunk is readable in part; \
             1 byte is missing or no part of it; good: 1 chunk with 1 event (`hectare info F --salvage \
             NEW.hxt` makes a trace of it)"
        );
        assert_eq!(
            told(2),
            "the trace is damaged from byte 7 on: 2 chunks are unreadable; 2 chunks are readable in part; \
             2 bytes are missing or no part of it; good: 2 chunks with 2 events (`hectare info F --salvage \
             NEW.hxt` makes a trace of them)"
        );
        assert_eq!(told(0), "the trace is damaged from byte 7 on: good: 0 chunks with 0 events");
    }
}
