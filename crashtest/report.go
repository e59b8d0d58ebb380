package crashtest

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run has found.
type Report struct {
	Test     string
	Points   []PointInfo // that every run without a fault had
	Unstable []PointInfo // that some runs had, and in which no fault was tried
	Cases    []*Case
	Took     time.Duration
}

// tried reports whether a fault has happened at all, so that success means something.
func (r *Report) tried() bool {
	return slices.ContainsFunc(r.Cases, func(c *Case) bool {
		return c.Fault != Repeated && c.Result != NotReached && c.Result != LeftOut
	})
}

// Failures are the cases that failed, in the order of their points.
func (r *Report) Failures() (failed []*Case) {
	for _, c := range r.Cases {
		if c.Result == Failed {
			failed = append(failed, c)
		}
	}
	return failed
}

// String is the table of points and faults, the reasons of all failures, and for the first of them a timeline and a
// command that runs it again.
func (r *Report) String() string {
	var b strings.Builder
	r.table(&b)
	number := map[Result]int{}
	for _, c := range r.Cases {
		number[c.Result]++
	}
	fmt.Fprintf(&b, "%d cases in %v:", len(r.Cases), r.Took.Round(100*time.Millisecond))
	for _, result := range []Result{Once, None, Doubt, Failed, NotReached, LeftOut} {
		if n := number[result]; n > 0 {
			fmt.Fprintf(&b, " %d %s", n, result)
		}
	}
	b.WriteByte('\n')
	seen := map[string]bool{}
	for _, p := range r.Unstable {
		if !seen[p.Name] {
			seen[p.Name] = true
			fmt.Fprintf(&b, "Not tried, because only some runs have this point: %s\n", shorten(p.Name, longestName))
		}
	}
	missed := map[string][]string{}
	for _, c := range r.Cases {
		switch {
		case c.Result == LeftOut && !seen[c.Why]:
			seen[c.Why] = true
			fmt.Fprintf(&b, "Left out: %s, because %s\n", c.Fault, c.Why)
		case c.Result == NotReached:
			missed[c.Point.String()] = append(missed[c.Point.String()], c.name())
		}
	}
	for _, p := range r.Points {
		if faults := missed[p.String()]; len(faults) > 0 {
			fmt.Fprintf(&b, "Not tried, because the request did not come to %v again: %s\n", p, strings.Join(faults, ", "))
		}
	}
	failed := r.Failures()
	for _, c := range failed {
		fmt.Fprintf(&b, "FAILED %s: %s\n", c.where(), c.Why)
	}
	if len(failed) > 0 {
		c := failed[0]
		fmt.Fprintf(&b, "\nThe first failure, %s:\n%s\nRun it again:\n  %s\n", c.where(), c.Timeline, r.command(c))
	}
	return b.String()
}

func (c *Case) name() string {
	if c.Server != "" {
		return fmt.Sprintf("%s (%s)", c.Fault, c.Server)
	}
	return string(c.Fault)
}

func (c *Case) where() string {
	if c.Fault == Repeated {
		return "without a fault, when the request was repeated"
	}
	return fmt.Sprintf("at %v, %s", c.Point, c.name())
}

// table has a row for each point and a column for each fault.
func (r *Report) table(b *strings.Builder) {
	var columns []string
	cells := map[string]map[int]string{}
	for _, f := range AllFaults {
		for _, c := range r.Cases {
			if c.Fault != f {
				continue
			}
			name := c.name()
			if cells[name] == nil {
				cells[name] = map[int]string{}
				columns = append(columns, name)
			}
			cells[name][c.Point.Number] = c.Cell
		}
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\npoint\t%s\n", strings.Join(columns, "\t"))
	for _, p := range r.Points {
		row := []string{shorten(p.String(), longestName)}
		for _, column := range columns {
			cell, ok := cells[column][p.Number]
			if !ok {
				cell = "-"
			}
			row = append(row, cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // into memory
	b.WriteByte('\n')
}

// timeline merges what the clients and the process with the fault have seen.
func (r *runner) timeline(h *history, ill *instance, c *Case) string {
	h.mu.Lock()
	lines := append([]line(nil), h.lines...)
	h.mu.Unlock()
	for _, e := range ill.all() {
		var text string
		switch {
		case e.Is == isBefore:
			text = "before " + e.Name
		case e.Is == isAfter && e.Text != "":
			text = fmt.Sprintf("after %s: %s", e.Name, e.Text)
		case e.Is == isAfter:
			text = "after " + e.Name
		case e.Is == isReached:
			text = "FAULT: " + c.name()
		case e.Is == isResumed:
			text = "goes on"
		default:
			continue
		}
		lines = append(lines, line{at: e.at, text: fmt.Sprintf("process %d  %s", ill.cmd.Process.Pid, text)})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for i, l := range lines {
		if l.again != "" && i+1 < len(lines) && lines[i+1].again == l.again {
			continue // of equal answers in a row, the last one is enough
		}
		fmt.Fprintf(&b, "  %7.3f s  %s\n", l.at.Sub(h.start).Seconds(), l.text)
	}
	if out := ill.output.String(); out != "" {
		fmt.Fprintf(&b, "  the process wrote: %s\n", out)
	}
	return b.String()
}
