package main

import (
	"bufio"
	"fmt"
	"log"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Versions asked about per range.
const perRange = 4

// Share of ranges that are damaged afterwards, one in this many.
const damagedOneIn = 4

// generator makes ranges from a grammar. Numbers are small, so that versions
// fall on bounds and not only between them.
type generator struct{ *rand.Rand }

type sample struct {
	Range    string   `json:"r"`
	Versions []string `json:"v,omitempty"`
	Verdict  string   `json:"m"`
}

func writeRandom(out *bufio.Writer, seed uint64, count int) {
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	samples := make([]sample, count)
	for i := range samples {
		text := g.constraint()
		if g.IntN(damagedOneIn) == 0 {
			text = g.damage(text)
		}
		versions := make([]string, perRange)
		for j := range versions {
			versions[j] = g.version()
		}
		judgement := verdict(text, mustVersions(versions))
		if judgement == "!" {
			versions = nil
		}
		samples[i] = sample{text, versions, judgement}
	}
	fmt.Fprintf(out, "{\n\"library\": %s,\n\"seed\": %d,\n", compact(library+" "+libraryVersion()), seed)
	writeList(out, "samples", samples, true)
	out.WriteString("}\n")
}

func (g generator) constraint() string {
	groups := make([]string, 1+g.few(2))
	for i := range groups {
		groups[i] = g.group()
	}
	return strings.Join(groups, g.pick("||", " || ", "|| ", " ||"))
}

func (g generator) group() string {
	if g.IntN(8) == 0 {
		return g.operand() + g.pick(" - ", " - ", "  - ", " -\t", " -") + g.operand() + g.tail()
	}
	var text strings.Builder
	text.WriteString(g.pick("", "", "", " "))
	text.WriteString(g.comparator())
	text.WriteString(g.tail())
	return text.String()
}

// tail is more comparators, mostly few.
func (g generator) tail() string {
	var text strings.Builder
	for range g.few(3) {
		text.WriteString(g.pick(" ", " ", ", ", ",", " , ", "  "))
		if g.IntN(12) == 0 {
			text.WriteString(g.operand() + " - " + g.operand())
		} else {
			text.WriteString(g.comparator())
		}
	}
	return text.String()
}

func (g generator) comparator() string {
	operator := g.pick("", "", "=", "!=", ">", "<", ">=", ">=", "=>", "<=", "=<", "~", "~>", "^", "^")
	return operator + g.pick("", "", "", " ") + g.operand()
}

// operand is a version as a range has it: with wildcards, or short.
func (g generator) operand() string {
	text := g.pick("", "", "", "v") + g.part()
	for range 2 {
		if g.IntN(4) == 0 {
			break
		}
		text += "." + g.part()
	}
	return text + g.suffix()
}

func (g generator) part() string {
	if g.IntN(6) == 0 {
		return g.pick("x", "X", "*")
	}
	return g.number()
}

// version is one that the library can read.
func (g generator) version() string {
	text := g.number() + "." + g.number() + "." + g.number() + g.suffix()
	if _, err := semver.NewVersion(text); err != nil {
		log.Fatalf("made %q, which is not a version: %v", text, err)
	}
	return text
}

func (g generator) number() string {
	return strconv.Itoa(g.few(4))
}

func (g generator) suffix() string {
	var text string
	if g.IntN(4) == 0 {
		text += "-" + g.identifiers("0", "1", "2", "10", "a", "b", "rc", "A", "-", "x", "1a", "18446744073709551616")
	}
	if g.IntN(12) == 0 {
		text += "+" + g.identifiers("0", "01", "b", "x-y")
	}
	return text
}

func (g generator) identifiers(choice ...string) string {
	text := g.pick(choice...)
	for range g.few(2) {
		text += "." + g.pick(choice...)
	}
	return text
}

// damage puts a character in, takes one out, or doubles a piece.
func (g generator) damage(text string) string {
	at := g.IntN(len(text) + 1)
	switch g.IntN(3) {
	case 0:
		return text[:at] + g.pick(" ", ",", "|", "||", ".", "-", "+", "=", ">", "<", "!", "~", "^", "v", "x", "*", "0", "a", " - ", "\t", "\v") + text[at:]
	case 1:
		if at == len(text) {
			at--
		}
		return text[:at] + text[at+1:]
	default:
		end := at + g.IntN(len(text)-at+1)
		return text[:end] + text[at:]
	}
}

// few is a number from 0 to most, small ones more often.
func (g generator) few(most int) int {
	return min(g.IntN(most+1), g.IntN(most+1))
}

func (g generator) pick(choice ...string) string {
	return choice[g.IntN(len(choice))]
}
