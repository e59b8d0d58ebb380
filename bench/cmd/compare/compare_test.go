package main

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"
)

// output is that of a test binary on two CPUs, log lines and all.
const output = `goos: linux
goarch: amd64
cpu: some
BenchmarkA/bare-2      	   30000	     40000 ns/op	    9000 B/op	     170 allocs/op
BenchmarkA/fresh-2     	   25000	     47600 ns/op	     47000 cpu-ns/op	   12000 B/op	     200 allocs/op
--- BENCH: BenchmarkA/fresh-2
    a_test.go:1: chatter
BenchmarkB/callers=64/x-2	    1000	   1000000 ns/op
BenchmarkB/callers=64/go-zookeeper-2	    1000	   4000000 ns/op
PASS
`

func parse(t *testing.T, outputs ...string) samples {
	t.Helper()
	s := make(samples)
	for _, o := range outputs {
		if err := s.add(strings.NewReader(o)); err != nil {
			t.Fatalf("add(%q) = %v, want <nil>", o, err)
		}
	}
	return s
}

func TestAdd_NamesCasesWithoutTheNumberOfCPUs(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]string{"two CPUs": output, "one CPU": strings.ReplaceAll(output, "-2 ", " ")} {
		s := parse(t, o, o)
		if err := s.check(2); err != nil {
			t.Errorf("%s: check(2) = %v, want <nil>", name, err)
		}
		for c, want := range map[string]float64{"A/bare": 40e-6, "A/fresh": 47.6e-6, "B/callers=64/x": 1e-3, "B/callers=64/go-zookeeper": 4e-3} {
			if got := s[c]["sec/op"]; len(got) != 2 || math.Abs(got[0]-want) > 1e-12 {
				t.Errorf("%s: %s = %v, want twice %v", name, c, got, want)
			}
		}
		if got := s["A/fresh"]["cpu-sec/op"]; len(got) != 2 || math.Abs(got[0]-47e-6) > 1e-12 {
			t.Errorf("%s: processor time of A/fresh = %v, want twice 47e-6", name, got)
		}
		if got := s["A/fresh"]["allocs/op"]; len(got) != 2 || got[1] != 200 {
			t.Errorf("%s: allocations of A/fresh = %v, want twice 200", name, got)
		}
	}
}

func TestAdd_RefusesOutputItCannotRead(t *testing.T) {
	t.Parallel()
	for _, o := range []string{"", "PASS\n", "BenchmarkA/bare-2 \t a log line broke this one\n"} {
		if err := make(samples).add(strings.NewReader(o)); err == nil {
			t.Errorf("add(%q) = <nil>, want an error", o)
		}
	}
}

func TestCheck_WantsEveryCaseInEveryRound(t *testing.T) {
	t.Parallel()
	s := parse(t, output, "BenchmarkA/bare-2 1 1 ns/op\n")
	if err := s.check(2); err == nil {
		t.Error("check(2) = <nil> with a case that one round lacks, want an error")
	}
}

func TestMedianAndSpread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		figures        []float64
		median, spread float64
	}{
		{[]float64{3}, 3, 0},
		{[]float64{9, 1, 4}, 4, 1.25},
		{[]float64{4, 1, 2, 100}, 3, 97.0 / 3},
		{[]float64{0, 0}, 0, 0},
	} {
		if m, s := median(tt.figures), spread(tt.figures); m != tt.median || s != tt.spread {
			t.Errorf("median, spread of %v = %v, %v, want %v, %v", tt.figures, m, s, tt.median, tt.spread)
		}
	}
}

func TestComparison_ValueAndVerdict(t *testing.T) {
	t.Parallel()
	s := parse(t, "BenchmarkA 1 10 ns/op\nBenchmarkABase 1 4 ns/op\nBenchmarkB 1 5 ns/op\nBenchmarkBBase 1 1 ns/op\n")
	for _, tt := range []struct {
		c       comparison
		value   float64
		verdict string
	}{
		{comparison{kase: "A", peer: "B", goal: 2}, 2, "met"},
		{comparison{kase: "A", peer: "B", goal: 1.9}, 2, "missed"},
		{comparison{kase: "A", peer: "B", bound: atLeast, goal: 2}, 2, "met"},
		{comparison{kase: "A", peer: "B", bound: atLeast, goal: 2.1}, 2, "missed"},
		{comparison{kase: "A", base: "ABase", scale: 1e9, goal: 6}, 6, "met"},
		{comparison{kase: "A", base: "ABase", peer: "B", peerBase: "BBase", goal: 1}, 1.5, "missed"},
		{comparison{kase: "ABase", base: "A", goal: 1}, math.NaN(), "lost in noise"},
		{comparison{kase: "A", base: "ABase", peer: "BBase", peerBase: "B", goal: 1}, math.NaN(), "lost in noise"},
		{comparison{kase: "A", peer: "B", peerBase: "B", bound: atLeast, goal: 1}, math.NaN(), "lost in noise"},
	} {
		tt.c.unit = "sec/op"
		v := tt.c.value(s, median)
		same := math.Abs(v-tt.value) < 1e-6 || math.IsNaN(v) && math.IsNaN(tt.value)
		if !same || tt.c.verdict(tt.value) != tt.verdict {
			t.Errorf("%+v: value = %v, verdict = %q, want %v, %q", tt.c, v, tt.c.verdict(tt.value), tt.value, tt.verdict)
		}
	}
}

func TestComparison_CountsCalmRounds(t *testing.T) {
	t.Parallel()
	var outputs []string
	for _, round := range []string{"9 ns/op 40 base-ns/op", "2 ns/op 10 base-ns/op", "8 ns/op 30 base-ns/op", "4 ns/op 11 base-ns/op", "1 ns/op 20 base-ns/op", "7 ns/op 35 base-ns/op"} {
		outputs = append(outputs, "BenchmarkA 1 "+round+"\n")
	}
	s := parse(t, outputs...)
	c := comparison{unit: "sec/op", kase: "A", scale: 1e9}
	if v := c.typical(s); math.Abs(v-5.5) > 1e-6 {
		t.Errorf("typical = %v, want 5.5, the median", v)
	}
	c.calm = "base-sec/op"
	if v := c.typical(s); math.Abs(v-3) > 1e-6 {
		t.Errorf("typical of calm rounds = %v, want 3, the median of 2 and 4", v)
	}
}

func TestComparison_Bounds(t *testing.T) {
	t.Parallel()
	c := comparison{unit: "sec/op", kase: "A", base: "Base", scale: 1e9}
	s := parse(t, "BenchmarkA 1 10 ns/op\nBenchmarkBase 1 4 ns/op\n", "BenchmarkA 1 10 ns/op\nBenchmarkBase 1 12 ns/op\n",
		"BenchmarkA 1 13 ns/op\nBenchmarkBase 1 5 ns/op\n")
	if least, most := c.bounds(s); math.Abs(least-6) > 1e-6 || math.Abs(most-8) > 1e-6 {
		t.Errorf("bounds of 6, noise and 8 = %v, %v, want 6, 8", least, most)
	}
	s = parse(t, "BenchmarkA 1 10 ns/op\nBenchmarkBase 1 12 ns/op\n")
	if least, most := c.bounds(s); !math.IsNaN(least) || !math.IsNaN(most) {
		t.Errorf("bounds of noise = %v, %v, want NaN", least, most)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	table := []comparison{
		{name: "fresh-added-us", unit: "sec/op", kase: "A/fresh", base: "A/bare", scale: micro, goal: 8},
		{name: "b", unit: "sec/op", kase: "B/callers=64/go-zookeeper", peer: "B/callers=64/x", goal: 1},
		{name: "gone", unit: "sec/op", kase: "A/fresh", peer: "C/nowhere", goal: 1},
	}
	s := parse(t, output)

	var out strings.Builder
	if err := report(&out, s, table[:2], true); err != nil {
		t.Errorf("report() = %v, want <nil>: a missed goal is no error", err)
	}
	for _, want := range []string{"47.60µs", "47.00µs", "≤ 8   met", "≤ 1   missed", "RATIO fresh-added-us 7.60 8\n", "RATIO b 4.00 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report() does not say %q:\n%s", want, out.String())
		}
	}

	out.Reset()
	if err := report(&out, s, table, true); err == nil || !strings.Contains(err.Error(), "gone lacks C/nowhere") {
		t.Errorf("report() of a suite without C/nowhere = %v, want an error that names it", err)
	}
	out.Reset()
	err := report(&out, s, table, false)
	if err != nil || !strings.Contains(out.String(), "left out: gone lacks C/nowhere\n") || strings.Contains(out.String(), "RATIO gone") {
		t.Errorf("report() of a part = %v, want <nil> and a comparison left out:\n%s", err, out.String())
	}
}

// The table itself: names that are no fields of their own would break the
// RATIO lines, and a goal has to be one.
func TestComparisons_AreWellFormed(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, c := range comparisons {
		if c.name == "" || strings.ContainsAny(c.name, " \t\n") || seen[c.name] {
			t.Errorf("comparison %q has no name of its own in one word", c.name)
		}
		seen[c.name] = true
		if c.unit == "" || c.kase == "" || c.goal <= 0 || c.peerBase != "" && c.peer == "" {
			t.Errorf("comparison %s is not complete: %+v", c.name, c)
		}
	}
}

func TestRun_RefusesNoRounds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := run(ctx, options{rounds: 0, bench: everything}, &strings.Builder{}); err == nil {
		t.Error("run() with 0 rounds = <nil>, want an error")
	}
}
