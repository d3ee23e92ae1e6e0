//! Resolves the symbolic links of a tree, from the tree alone and before anything is written.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Maximum links that are followed for one target; the limit of Linux.
const MAX_HOPS: usize = 40;

/// Why a symbolic link is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkProblem {
    /// The target starts with a slash.
    #[error("its target is absolute")]
    Absolute,
    /// The target is outside of the tree, directly or through another link.
    #[error("its target is outside of the tree")]
    Outside,
    /// Nothing is exported at the target; it may be missing, ignored or inside a submodule.
    #[error("its target is not in the tree")]
    Missing,
    /// Links form a cycle.
    #[error("it leads to itself")]
    Loop,
    /// The target is a directory that contains the link; a walk through the tree would never end.
    #[error("its target is a directory that contains it")]
    Ancestor,
}

/// An entry of an exported tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    File,
    /// A symbolic link and its target as stored.
    Link(OsString),
}

/// The paths of an exported tree, relative to its root. The root itself is a directory without an entry.
#[derive(Debug, Default)]
pub(super) struct Layout(BTreeMap<PathBuf, Node>);

impl Layout {
    /// Adds a path. `false` if it already exists, which never happens in a tree written by git.
    #[must_use]
    pub(super) fn insert(&mut self, path: PathBuf, node: Node) -> bool {
        self.0.insert(path, node).is_none()
    }

    /// Returns every link with its target, ordered by path.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Path, &OsStr)> {
        self.0.iter().filter_map(|(path, node)| match node {
            Node::Link(target) => Some((path.as_path(), target.as_os_str())),
            Node::Directory | Node::File => None,
        })
    }

    /// Follows a link as the kernel would, but never beyond the root of the tree.
    pub(super) fn resolve(&self, link: &Path, target: &OsStr) -> Result<PathBuf, LinkProblem> {
        let mut at = link.parent().unwrap_or(Path::new("")).to_path_buf();
        let mut rest = VecDeque::new();
        prepend(&mut rest, target)?;
        let mut hops = 0;
        while let Some(step) = rest.pop_front() {
            if step == ".." {
                if !at.pop() {
                    return Err(LinkProblem::Outside);
                }
                continue;
            }
            at.push(&step);
            match self.0.get(&at) {
                Some(Node::Directory) => {}
                Some(Node::File) if rest.is_empty() => {}
                Some(Node::File) | None => return Err(LinkProblem::Missing),
                Some(Node::Link(next)) => {
                    hops += 1;
                    if hops > MAX_HOPS {
                        return Err(LinkProblem::Loop);
                    }
                    at.pop();
                    prepend(&mut rest, next)?;
                }
            }
        }
        if link.starts_with(&at) {
            Err(LinkProblem::Ancestor)
        } else {
            Ok(at)
        }
    }
}

fn prepend(rest: &mut VecDeque<OsString>, target: &OsStr) -> Result<(), LinkProblem> {
    let bytes = target.as_bytes();
    if bytes.is_empty() {
        return Err(LinkProblem::Missing);
    }
    if bytes.starts_with(b"/") {
        return Err(LinkProblem::Absolute);
    }
    for step in bytes
        .split(|byte| *byte == b'/')
        .rev()
        .filter(|step| !step.is_empty() && *step != b".")
    {
        rest.push_front(OsStr::from_bytes(step).to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(entries: &[(&str, Option<&str>)]) -> Layout {
        let mut layout = Layout::default();
        for (path, target) in entries {
            let node = match target {
                Some(target) => Node::Link(OsString::from(target)),
                None if path.ends_with('/') => Node::Directory,
                None => Node::File,
            };
            assert!(layout.insert(PathBuf::from(path.trim_end_matches('/')), node));
        }
        layout
    }

    #[test]
    fn links_are_followed_inside_the_tree_only() {
        let tree = layout(&[
            ("a/", None),
            ("a/b/", None),
            ("a/file", None),
            ("a/b/up", Some("../..")),
            ("out", Some("a/b/../../..")),
            ("deep", Some("a/b/hop/file")),
            ("a/b/hop", Some("..")),
            ("other/", None),
            ("other/dir", Some("../a/b")),
            ("other/escape", Some("dir/../../../etc")),
            ("other/back", Some("dir/../file")),
            ("ping", Some("pong")),
            ("pong", Some("ping")),
        ]);
        let cases: [(&str, &str, Result<&str, LinkProblem>); 13] = [
            ("l", "a/file", Ok("a/file")),
            ("l", "./a//b/", Ok("a/b")),
            ("l", "/etc/passwd", Err(LinkProblem::Absolute)),
            ("l", "../x", Err(LinkProblem::Outside)),
            ("a/b/l", "../../../x", Err(LinkProblem::Outside)),
            ("l", "", Err(LinkProblem::Missing)),
            ("l", "a/file/x", Err(LinkProblem::Missing)),
            ("l", "nowhere", Err(LinkProblem::Missing)),
            ("l", "ping", Err(LinkProblem::Loop)),
            ("l", "out", Err(LinkProblem::Outside)),
            ("l", "other/escape", Err(LinkProblem::Outside)),
            // `other/dir/..` is `a`, not `other`: links are followed before `..` is applied.
            ("l", "other/back", Ok("a/file")),
            ("a/b/l", "..", Err(LinkProblem::Ancestor)),
        ];
        for (link, target, expected) in cases {
            assert_eq!(
                tree.resolve(Path::new(link), OsStr::new(target)),
                expected.map(PathBuf::from),
                "{link} -> {target}"
            );
        }
        assert_eq!(
            tree.resolve(Path::new("deep"), OsStr::new("a/b/hop/file")),
            Ok(PathBuf::from("a/file"))
        );
        assert_eq!(
            tree.resolve(Path::new("l"), OsStr::new(".")),
            Err(LinkProblem::Ancestor)
        );
    }

    #[test]
    fn a_path_can_be_added_once() {
        let mut tree = layout(&[("a", None)]);
        assert!(!tree.insert(PathBuf::from("a"), Node::Directory));
    }
}
