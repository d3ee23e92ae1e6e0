package main

import (
	"bufio"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// messages has the fields of the messages of a package by number: whether they
// are repeated.
type messages map[string]map[int]bool

var (
	packages = map[string]messages{}
	message  = regexp.MustCompile(`^message (\w+) \{`)
	field    = regexp.MustCompile(`^  (optional|repeated|map<[^>]*>) .*= (\d+);`)
	mapped   = regexp.MustCompile(`^  map<.*= (\d+);`)
)

// repeats says whether generated.proto repeats a field of a struct.
func repeats(of reflect.Type, number int) bool {
	known, ok := packages[of.PkgPath()]
	if !ok {
		known = read(of.PkgPath())
		packages[of.PkgPath()] = known
	}
	repeated, ok := known[of.Name()][number]
	if !ok {
		log.Fatalf("%v has no field %d in generated.proto", of, number)
	}
	return repeated
}

func read(pkg string) messages {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.Open(filepath.Join(strings.TrimSpace(string(dir)), "generated.proto"))
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	found := messages{}
	name := ""
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		if match := message.FindStringSubmatch(line); match != nil {
			name = match[1]
			found[name] = map[int]bool{}
		}
		if match := field.FindStringSubmatch(line); match != nil {
			number, _ := strconv.Atoi(match[2])
			found[name][number] = match[1] == "repeated"
		} else if match := mapped.FindStringSubmatch(line); match != nil {
			number, _ := strconv.Atoi(match[1])
			found[name][number] = false
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	return found
}
