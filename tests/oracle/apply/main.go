// Command apply writes down what Kubernetes' own libraries say about
// server-side apply. crates/apiserver compares itself with it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"log"
	"os"
	"strings"
)

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", 1, "seed of the random corpus")
	runs := flag.Int("runs", 560, "number of runs in the random corpus")
	specs := flag.String("specs", "", "folder api/openapi-spec/v3 of Kubernetes")
	flag.Parse()

	out := bufio.NewWriter(os.Stdout)
	switch flag.Arg(0) {
	case "builtin":
		writeBuiltin(out, *specs)
	case "strategic":
		writeStrategic(out, *specs)
	case "patches":
		writePatches(out, *seed, 2**runs, *specs)
	case "table":
		writeTable(out, *specs)
	case "random":
		writeRandom(out, *seed, *runs, *specs)
	default:
		log.Fatal("usage: apply -specs FOLDER builtin | strategic | table | patches | apply [-seed N] [-runs N] -specs FOLDER random")
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

// compact is JSON on one line that leaves < and > readable.
func compact(value any) string {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		log.Fatal(err)
	}
	return strings.TrimSuffix(buffer.String(), "\n")
}

// writeLines writes a JSON list with one entry per line, so that a changed
// answer is a changed line.
func writeLines[T any](out *bufio.Writer, entries []T) {
	out.WriteString("[\n")
	for i, entry := range entries {
		out.WriteString(compact(entry))
		if i < len(entries)-1 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	out.WriteString("]\n")
}
