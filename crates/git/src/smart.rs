//! git's smart protocol, version 0, as far as a fetch needs it: packets, the list of refs, a request, and its response.
//!
//! This module does no IO: the caller pushes bytes as they arrive. The list of refs and the response are processed one
//! packet at a time, so only requested data is kept. (gitprotocol-common, -pack and -http are the reference.)

use std::collections::BTreeMap;
use std::str;

use bytes::{Buf as _, Bytes, BytesMut};
use git2::{Oid, Reference};

/// The maximum length of a packet, its length prefix included.
const MAX_PACKET: usize = 65_520;

/// The requested capabilities, if the server has them. `multi_ack_detailed` is not needed for one round of negotiation,
/// but some servers reject a request without it.
const CAPABILITIES: [&str; 5] = [
    "multi_ack_detailed",
    "side-band-64k",
    "thin-pack",
    "ofs-delta",
    "no-progress",
];

/// A response that violates git's protocol, or an error that the server reports in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("the response is not in git's packet format")]
    Packet,
    #[error("the response is not a list of refs")]
    Refs,
    #[error("the repository uses an object format other than SHA-1, which is not supported")]
    ObjectFormat,
    #[error("the server cannot send packs in a side band")]
    SideBand,
    #[error("the response ended early")]
    Early,
    #[error("there are more than {0} heads and tags")]
    TooManyRefs(usize),
    #[error("the server reports: {0}")]
    Server(String),
}

/// One packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Packet {
    Data(Bytes),
    Flush,
}

/// Splits a stream of bytes into packets.
#[derive(Debug, Default)]
pub(super) struct Packets(BytesMut);

impl Packets {
    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes the next packet; `None` until more bytes come.
    pub(super) fn next(&mut self) -> Result<Option<Packet>, ProtocolError> {
        let Some(prefix) = self.0.get(..4) else {
            return Ok(None);
        };
        // `from_str_radix` accepts a sign, which a length does not have.
        let digits = str::from_utf8(prefix)
            .ok()
            .filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let length = digits.and_then(|text| usize::from_str_radix(text, 16).ok());
        match length {
            Some(0) => {
                self.0.advance(4);
                Ok(Some(Packet::Flush))
            }
            Some(length @ 4..=MAX_PACKET) if self.0.len() >= length => {
                let mut packet = self.0.split_to(length).freeze();
                packet.advance(4);
                Ok(Some(Packet::Data(packet)))
            }
            Some(4..=MAX_PACKET) => Ok(None),
            _ => Err(ProtocolError::Packet),
        }
    }
}

/// The heads and tags of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Advertisement {
    /// Full name to the object of the ref: for an annotated tag, the tag object. These IDs can be requested.
    pub(super) tips: BTreeMap<String, Oid>,
    peeled: BTreeMap<String, Oid>,
    capabilities: Vec<String>,
}

impl Advertisement {
    /// Returns full name to commit; an annotated tag is resolved to its commit.
    pub(super) fn commits(mut self) -> BTreeMap<String, Oid> {
        for (name, id) in self.peeled {
            if let Some(tip) = self.tips.get_mut(&name) {
                *tip = id;
            }
        }
        self.tips
    }

    /// Adds one line of a list of refs. Skips refs that are neither heads nor tags, or have an invalid name.
    pub(super) fn add(&mut self, name: &str, id: Oid) {
        if !(name.starts_with("refs/heads/") || name.starts_with("refs/tags/")) {
            return;
        }
        if let Some(tag) = name.strip_suffix("^{}") {
            self.peeled.insert(tag.to_owned(), id);
        } else if Reference::is_valid_name(name) {
            self.tips.insert(name.to_owned(), id);
        }
    }

    /// Returns the body of a request for `wants` from a client with `haves`. One round: the response is the pack.
    pub(super) fn request(&self, wants: &[Oid], haves: &[Oid]) -> Result<Vec<u8>, ProtocolError> {
        if !self
            .capabilities
            .iter()
            .any(|capability| capability == "side-band-64k")
        {
            return Err(ProtocolError::SideBand);
        }
        let common = CAPABILITIES
            .into_iter()
            .filter(|capability| self.capabilities.iter().any(|offered| offered == capability));
        let mut capabilities: String = common.flat_map(|capability| [" ", capability]).collect();
        let mut body = Vec::new();
        for want in wants {
            line(&mut body, &format!("want {want}{capabilities}\n"));
            capabilities.clear();
        }
        body.extend_from_slice(b"0000");
        for have in haves {
            line(&mut body, &format!("have {have}\n"));
        }
        line(&mut body, "done\n");
        Ok(body)
    }
}

fn line(body: &mut Vec<u8>, text: &str) {
    body.extend_from_slice(format!("{:04x}{text}", text.len() + 4).as_bytes());
}

/// Reads a list of refs, packet by packet.
#[derive(Debug)]
pub(super) struct AdvertisementReader {
    max_refs: usize,
    place: State,
    list: Advertisement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Service,
    ServiceEnd,
    First,
    Rest,
    Done,
}

impl AdvertisementReader {
    /// Reads at most `max_refs` heads and tags.
    pub(super) fn new(max_refs: usize) -> Self {
        Self {
            max_refs,
            place: State::Service,
            list: Advertisement::default(),
        }
    }

    /// Processes a packet; returns `true` when the list is complete.
    pub(super) fn take(&mut self, packet: &Packet) -> Result<bool, ProtocolError> {
        match (self.place, packet) {
            (State::Service, Packet::Data(text)) if text.trim_ascii_end() == b"# service=git-upload-pack" => {
                self.place = State::ServiceEnd;
            }
            (State::ServiceEnd, Packet::Flush) => self.place = State::First,
            (State::First, Packet::Data(text)) => {
                let mut parts = text.splitn(2, |byte| *byte == 0);
                let first = parts.next().unwrap_or_default();
                self.read_capabilities(parts.next().unwrap_or_default())?;
                self.read_ref(first)?;
                self.place = State::Rest;
            }
            (State::Rest, Packet::Data(text)) => self.read_ref(text)?,
            (State::First | State::Rest, Packet::Flush) => self.place = State::Done,
            (_, Packet::Data(text)) => return Err(reported(text).unwrap_or(ProtocolError::Refs)),
            _ => return Err(ProtocolError::Refs),
        }
        Ok(self.place == State::Done)
    }

    /// Returns the list, if it is complete.
    pub(super) fn finish(self) -> Result<Advertisement, ProtocolError> {
        if self.place == State::Done {
            Ok(self.list)
        } else {
            Err(ProtocolError::Early)
        }
    }

    fn read_capabilities(&mut self, text: &[u8]) -> Result<(), ProtocolError> {
        let text = String::from_utf8_lossy(text);
        self.list.capabilities = text.split_ascii_whitespace().map(str::to_owned).collect();
        let format = self
            .list
            .capabilities
            .iter()
            .find_map(|text| text.strip_prefix("object-format="));
        if format.is_some_and(|format| format != "sha1") {
            return Err(ProtocolError::ObjectFormat);
        }
        Ok(())
    }

    fn read_ref(&mut self, text: &[u8]) -> Result<(), ProtocolError> {
        let text = text.trim_ascii_end();
        if text.starts_with(b"shallow ") {
            return Ok(());
        }
        let (id, name) = text
            .split_at_checked(40)
            .ok_or_else(|| reported(text).unwrap_or(ProtocolError::Refs))?;
        let id = str::from_utf8(id).ok().and_then(|id| Oid::from_str(id).ok());
        let (Some(id), Some(name)) = (id, name.strip_prefix(b" ")) else {
            return Err(reported(text).unwrap_or(ProtocolError::Refs));
        };
        // A name that is not UTF-8 is never requested, and is no reason to refuse the other refs.
        if let Ok(name) = str::from_utf8(name) {
            self.list.add(name, id);
        }
        if self.list.tips.len() > self.max_refs {
            return Err(ProtocolError::TooManyRefs(self.max_refs));
        }
        Ok(())
    }
}

/// Returns the error that the server sends instead of the requested data.
fn reported(text: &[u8]) -> Option<ProtocolError> {
    let text = text.strip_prefix(b"ERR ")?;
    Some(ProtocolError::Server(
        String::from_utf8_lossy(text).trim().to_owned(),
    ))
}

/// Reads the response to a request: acknowledgements, then the pack in side band 1.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    acknowledged: bool,
    done: bool,
}

impl ResponseReader {
    /// Processes a packet; returns its part of the pack, if it has one.
    pub(super) fn take(&mut self, packet: Packet) -> Result<Option<Bytes>, ProtocolError> {
        let mut text = match packet {
            Packet::Flush if self.acknowledged => {
                self.done = true;
                return Ok(None);
            }
            Packet::Flush => return Err(ProtocolError::Packet),
            Packet::Data(_) if self.done => return Err(ProtocolError::Packet),
            Packet::Data(text) => text,
        };
        match text.first() {
            Some(1) => {
                self.acknowledged = true;
                text.advance(1);
                Ok(Some(text))
            }
            Some(2) => Ok(None),
            Some(3) => {
                text.advance(1);
                Err(ProtocolError::Server(
                    String::from_utf8_lossy(&text).trim().to_owned(),
                ))
            }
            _ if !self.acknowledged && (text.starts_with(b"ACK ") || text.starts_with(b"NAK")) => Ok(None),
            _ => Err(reported(&text).unwrap_or(ProtocolError::Packet)),
        }
    }

    /// Whether the pack is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn packets(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in lines {
            if text.is_empty() {
                bytes.extend_from_slice(b"0000");
            } else {
                line(&mut bytes, text);
            }
        }
        bytes
    }

    fn read(lines: &[&str]) -> Result<Advertisement, ProtocolError> {
        let mut cut = Packets::default();
        cut.push(&packets(lines));
        let mut reader = AdvertisementReader::new(3);
        while let Some(packet) = cut.next()? {
            if reader.take(&packet)? {
                break;
            }
        }
        reader.finish()
    }

    const HEAD: [&str; 2] = ["# service=git-upload-pack\n", ""];

    #[test]
    fn a_list_of_refs_is_read() {
        let first = format!("{A} HEAD\0side-band-64k ofs-delta object-format=sha1 agent=x\n");
        let rest = [
            format!("{A} refs/heads/main\n"),
            format!("{A} refs/pull/1/head\n"),
            format!("{A} refs/tags/v1\n"),
            format!("{B} refs/tags/v1^{{}}\n"),
            format!("shallow {B}\n"),
        ];
        let lines: Vec<&str> = HEAD
            .into_iter()
            .chain([first.as_str()])
            .chain(rest.iter().map(String::as_str))
            .chain([""])
            .collect();
        let list = read(&lines).unwrap();
        let (a, b) = (Oid::from_str(A).unwrap(), Oid::from_str(B).unwrap());
        assert_eq!(
            list.tips,
            BTreeMap::from([("refs/heads/main".into(), a), ("refs/tags/v1".into(), a)])
        );
        let body = String::from_utf8(list.request(&[a, b], &[b]).unwrap()).unwrap();
        let expected =
            format!("004awant {A} side-band-64k ofs-delta\n0032want {B}\n00000032have {B}\n0009done\n");
        assert_eq!(body, expected);
        assert_eq!(
            list.commits(),
            BTreeMap::from([("refs/heads/main".into(), a), ("refs/tags/v1".into(), b)])
        );
        assert_eq!(
            read(&lines[..5]),
            Err(ProtocolError::Early),
            "a truncated list is an error"
        );
    }

    #[test]
    fn an_empty_repository_gives_an_empty_list() {
        let zero = format!("{} capabilities^{{}}\0side-band-64k\n", "0".repeat(40));
        assert_eq!(read(&[HEAD[0], "", &zero, ""]).unwrap().tips, BTreeMap::new());
        assert_eq!(read(&[HEAD[0], "", ""]).unwrap().tips, BTreeMap::new());
    }

    #[test]
    fn invalid_lists_of_refs_are_errors() {
        let many: Vec<String> = (0..4)
            .map(|n| format!("{A} refs/heads/{n}\0side-band-64k"))
            .collect();
        let sha256 = format!("{A} HEAD\0object-format=sha256\n");
        let cases: [(&[&str], ProtocolError); 6] = [
            (&["<html>"], ProtocolError::Refs),
            (&[HEAD[0], "", "short"], ProtocolError::Refs),
            (
                &["ERR access denied\n"],
                ProtocolError::Server("access denied".into()),
            ),
            (&[HEAD[0], "", "ERR gone\n"], ProtocolError::Server("gone".into())),
            (&[HEAD[0], "", &sha256], ProtocolError::ObjectFormat),
            (&[], ProtocolError::Early),
        ];
        for (lines, expected) in cases {
            assert_eq!(read(lines), Err(expected), "{lines:?}");
        }
        let plain: Vec<&str> = many.iter().map(|text| text.split('\0').next().unwrap()).collect();
        assert_eq!(
            read(&[HEAD[0], "", &many[0], plain[1], plain[2], plain[3], ""]),
            Err(ProtocolError::TooManyRefs(3))
        );
        let list = read(&[HEAD[0], "", &format!("{A} refs/heads/a\0ofs-delta\n"), ""]).unwrap();
        assert_eq!(list.request(&[], &[]), Err(ProtocolError::SideBand));
    }

    #[test]
    fn a_response_contains_its_pack() {
        let answer = packets(&[
            &format!("ACK {A} common\n"),
            "NAK\n",
            "\u{2}counting\n",
            "\u{1}PA",
            "\u{1}CK",
            "",
        ]);
        assert_eq!(pack(&answer), Ok((b"PACK".to_vec(), true)));
        assert_eq!(pack(&answer[..answer.len() - 4]), Ok((b"PACK".to_vec(), false)));
        let failed = packets(&["NAK\n", "\u{1}PA", "\u{3}out of memory\n"]);
        assert_eq!(pack(&failed), Err(ProtocolError::Server("out of memory".into())));
        assert_eq!(
            pack(&packets(&["ERR no such want"])),
            Err(ProtocolError::Server("no such want".into()))
        );
        for malformed in [
            &["hello"][..],
            &[""],
            &["\u{1}PACK", "NAK\n"],
            &["\u{1}PACK", "", "\u{1}PACK"],
        ] {
            assert_eq!(
                pack(&packets(malformed)),
                Err(ProtocolError::Packet),
                "{malformed:?}"
            );
        }
    }

    fn pack(bytes: &[u8]) -> Result<(Vec<u8>, bool), ProtocolError> {
        let mut cut = Packets::default();
        cut.push(bytes);
        let (mut reader, mut pack) = (ResponseReader::default(), Vec::new());
        while let Some(packet) = cut.next()? {
            pack.extend(reader.take(packet)?.into_iter().flatten());
        }
        Ok((pack, reader.is_complete()))
    }

    #[test]
    fn invalid_lengths_are_refused() {
        for bytes in [&b"0001"[..], b"0002", b"0003", b"+004", b"fff1", b"zzzz", b"<htm"] {
            let mut cut = Packets::default();
            cut.push(bytes);
            assert_eq!(cut.next(), Err(ProtocolError::Packet), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn packets_do_not_depend_on_the_chunks_of_bytes(
            texts in proptest::collection::vec("[a-z]{0,40}", 0..10),
            size in 1_usize..20,
        ) {
            let lines: Vec<&str> = texts.iter().map(String::as_str).collect();
            let (mut cut, mut found) = (Packets::default(), Vec::new());
            for piece in packets(&lines).chunks(size) {
                cut.push(piece);
                while let Some(packet) = cut.next().unwrap() {
                    found.push(packet);
                }
            }
            let expected = texts.iter().map(|text| match text.as_str() {
                "" => Packet::Flush,
                text => Packet::Data(Bytes::copy_from_slice(text.as_bytes())),
            });
            prop_assert_eq!(found, expected.collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = pack(&bytes);
            let mut cut = Packets::default();
            cut.push(&bytes);
            let mut reader = AdvertisementReader::new(3);
            while let Ok(Some(packet)) = cut.next() {
                if reader.take(&packet).is_err() {
                    break;
                }
            }
        }
    }
}
