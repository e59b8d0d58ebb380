// Command coverage reads profiles of go test -coverprofile and prints a line for each package with
// the share of its statements that the tests reach. Several test binaries may have run a
// statement, and one is enough. It exits with 1 if a package is below -least.
//
//	coverage [-least 92] [-lines] profile...
//
// With -lines it also prints the lines that no test reaches, as file:line.
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

func main() {
	least := flag.Float64("least", 92, "the least share of statements in `percent`")
	lines := flag.Bool("lines", false, "print the lines that no test reaches")
	flag.Parse()
	ok, err := report(os.Stdout, flag.Args(), *least, *lines)
	if err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// block is a stretch of statements.
type block struct {
	statements int
	reached    bool
}

// report prints the packages of the profiles, and tells whether each has its share.
func report(w io.Writer, profiles []string, least float64, lines bool) (ok bool, err error) {
	blocks := map[string]block{} // by "file:from,to"
	for _, p := range profiles {
		if err := read(p, blocks); err != nil {
			return false, err
		}
	}
	if len(blocks) == 0 {
		return false, fmt.Errorf("no statements in %q", profiles)
	}
	type share struct{ reached, all int }
	packages := map[string]share{}
	for at, b := range blocks {
		file, _, _ := strings.Cut(at, ":")
		s := packages[path.Dir(file)]
		s.all += b.statements
		if b.reached {
			s.reached += b.statements
		}
		packages[path.Dir(file)] = s
	}
	if lines {
		for _, at := range slices.SortedFunc(maps.Keys(blocks), byLine) {
			if !blocks[at].reached {
				fmt.Fprintln(w, at)
			}
		}
	}
	ok = true
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		s := packages[name]
		percent := 100 * float64(s.reached) / float64(s.all)
		verdict := ""
		if percent < least {
			ok, verdict = false, fmt.Sprintf("  BELOW %.0f", least)
		}
		fmt.Fprintf(w, "COVER %5.1f %% of %4d  %s%s\n", percent, s.all, name, verdict)
	}
	return ok, nil
}

// read adds the blocks of a profile. A line is "file:line.column,line.column statements count".
func read(profile string, blocks map[string]block) error {
	f, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewScanner(f)
	for in.Scan() {
		words := strings.Fields(in.Text())
		if len(words) == 2 && words[0] == "mode:" {
			continue
		}
		if len(words) != 3 {
			return fmt.Errorf("%s: unexpected line %q", profile, in.Text())
		}
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return fmt.Errorf("%s: %w", profile, err)
		}
		blocks[words[0]] = block{n, blocks[words[0]].reached || words[2] != "0"}
	}
	return in.Err()
}

// byLine compares "file:line.column,…" by file and then by number.
func byLine(a, b string) int {
	fileA, restA, _ := strings.Cut(a, ":")
	fileB, restB, _ := strings.Cut(b, ":")
	lineA, _, _ := strings.Cut(restA, ".")
	lineB, _, _ := strings.Cut(restB, ".")
	x, _ := strconv.Atoi(lineA)
	y, _ := strconv.Atoi(lineB)
	return cmp.Or(strings.Compare(fileA, fileB), cmp.Compare(x, y), strings.Compare(restA, restB))
}
