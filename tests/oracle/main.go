// Command oracle writes down what github.com/Masterminds/semver/v3 says about
// version ranges, and sigs.k8s.io/cli-utils about the health of objects.
// crates/core/tests/{range,health}_oracle.rs compare Starling with it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

const library = "github.com/Masterminds/semver/v3"

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", 1, "seed of the random corpus")
	ranges := flag.Int("ranges", 4000, "number of ranges in the random corpus")
	objects := flag.Int("objects", 2400, "number of random objects whose health is asked for")
	flag.Parse()

	out := bufio.NewWriter(os.Stdout)
	switch flag.Arg(0) {
	case "table":
		writeTable(out)
	case "random":
		writeRandom(out, *seed, *ranges)
	case "health":
		writeHealth(out, *seed, *objects)
	default:
		log.Fatal("usage: oracle [-seed N] [-ranges N] [-objects N] table|random|health")
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

// verdict says what the library makes of a range: "!" if it refuses it, else
// one digit per version, 1 for a version in the range.
func verdict(text string, versions []*semver.Version) string {
	constraint, err := semver.NewConstraint(text)
	if err != nil {
		return "!"
	}
	var digits strings.Builder
	for _, version := range versions {
		if constraint.Check(version) {
			digits.WriteByte('1')
		} else {
			digits.WriteByte('0')
		}
	}
	return digits.String()
}

// libraryVersion is the version of the range library that this program was built with.
func libraryVersion() string {
	return versionOf(library)
}

// versionOf is the version of a library that this program was built with.
func versionOf(library string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		log.Fatal("built without module information")
	}
	for _, dep := range info.Deps {
		if dep.Path == library {
			return dep.Version
		}
	}
	log.Fatalf("%s is not among the dependencies", library)
	return ""
}

func mustVersions(texts []string) []*semver.Version {
	versions := make([]*semver.Version, len(texts))
	for i, text := range texts {
		version, err := semver.NewVersion(text)
		if err != nil {
			log.Fatalf("%q is not a version: %v", text, err)
		}
		versions[i] = version
	}
	return versions
}

// writeList writes `"name": [...]` with one entry per line, so that a changed
// verdict is a changed line.
func writeList[T any](out *bufio.Writer, name string, entries []T, last bool) {
	fmt.Fprintf(out, "%s: [\n", compact(name))
	for i, entry := range entries {
		out.WriteString(compact(entry))
		if i < len(entries)-1 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	out.WriteByte(']')
	if !last {
		out.WriteByte(',')
	}
	out.WriteByte('\n')
}

// compact is JSON that leaves < and > readable.
func compact(value any) string {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		log.Fatal(err)
	}
	return strings.TrimSuffix(buffer.String(), "\n")
}

func sortedKeys(of map[string]any) []string {
	return slices.Sorted(maps.Keys(of))
}
