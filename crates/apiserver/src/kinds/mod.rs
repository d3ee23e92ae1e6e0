//! The resources that a cluster serves: the built-in ones, which all clusters share, and those of its
//! CustomResourceDefinitions.
//!
//! The built-in kinds are data: `resources.json` (names, verbs, subresources: the discovery of a real API server),
//! `codec.json` (their Go structs) and `../schema/builtin.json` (how their fields merge). The behaviour of a kind
//! beyond that is its [`Strategy`], with defaults and validation.

mod check;
pub mod codec;
mod convert;
pub mod custom;
mod custom_version;
pub mod defaults;
mod pod_resources;
pub(crate) mod prepare;
pub mod protobuf;
pub mod quantity;
mod registry;
mod resource;
mod services;
pub mod strategy;
pub(crate) mod tables;
pub mod validate;
mod withheld;

pub(crate) use check::{check_create, check_update};
pub(crate) use convert::{is_converted, read_as, read_stored_version, shown, to_stored_version, to_version};
pub(crate) use custom_version::precedence;
pub use custom_version::{CustomVersion, Served};
pub use registry::Registry;
pub use resource::{Form, Resource, Scale, Subresource, Version};
pub use services::Addresses;
pub(crate) use services::FIRST as FIRST_ADDRESS;
pub use strategy::Strategy;
