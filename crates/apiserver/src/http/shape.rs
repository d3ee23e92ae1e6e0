//! Objects and lists in the shape that the client asked for: whole, metadata only, or a `Table`.

use serde_json::{Value, json};

use super::encode::{list_metadata, whole};
use super::negotiate::Shape;
use super::request::Call;
use super::table;
use crate::kinds::{self, Form};
use crate::status::Status;
use crate::store::Stored;
use crate::target::Target;
use crate::verbs::Listing;

/// Returns a stored object in the requested shape.
pub(super) fn encode_object(call: &Call, target: &Target, stored: &Stored) -> Result<Vec<u8>, Status> {
    match call.accept.shape {
        Shape::Whole => Ok(whole(target, stored)),
        Shape::Metadata => {
            let mut out = Vec::new();
            stored.write_metadata(&mut out);
            Ok(out)
        }
        Shape::Table => table::of_object(call, target, stored),
    }
}

/// Returns an object that is not stored in the requested shape.
pub(super) fn encode_value(call: &Call, target: &Target, value: &Value) -> Result<Vec<u8>, Status> {
    match call.accept.shape {
        _ if value["kind"] == "Status" => Ok(value.to_string().into_bytes()),
        Shape::Whole => Ok(value.to_string().into_bytes()),
        Shape::Metadata => Ok(json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": value["metadata"],
        })
        .to_string()
        .into_bytes()),
        Shape::Table => table::of_value(call, target, value),
    }
}

/// Returns a list in the requested shape.
pub(super) fn encode_list(call: &Call, target: &Target, listing: &Listing) -> Result<Vec<u8>, Status> {
    let (kind, api_version) = match call.accept.shape {
        Shape::Table => return table::of_list(call, target, listing),
        Shape::Metadata => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
        Shape::Whole => (&*target.resource.list_kind, &*target.version.api_version),
    };
    let size: usize = listing.items.iter().map(|stored| stored.body().len() + 64).sum();
    let mut out = Vec::with_capacity(size + 256);
    let mut metadata = list_metadata(listing);
    if matches!(target.version.form, Form::Custom(_)) && listing.next.is_none() {
        // As in Kubernetes, whose lists of custom resources write every field of the metadata.
        metadata["continue"] = json!("");
    }
    out.extend_from_slice(
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[")
            .as_bytes(),
    );
    for (place, stored) in listing.items.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        match (call.accept.shape, &target.version.form) {
            (Shape::Metadata, _) => stored.write_metadata(&mut out),
            (_, Form::Custom(_)) => out.extend_from_slice(&whole(target, stored)),
            // As in Kubernetes, the items of a built-in list have no `apiVersion` and `kind`.
            _ if kinds::is_converted(&target.resource, &target.version) => {
                let mut object = target.read(stored);
                if let Some(map) = object.as_object_mut() {
                    map.remove("apiVersion");
                    map.remove("kind");
                }
                let _ = serde_json::to_writer(&mut out, &object);
            }
            _ => out.extend_from_slice(stored.body()),
        }
    }
    out.extend_from_slice(b"]}");
    Ok(out)
}
