//! What to write to a member: which objects to apply, which to skip, which to prune.
