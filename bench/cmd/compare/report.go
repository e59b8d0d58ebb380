package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchunit"
)

// report prints the tables and the RATIO lines. If everything was run, a missing case
// of a comparison is an error. Otherwise the
// comparison is left out, and the report names it.
func report(out io.Writer, s samples, table []comparison, everything bool) error {
	var complete []comparison
	var lacking []string
	for _, c := range table {
		if names := c.missing(s); len(names) > 0 {
			lacking = append(lacking, fmt.Sprintf("%s lacks %s", c.name, strings.Join(names, ", ")))
		} else {
			complete = append(complete, c)
		}
	}
	printCases(out, s)
	printComparisons(out, s, complete)
	if everything && len(lacking) > 0 {
		return fmt.Errorf("cases were not run: %s", strings.Join(lacking, "; "))
	}
	for _, l := range lacking {
		fmt.Fprintf(out, "left out: %s\n", l)
	}
	for _, c := range complete {
		fmt.Fprintf(out, "RATIO %s %.2f %g\n", c.name, c.typical(s), c.goal)
	}
	return nil
}

func printCases(out io.Writer, s samples) {
	w := newTable(out)
	fmt.Fprintln(w, "case\ttime\tspread\tcpu\tspread\tB/op\tallocs/op\t")
	for _, name := range slices.Sorted(maps.Keys(s)) {
		units := s[name]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", name,
			seconds(units["sec/op"]), seconds(units["cpu-sec/op"]), count(units["B/op"]), count(units["allocs/op"]))
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

// seconds fills two columns, the median and the spread of the rounds.
func seconds(figures []float64) string {
	if len(figures) == 0 {
		return "-\t-"
	}
	return fmt.Sprintf("%ss\t±%.0f%%", benchunit.Scale(median(figures), benchunit.Decimal), 100*spread(figures))
}

func count(figures []float64) string {
	if len(figures) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", median(figures))
}

func printComparisons(out io.Writer, s samples, table []comparison) {
	if len(table) == 0 {
		return
	}
	w := newTable(out)
	fmt.Fprintln(w, "comparison\tvalue\trounds\tgoal\t\t")
	for _, c := range table {
		v := c.typical(s)
		least, most := c.bounds(s)
		sign := "≤"
		if c.bound == atLeast {
			sign = "≥"
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f…%.2f\t%s %g\t%s\t\n", c.name, v, least, most, sign, c.goal, c.verdict(v))
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }
