//! Kinds that are answered and not stored: reviews of access, and tokens.
