package load

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

// Print writes the tables, in Markdown, and the RATIO lines.
func (r *Result) Print(out io.Writer) {
	fmt.Fprintf(out, "\n%s. %s. Medians of %d rounds, windows of %v.\n\n", r.Machine, r.network(), r.Settings.Rounds, r.Settings.Window)
	if r.Settings.Delay > 0 {
		r.printTrips(out)
	}
	r.printCases(out)
	var others []float64
	for _, c := range r.Cases {
		for _, w := range c.Rounds {
			others = append(others, 100*w.Others)
		}
	}
	fmt.Fprintf(out, "Other processes used %.0f %% of the processors, and %.0f %% in the worst window.\n", median(others), slices.Max(others))
	if r.Records != nil {
		fmt.Fprintf(out, "A record takes up %.0f bytes of Redis with a body of %d, at %d records.\n", r.Records.Bytes, r.Records.Body, r.Records.Number)
	}
	fmt.Fprintln(out)
	r.printGoals(out)
	for _, g := range r.Goals {
		fmt.Fprintf(out, "RATIO %s %.2f %g %s\n", g.Name, g.Value, g.Goal, g.verdict())
	}
}

func (r *Result) printCases(out io.Writer) {
	const row = "| %-29s | %4s | %5s | %10s | %8s | %8s | %7s | %5s | %7s | %7s | %7s | %7s | %6s | %7s | %6s |\n"
	fmt.Fprintf(out, row, "case", "conn", "trips", "p50, trips", "p50, µs", "p99, µs", "req/s", "busy", "service", "ZooK.", "Redis", "sum, µs", "allocs", "bytes", "writes")
	fmt.Fprintf(out, row, "---", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:")
	for _, c := range cases {
		for i := range r.Cases {
			measured := &r.Cases[i]
			if measured.Case != c.name {
				continue
			}
			w := measured.Median
			fmt.Fprintf(out, row, c.name, fmt.Sprint(measured.Connections), r.trips(measured), r.inTrips(w.P50),
				whole(w.P50), whole(w.P99), whole(w.Rate), busy(w.Busy),
				tenths(w.Service), tenths(w.ZooKeeper), tenths(w.Redis), tenths(w.Processor),
				whole(w.Allocations), whole(w.Bytes), hundredths(w.Writes))
		}
	}
	fmt.Fprintln(out)
}

func (r *Result) network() string {
	if r.Settings.Delay == 0 {
		return "Loopback"
	}
	return fmt.Sprintf("%v to the servers and %[1]v back", r.Settings.Delay)
}

const notMeasured = "-"

func (r *Result) trips(c *CaseResult) string {
	if r.Settings.Delay == 0 {
		return notMeasured
	}
	return fmt.Sprint(c.Trips)
}

// inTrips writes a time as a number of trips. A trip takes as long as the p50 of one GET at one connection.
func (r *Result) inTrips(p50 float64) string {
	trip := r.find(get, 1)
	if trip == nil {
		return notMeasured
	}
	return hundredths(p50 / trip.Median.P50)
}

// mostBusy is the share of the processors above which a rate, and a time, is that of the processors and not of the network.
const mostBusy = 0.85

// mark marks what the processors have bounded.
func mark(busy float64) string {
	if busy > mostBusy {
		return "*"
	}
	return ""
}

func busy(share float64) string { return whole(100*share) + " %" + mark(share) }

func tenths(v float64) string { return fmt.Sprintf("%.1f", v) }

func hundredths(v float64) string { return fmt.Sprintf("%.2f", v) }

func whole(v float64) string { return fmt.Sprintf("%.0f", v) }

func (r *Result) printGoals(out io.Writer) {
	if len(r.Goals) == 0 {
		return
	}
	const row = "| %-36s | %7s | %15s | %7s | %7s |\n"
	fmt.Fprintf(out, row, "goal", "value", "rounds", "goal", "verdict")
	fmt.Fprintf(out, row, "---", "--:", "--:", "--:", "---")
	for _, g := range r.Goals {
		fmt.Fprintf(out, row, g.Name, fmt.Sprintf("%.2f", g.Value), fmt.Sprintf("%.2f…%.2f", g.Least, g.Most), g.bound(), g.verdict())
	}
	fmt.Fprintln(out)
}

// WriteJSON writes everything, each round of each case included.
func (r *Result) WriteJSON(file string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644) //nolint:gosec // a result to read
}
