//! The inventory: what a Sync has on its member.
