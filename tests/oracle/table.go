package main

import (
	"bufio"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Versions that every range is asked about; also the ones whose order is written down.
var versions = []string{
	"0.0.0", "0.0.0-0", "0.0.0-alpha", "0.0.1", "0.0.1-beta.1", "0.0.2", "0.0.3", "0.0.9", "0.1.0", "0.1.0-rc.1", "0.1.1",
	"0.1.9", "0.2.0", "0.2.3", "0.2.3-beta", "0.2.4", "0.3.0", "0.9.9", "1.0.0-0", "1.0.0-alpha", "1.0.0-alpha.1",
	"1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.0+build.1",
	"1.0.0+build.2", "1.0.1", "1.1.0", "1.1.9", "1.2.0-rc.1", "1.2.0", "1.2.2", "1.2.3-0", "1.2.3-beta.2",
	"1.2.3-beta.2+exp", "1.2.3-beta.3", "1.2.3", "v1.2.3", "1.2.3+meta", "1.2.4-beta.1", "1.2.4", "1.2.10", "1.3.0-alpha",
	"1.3.0", "1.9", "1.10.0", "1.99.99", "2.0.0-0", "2.0.0-rc.1", "2.0.0", "2", "2.0.1", "2.0.7", "2.1.0", "2.3.4", "2.99.0",
	"3.0.0-beta", "3.0.0", "3.1.4", "4.0.0", "10.0.0", "11.1.0", "11.1.1", "11.2.1", "12.0.0", "20.4.1-x-y-z.--",
	"1.0.0-5", "1.0.0-12", "1.0.0-18446744073709551615", "1.0.0-18446744073709551616", "1.0.0-99999999999999999999",
	"1.0.0-100000000000000000000", "1.0.0-A", "1.0.0-a", "1.0.0--1", "1.0.0-a.-1", "1.0.0-1a", "1.0.0-a.b.c", "1.0.0-a.b",
	"18446744073709551615.0.0", "0.18446744073709551615.0", "2024.10.1", "v3.0.0-rc.1+build",
}

// Ranges by what they try out.
var ranges = slices.Concat(
	// Every operator with every way to write a version.
	cross(
		[]string{"", "=", "!=", ">", "<", ">=", "=>", "<=", "=<", "~", "~>", "^"},
		[]string{
			"1.2.3", "1.2", "1", "1.2.x", "1.x", "*", "0.0.0", "0.0.3", "0.0", "0", "0.2.3", "0.2", "0.x", "0.0.x",
			"1.2.3-beta.2", "1.2-beta", "1-rc", "x-0", "1.0.0-0", "2.0.0-0", "11.1", "0.0.0-0", "1.2.x-beta.2",
		},
	),
	[]string{
		// What people write.
		">=1.2.0 <2.0.0", ">=1.2.0, <2.0.0", ">=1.2.0,<2.0.0", ">= 1.2.0 , < 2.0.0", ">=1.2.0\t<2.0.0", ">=1.2\n<2", "^1 || ^3",
		"^1||^3", "1.x || >=2.5.0 || 5.0.0 - 7.2.3", "1.x", "1.X", "1.*", "v1.x", "v1", "v1.2.3", "=v1.2.3", "^v1.2", ">=v1.0.0 <v2",
		"x", "X", "*", "x.x.x", "*.*.*", ">*", "<*", "~*", "^*", "!=*", ">=*", "<=*", "=*", "vx", ">=0", ">=0.0.0-0",
		"~1.2.3 || ~2.0.1", "!=1.2.3", "!=1.2.3 !=1.2.4", ">=1.0.0 !=1.2.x", ">1 <3 !=2.0.0", "^1.2.3-beta.2",
		// Hyphen ranges.
		"1.0 - 2.0", "1.0.0 - 2.0.0", "1 - 2", "v1 - v2", "1.x - 2.x", "* - 2", "1.2.3-beta.2 - 2.0.0-rc.1", "1.0 -2.0", "1.0- 2.0",
		"1.0-2.0", "1.0  -  2.0", " 1.0 - 2.0 ", "1.0 - 2.0 || 3.0", "3.0 || 1.0 - 2.0", "1 - 2 || 2.1 - 3", "!=1.5.0 1.0 - 2.0",
		"!=1.2.3, 1.0 - 2.0", "1.0 - 2.0 !=1.2.3", "1.0 - 2.0, !=1.2.3", ">=1.0 - 2.0", "1.0 - <2.0", "~1 - 2", "=1 - 2", "1 - 2 - 3",
		"1 - 2 - 3 || 2 - 3", "1 - 2 2 - 3", "1 - 2, 2 - 3", "1||2 - 3", "1 ||2 - 3", "1 || 2 - 3", "1.2.3.4 - 5", "1 - 2.3.4.5",
		"a1 - 2", "1 - 2a", "1-a - 2-b", "1-a- - 2", "2 - 1", "1+a - 2+b", "1.0.0\n-\n2.0.0", "1 - 2,", ",1 - 2", "1 -", "- 1", " - ",
		// Spaces, commas and bars.
		"", " ", "||", "1||", "||1", "1 || ", "1 | 2", "1|2", "1|||2", "x|||x", "x.|", "*.|.|", "1.x.|", "1.|", "x|", "1,,2", ",1", "1,",
		"1 ,", "1 , 2", "1, 2", " 1", "1 ", "1 2", "1  2", "> 1", ">  1.2", ">\t1", "> =1", "~ 1.2", "~ > 1", "^ 1", "! =1", "1\v2", "1\u00a02",
		"1\f2", "1\r\n2", "1;2", "1&2", "1 && 2", "1 and 2",
		// Operators that are none.
		"==1", "===1", "<>1", "!1", "!!=1", ">>1", "=!1", "=~1", "~=1", "^^1", "~^1", "><1", ">", "=", "^", "~", "!=", "=>=1", "not 1",
		// Versions that are none, or nearly.
		"latest", "stable", "main", "v", "vv1", "V1", "V1.2.3", "v 1", "1.", "1..2", ".1", "1.2.", "1.2.3.", "1.2.3.4", "a.b.c", "1.a", "1.2.a", "1a",
		"1.xx", "xx", "x1", "1x", "1.2x", "**", "1.**", "x.y", "x.1.2", "1.x.7", "1.x.x", "*.1", "x.2.3-beta", "1.x-0", "1.x.5-0", "1.x+b", "*+b", "1.2.x+b.c",
		"01.2.3", "1.02", "1.2.003", "00", "^01.2", "000.x", "1.2.3-01", "1.2.3-0a", "1.2.3-a.01", "1.x-00", "x-01", "1.2.3-", "1.2.3-a..b", "1.2.3-a.",
		"1.2.3+", "1.2.3+01", "1.2.3+a..b", "1.2.3-a+b", ">=1.2.3+b", "=1.0.0+build.1", "!=1.0.0+build.1", "1.2.3+a+b", "1.2.3_4", "1.2.3-a_b", "1,2",
		"18446744073709551615", "18446744073709551616", "1.18446744073709551616", "1.2.18446744073709551616", "x.18446744073709551616", ">18446744073709551615",
		"<=18446744073709551615.0", "<1.0.0-18446744073709551616", ">=1.0.0-99999999999999999999 <1.0.0", "-1", "+1", "1.-2", "1.+2", "１", "1.2.３", "1…2", "é",
		// Prereleases, group by group.
		">=1.0.0-0", ">=1.0.0-0 <2.0.0", ">=1.0.0 <2.0.0-0", ">=1.0.0-0 || ^2", "^1 || >=2.0.0-0 <3.0.0-0", ">1.0.0-alpha <1.0.0-rc", "<1.0.0-0", "~1.2.3-0",
		"^0.2.3-0", "^0.0.1-beta", "~0.0.0-0", "!=1.2.x-0", "!=1.2.x-beta.2, >=0-0", "!=1.x-0", "!=x-0", ">1.2-0", ">1-0", "<=1.2-0", "<=1-0", "<=x-0", ">x-0",
		"=1.2-0", "1.2.3-BETA", ">=1.0.0-alpha.1 <=1.0.0-beta.11", "1.0.0-alpha.beta", "=1.0.0--1", ">=1.0.0-5 <1.0.0-a",
		// Limits.
		strings.Repeat("1||", 31) + "1", strings.Repeat("1||", 32) + "1", ">=" + strings.Repeat("0", 300) + "1.0.0", strings.Repeat(" ", 511) + "1", strings.Repeat(" ", 512) + "1",
		"1.2.3-" + strings.Repeat("a", 250), "1.2.3-" + strings.Repeat("a", 251), "v1.2.3-" + strings.Repeat("a", 250), "1.2.3+" + strings.Repeat("a", 251),
		"1.2-" + strings.Repeat("a", 250), "1.2-" + strings.Repeat("a", 251), "1.x.x-" + strings.Repeat("a", 250), "1.x.x-" + strings.Repeat("a", 251),
		"1-" + strings.Repeat("a", 250), "1-" + strings.Repeat("a", 251), "x-" + strings.Repeat("a", 250), "x-" + strings.Repeat("a", 251),
		"x.0000.0000-" + strings.Repeat("a", 250), "1.2.x+" + strings.Repeat("a", 300), "x+" + strings.Repeat("a", 300), strings.Repeat("0", 250) + ".1.x", strings.Repeat("0", 253) + ".1.x",
		strings.Repeat(">=1 ", 128), strings.Repeat("1 - 2,", 85) + "1",
	},
)

// Texts to read as a version, valid and not.
var parsing = slices.Concat(versions, []string{
	"", " ", "v", "V1.2.3", "v1", "v1.2", "v1.2.3-rc.1+b.2", "vv1", "1.", ".1", "1..2", "1.2.", "1.2.3.", "1.2.3.4", "1.2.3 ", " 1.2.3", "1.2.3\n", "\n1.2.3",
	"01", "01.02.03", "v007", "1.2.3-01", "1.2.3-0", "1.2.3-00", "1.2.3-0a", "1.2.3-a.01", "1.2.3-a.00b", "1.2.3-", "1.2.3-a.", "1.2.3-.a", "1.2.3-a..b", "1.2.3--",
	"1.2.3-+b", "1.2.3+", "1.2.3+b", "1.2.3+01", "1.2.3+00.1", "1.2.3+a..b", "1.2.3+a+b", "1.2.3+a-b", "1.2.3-a+b", "1-a", "1.2-a", "1+b", "1.2+b", "1-a+b", "1.2-a.b+c.d",
	"1.2.3_a", "1.2.3-a_b", "1.2.3+a_b", "1.x", "x", "*", "1.*", "1|2", "latest", "main", "release-1.2.3", "chart/1.2.3", "foo-v1.2.3", "1.2.3^{}", "-1.2.3", "+1.2.3", "1.-2.3",
	"1.2.3-é", "１.2.3", "20240131", "2024-01-31", "2024.01.31", "v2024.01.31-1", "18446744073709551615", "18446744073709551616", "1.18446744073709551616", "1.2.18446744073709551616",
	"1.2.3-18446744073709551616", strings.Repeat("0", 255) + "1", strings.Repeat("0", 256) + "1", "1.2.3-" + strings.Repeat("a", 250), "1.2.3-" + strings.Repeat("a", 251),
	"1e3", "0x10", "1,2", "1.2,3", "1_000", "infinity", "nan",
})

type parsed struct {
	Text string `json:"text"`
	// Version in its canonical form; none if the text is not a version.
	Version *string `json:"version"`
	// Whether Flux takes it as a tag: a strict version, with or without a v.
	Full bool `json:"full"`
}

type judged struct {
	Range   string `json:"range"`
	Verdict string `json:"verdict"`
}

func writeTable(out *bufio.Writer) {
	read := mustVersions(versions)
	judgements := make([]judged, 0, len(ranges))
	for _, text := range unique(ranges) {
		judgements = append(judgements, judged{text, verdict(text, read)})
	}
	readings := make([]parsed, 0, len(parsing))
	for _, text := range unique(parsing) {
		reading := parsed{Text: text}
		if version, err := semver.NewVersion(text); err == nil {
			canonical := version.String()
			reading.Version = &canonical
			_, err := semver.StrictNewVersion(strings.TrimPrefix(text, "v"))
			reading.Full = err == nil
		}
		readings = append(readings, reading)
	}
	order := make([]string, len(read))
	for i, left := range read {
		for _, right := range read {
			order[i] += string("<=>"[left.Compare(right)+1])
		}
	}
	fmt.Fprintf(out, "{\n\"library\": %s,\n", compact(library+" "+libraryVersion()))
	writeList(out, "versions", versions, false)
	writeList(out, "ranges", judgements, false)
	writeList(out, "parsing", readings, false)
	writeList(out, "order", order, true)
	out.WriteString("}\n")
}

func cross(operators, operands []string) []string {
	var all []string
	for _, operator := range operators {
		for _, operand := range operands {
			all = append(all, operator+operand)
		}
	}
	return all
}

// unique drops repetitions and keeps the order.
func unique(texts []string) []string {
	seen := make(map[string]bool, len(texts))
	return slices.DeleteFunc(slices.Clone(texts), func(text string) bool {
		known := seen[text]
		seen[text] = true
		return known
	})
}
