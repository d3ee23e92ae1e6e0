// What the Go library says about version ranges, written down for the tests of crates/core.
module starling.dev/oracle

go 1.26

require github.com/Masterminds/semver/v3 v3.5.0
