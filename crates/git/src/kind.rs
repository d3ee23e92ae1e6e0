//! The kinds of entries of a tree.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    File,
    Link,
    Submodule,
    Unknown,
}

/// Reads the type bits as stored; libgit2 itself reads an unknown type as a file.
pub(super) fn kind_of(mode: i32) -> Kind {
    match mode & 0o170_000 {
        0o040_000 => Kind::Directory,
        0o100_000 => Kind::File,
        0o120_000 => Kind::Link,
        0o160_000 => Kind::Submodule,
        _ => Kind::Unknown,
    }
}
