//! Git: listing refs, fetching, reading trees.
