package load

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// printTrips writes a row for each case with its trips, as they were counted, and the p50 in trips at each number of connections.
// The last column has a rate. A mark says that the processors were busy.
func (r *Result) printTrips(out io.Writer) {
	columns := slices.Clone(r.Settings.Connections)
	if !slices.Contains(columns, sqlConnections) && slices.ContainsFunc(r.Cases, func(c CaseResult) bool { return c.Connections == sqlConnections }) {
		columns = append(columns, sqlConnections)
	}
	slices.Sort(columns)
	rated := slices.Max(columns)
	if slices.Contains(columns, plotConnections) {
		rated = plotConnections
	}
	head, line := []string{fmt.Sprintf("%-29s", "case"), "trips"}, []string{"---", "--:"}
	for _, n := range columns {
		head, line = append(head, fmt.Sprintf("p50 at %d", n)), append(line, "--:")
	}
	row := func(cells []string) { fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }
	row(append(head, fmt.Sprintf("req/s at %d", rated)))
	row(append(line, "--:"))
	for _, c := range cases {
		cells := []string{fmt.Sprintf("%-29s", c.name), notMeasured}
		for _, n := range columns {
			measured := r.find(c.name, n)
			if measured == nil {
				cells = append(cells, notMeasured)
				continue
			}
			cells[1] = r.trips(measured)
			cells = append(cells, r.inTrips(measured.Median.P50)+mark(measured.Median.Busy))
		}
		if cells[1] == notMeasured {
			continue
		}
		rate := notMeasured
		if measured := r.find(c.name, rated); measured != nil {
			rate = whole(measured.Median.Rate) + mark(measured.Median.Busy)
		}
		row(append(cells, rate))
	}
	fmt.Fprintln(out)
}
