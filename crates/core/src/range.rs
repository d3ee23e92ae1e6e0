//! Version ranges with the meaning of Masterminds/semver.
