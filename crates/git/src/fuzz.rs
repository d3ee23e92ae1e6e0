//! What a git server may send, and what a URL may be, mutated: whatever it is, the end is a result.

use crate::access::RepoUrl;
use crate::limits::PackLimits;
use crate::scan::PackScanner;
use crate::smart::{AdvertisementReader, Packet, Packets};

const LIMITS: PackLimits = PackLimits {
    max_objects: 1_000,
    max_object_bytes: 1 << 20,
    max_commit_bytes: 1 << 10,
    max_directory_bytes: 1 << 12,
};

#[test]
fn tenant_fuzz_advertisements() {
    starling_fuzz::inputs!("advertisements", |input| {
        let (mut packets, mut reader) = (Packets::default(), AdvertisementReader::new(100));
        for piece in input.chunks(7) {
            packets.push(piece);
            while let Ok(Some(packet)) = packets.next() {
                match reader.take(&packet) {
                    Ok(false) => {}
                    Ok(true) => {
                        let _ = reader.finish().map(|list| list.commits().len());
                        return;
                    }
                    Err(_) => return,
                }
            }
        }
        let _ = reader.take(&Packet::Flush);
    });
}

#[test]
fn tenant_fuzz_packs() {
    starling_fuzz::inputs!("packs", |input| {
        for piece in [1, 37, 4096] {
            let mut scanner = PackScanner::new(&LIMITS);
            let pushed = input.chunks(piece).try_for_each(|bytes| scanner.push(bytes));
            let _ = pushed.and_then(|()| scanner.finish());
        }
    });
}

#[test]
fn tenant_fuzz_urls() {
    starling_fuzz::inputs!("urls", |input| {
        let text = String::from_utf8_lossy(input);
        for allow_insecure in [false, true] {
            if let Ok(url) = RepoUrl::parse(&text, allow_insecure) {
                let shown = url::Url::parse(&url.to_string()).unwrap();
                assert_eq!((shown.username(), shown.password()), ("", None), "{url}");
            }
        }
    });
}
