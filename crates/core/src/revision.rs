//! Which commit a Source stands for.
