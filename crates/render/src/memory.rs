//! The memory that this process really has: the limit of its control group.

use std::path::{Path, PathBuf};

/// Returns the memory limit of the control group of this process, in bytes; `None`: there is none, or none can be read.
#[must_use]
pub fn limit() -> Option<u64> {
    limit_below(
        Path::new("/sys/fs/cgroup"),
        &std::fs::read_to_string("/proc/self/cgroup").ok()?,
    )
}

/// Returns the smallest limit from the group of the process up to `root`. In a container, the group is often `root`.
fn limit_below(root: &Path, groups: &str) -> Option<u64> {
    let files = groups.lines().filter_map(|line| limit_file(root, line));
    files
        .filter_map(|(directory, file)| least_up_to(root, &directory, file))
        .min()
}

/// Returns the directory of a line of `/proc/self/cgroup`, and the file with its limit; `None`: another controller.
fn limit_file(root: &Path, line: &str) -> Option<(PathBuf, &'static str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
    if controllers.is_empty() {
        return Some((root.join(path), "memory.max"));
    }
    let of_memory = controllers.split(',').any(|controller| controller == "memory");
    of_memory.then(|| (root.join("memory").join(path), "memory.limit_in_bytes"))
}

fn least_up_to(root: &Path, directory: &Path, file: &str) -> Option<u64> {
    let inside = directory
        .ancestors()
        .take_while(|directory| directory.starts_with(root));
    // Without a limit, version 2 says `max`, and version 1 says almost the largest number.
    inside
        .filter_map(|directory| std::fs::read_to_string(directory.join(file)).ok())
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .filter(|limit| *limit < u64::MAX / 4)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_the_smallest_limit_of_the_groups_of_the_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("pods/a/memory.max", "max\n");
        write("pods/memory.max", "1073741824\n");
        write("memory/b/memory.limit_in_bytes", "536870912\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        for (groups, expected) in [
            ("0::/pods/a\n", Some(1 << 30)),
            ("0::/pods\n", Some(1 << 30)),
            ("0::/\n", None),
            ("5:cpu,memory:/b\n4:pids:/b\n", Some(512 << 20)),
            ("5:memory:/\n", None),
            ("5:cpu:/b\n", None),
            ("", None),
        ] {
            assert_eq!(limit_below(root.path(), groups), expected, "{groups}");
        }
    }
}
