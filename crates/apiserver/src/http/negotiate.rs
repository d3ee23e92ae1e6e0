//! Content negotiation: the `Accept` header.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

use crate::status::Status;

/// The shape of objects in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The whole object.
    Whole,
    /// The metadata only, as `PartialObjectMetadata`.
    Metadata,
    /// Rows of a `Table`.
    Table,
}

/// The content types of OpenAPI v2 in protobuf; clients send the second, since media types do not allow an `@`.
const OPENAPI_V2: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// The content type of objects in protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// What the `Accept` header of a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) shape: Shape,
    /// Whether the client asks for aggregated discovery.
    pub(crate) aggregated: bool,
    /// Whether the client asks for OpenAPI v2 in protobuf.
    pub(crate) openapi_protobuf: bool,
    /// Whether the client prefers objects in protobuf, and whether it takes JSON for what has no form in protobuf.
    pub(crate) protobuf: Option<Fallback>,
}

/// What a client takes instead of protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fallback {
    Json,
    Nothing,
}

/// One media type of the header with its parameters.
#[derive(Debug, Default)]
struct Form<'a> {
    media: &'a str,
    as_kind: &'a str,
    group: &'a str,
    version: &'a str,
}

impl<'a> Form<'a> {
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut form = Self {
            media: parts.next().unwrap_or_default(),
            ..Self::default()
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "as" => form.as_kind = value,
                "g" => form.group = value,
                "v" => form.version = value,
                _ => {}
            }
        }
        form
    }

    fn shape(&self) -> Option<Shape> {
        let meta = self.group == "meta.k8s.io" && matches!(self.version, "v1" | "v1beta1");
        match self.as_kind {
            "" => Some(Shape::Whole),
            "Table" if meta => Some(Shape::Table),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if meta => Some(Shape::Metadata),
            _ => None,
        }
    }
}

impl Accept {
    /// What a client accepts that says nothing about it.
    pub(crate) fn anything() -> Self {
        Self {
            shape: Shape::Whole,
            aggregated: false,
            openapi_protobuf: false,
            protobuf: None,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// The server supports none of the media types.
    pub(crate) fn read(headers: &HeaderMap, is_openapi_v2: bool) -> Result<Self, Status> {
        let text = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect::<Vec<_>>()
            .join(",");
        if text.trim().is_empty() {
            return Ok(Self::anything());
        }
        let mut protobuf = None;
        for form in text.split(',').map(Form::read) {
            if is_openapi_v2 && OPENAPI_V2.contains(&form.media) {
                return Ok(Self {
                    shape: Shape::Whole,
                    aggregated: false,
                    openapi_protobuf: true,
                    protobuf: None,
                });
            }
            let json = matches!(form.media, "application/json" | "application/*" | "*/*");
            if json && form.group == "apidiscovery.k8s.io" && form.version == "v2" {
                return Ok(Self {
                    shape: Shape::Whole,
                    aggregated: true,
                    openapi_protobuf: false,
                    protobuf: None,
                });
            }
            if form.media == PROTOBUF && form.shape() == Some(Shape::Whole) {
                protobuf = Some(Fallback::Nothing);
            }
            if let (true, Some(shape)) = (json, form.shape()) {
                return Ok(Self {
                    shape,
                    aggregated: false,
                    openapi_protobuf: false,
                    protobuf: protobuf.filter(|_| shape == Shape::Whole).map(|_| Fallback::Json),
                });
            }
        }
        if protobuf.is_some() {
            return Ok(Self {
                shape: Shape::Whole,
                aggregated: false,
                openapi_protobuf: false,
                protobuf,
            });
        }
        Err(Status::not_acceptable())
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn the_first_supported_media_type_is_selected() {
        for (text, shape) in [
            ("", Some(Shape::Whole)),
            ("application/json", Some(Shape::Whole)),
            ("*/*", Some(Shape::Whole)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Some(Shape::Table),
            ),
            (
                "application/vnd.kubernetes.protobuf, application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Some(Shape::Metadata),
            ),
            (
                "application/json;as=Foo;g=meta.k8s.io;v=v1,application/json",
                Some(Shape::Whole),
            ),
            ("application/vnd.kubernetes.protobuf", Some(Shape::Whole)),
            ("application/yaml", None),
        ] {
            let mut headers = HeaderMap::new();
            if !text.is_empty() {
                headers.insert(ACCEPT, HeaderValue::from_static(text));
            }
            assert_eq!(
                Accept::read(&headers, false).ok().map(|accept| accept.shape),
                shape,
                "{text}"
            );
        }
    }
}
