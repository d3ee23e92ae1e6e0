use std::io::Write as _;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use proptest::prelude::*;

use super::*;

const LIMITS: PackLimits = PackLimits {
    max_objects: 1_000,
    max_object_bytes: 1 << 20,
    max_commit_bytes: 1 << 10,
    max_directory_bytes: 1 << 12,
};

const COMMIT: u8 = 1;
const TREE: u8 = 2;
const BLOB: u8 = 3;
const TAG: u8 = 4;
const OFS_DELTA: u8 = 6;
const REF_DELTA: u8 = 7;

fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        bytes.push(if value > 0 { low | 0x80 } else { low });
        if value == 0 {
            return bytes;
        }
    }
}

fn head(kind: u8, size: u64) -> Vec<u8> {
    let low = u8::try_from(size & 0x0f).unwrap() | kind << 4;
    if size < 16 {
        return vec![low];
    }
    [vec![low | 0x80], number(size >> 4)].concat()
}

fn zlib(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn entry(kind: u8, base: &[u8], declared: u64, content: &[u8]) -> Vec<u8> {
    [head(kind, declared), base.to_vec(), zlib(content)].concat()
}

fn object(kind: u8, size: usize) -> Vec<u8> {
    entry(kind, &[], size as u64, &vec![b' '; size])
}

/// A delta that says how large its base and its result are, and copies nothing.
fn delta(base: u64, result: u64) -> Vec<u8> {
    [number(base), number(result), vec![0x90, 1]].concat()
}

fn pack(entries: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(entries.len()).unwrap();
    let header = [&b"PACK"[..], &2_u32.to_be_bytes(), &count.to_be_bytes()].concat();
    [header, entries.concat(), vec![0; TRAILER]].concat()
}

fn scan(bytes: &[u8], piece: usize) -> Result<u64, ScanError> {
    let mut scanner = PackScanner::new(&LIMITS);
    for bytes in bytes.chunks(piece) {
        scanner.push(bytes)?;
    }
    scanner.finish()
}

fn refused(what: &'static str, bytes: u64, limit: u64) -> Result<u64, ScanError> {
    Err(ScanError::Refused(Refusal::ObjectBytes { what, bytes, limit }))
}

#[test]
fn tenant_packs_with_large_objects_are_refused_by_what_they_declare() {
    let gib = 1_u64 << 30;
    let small = delta(10, gib);
    let delta_of = |base: &[u8], kind| entry(kind, base, small.len() as u64, &small);
    for (entries, expected) in [
        (vec![object(COMMIT, 1_024)], Ok(0)),
        (vec![object(COMMIT, 1_025)], refused("commit", 1_025, 1_024)),
        (vec![object(TAG, 1_025)], refused("tag", 1_025, 1_024)),
        (vec![object(TREE, 4_097)], refused("directory", 4_097, 4_096)),
        (vec![object(BLOB, 1 << 20)], Ok(0)),
        // Declared, and not there: nothing is decompressed to find out.
        (
            vec![entry(BLOB, &[], 4 * gib, b"")],
            refused("file", 4 * gib, 1 << 20),
        ),
        (
            vec![
                object(BLOB, 10),
                delta_of(&number(object(BLOB, 10).len() as u64), OFS_DELTA),
            ],
            refused("file", gib, 1 << 20),
        ),
        // The kind of a delta is that of its base.
        (
            vec![
                object(COMMIT, 10),
                entry(
                    OFS_DELTA,
                    &number(object(COMMIT, 10).len() as u64),
                    5,
                    &delta(10, 2_000),
                ),
            ],
            refused("commit", 2_000, 1_024),
        ),
        (
            vec![delta_of(&[7; BASE_ID], REF_DELTA)],
            refused("file", gib, 1 << 20),
        ),
    ] {
        let bytes = pack(&entries);
        for piece in [1, 7, bytes.len()] {
            assert_eq!(scan(&bytes, piece), expected, "{entries:?}");
        }
    }
    let many = pack(&vec![object(BLOB, 0); 1_001]);
    assert_eq!(
        scan(&many, many.len()),
        Err(ScanError::Refused(Refusal::Objects { limit: 1_000 }))
    );
}

#[test]
fn what_is_larger_than_declared_is_malformed() {
    let wrong = Err(ScanError::Malformed("the content of an object"));
    let bomb = pack(&[entry(BLOB, &[], 10, &vec![0; 10 << 20])]);
    assert!(bomb.len() < 20_000, "{}", bomb.len());
    assert_eq!(scan(&bomb, bomb.len()), wrong);
    let short = pack(&[entry(BLOB, &[], 11, b"0123456789")]);
    assert_eq!(scan(&short, short.len()), wrong);
    let cut = pack(&[object(BLOB, 10)]);
    assert_eq!(
        scan(&cut[..cut.len() - 1], 7),
        Err(ScanError::Malformed("the end"))
    );
    let more = [cut, vec![0]].concat();
    assert_eq!(scan(&more, 7), Err(ScanError::Malformed("the end")));
    let elsewhere = pack(&[object(BLOB, 10), entry(OFS_DELTA, &number(3), 5, &delta(10, 20))]);
    assert_eq!(
        scan(&elsewhere, 7),
        Err(ScanError::Malformed("the base of a delta"))
    );
}

/// The pack that git itself makes of a repository, with deltas of every kind.
#[test]
fn packs_of_git_are_read_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str], input: &[u8]| {
        let mut child = Command::new("git")
            .args([
                "-C",
                folder.path().to_str().unwrap(),
                "-c",
                "user.name=Ann",
                "-c",
                "user.email=a@b.c",
            ])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        output.stdout
    };
    git(&["init", "--quiet"], b"");
    for number in 0..20 {
        let line = |line: usize| format!("line {line} {}\n", if line == 150 { number } else { 0 });
        let text: String = (0..300).map(line).collect();
        std::fs::write(folder.path().join("file"), text).unwrap();
        std::fs::write(folder.path().join(format!("file-{number}")), b"").unwrap();
        git(&["add", "."], b"");
        git(&["commit", "--quiet", "--message", "change"], b"");
    }
    for arguments in [
        &["pack-objects", "--all", "--stdout"][..],
        &["pack-objects", "--all", "--stdout", "--delta-base-offset"],
    ] {
        let bytes = git(arguments, b"");
        let largest = scan(&bytes, 1_000).unwrap();
        assert!((1_000..10_000).contains(&largest), "there are deltas: {largest}");
    }
}

proptest! {
    #[test]
    fn tenant_fuzz_packs_end_in_a_result(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        objects in 0..5_u32,
        piece in 1..50_usize,
    ) {
        let header = [&b"PACK"[..], &2_u32.to_be_bytes(), &objects.to_be_bytes()].concat();
        let _ = scan(&bytes, piece);
        bytes.splice(0..0, header);
        let _ = scan(&bytes, piece);
    }
}
