package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// samples are the figures measured, by case and unit, one for each round.
type samples map[string]map[string][]float64

// add reads the output of one run of the test binary.
func (s samples) add(output io.Reader) error {
	r := benchfmt.NewReader(output, "output")
	found := false
	for r.Scan() {
		switch record := r.Result().(type) {
		case *benchfmt.Result:
			found = true
			name := caseName(record.Name)
			if s[name] == nil {
				s[name] = make(map[string][]float64)
			}
			for _, v := range record.Values {
				s[name][v.Unit] = append(s[name][v.Unit], v.Value)
			}
		case *benchfmt.SyntaxError:
			return record // a line that a log broke in two, perhaps
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	if !found {
		return errors.New("no benchmark was run")
	}
	return nil
}

// caseName leaves out the number of CPUs. Go appends it unless it is 1.
func caseName(n benchfmt.Name) string {
	base, parts := n.Parts()
	var b strings.Builder
	b.Write(base)
	for _, p := range parts {
		if !strings.HasPrefix(string(p), "-") {
			b.Write(p)
		}
	}
	return b.String()
}

// check returns an error unless each round has one sample of each case.
func (s samples) check(rounds int) error {
	for name, units := range s {
		if got := len(units["sec/op"]); got != rounds {
			return fmt.Errorf("%s was measured in %d rounds, want %d", name, got, rounds)
		}
	}
	return nil
}

// median needs at least one figure.
func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// spread is the greatest distance of a figure from the median, as a fraction of it.
func spread(figures []float64) float64 {
	m := median(figures)
	if m == 0 {
		return 0
	}
	return max(slices.Max(figures)-m, m-slices.Min(figures)) / m
}
