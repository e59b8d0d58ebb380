package load

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// sample is a result with two rounds.
func sample() *Result {
	r := &Result{Machine: "some <machine>", Settings: Settings{Connections: []int{64}, Rounds: 2}, Records: &Records{Number: 10, Bytes: 500, Body: 100}}
	add := func(name string, connections int, rounds ...Window) {
		r.Cases = append(r.Cases, CaseResult{Case: name, Connections: connections, Median: medianOf(rounds), Rounds: rounds})
	}
	add(idemZooKeeper, 64, Window{Rate: 100, P50: 20, Processor: 70, Service: 50, Redis: 20, Others: 0.5}, Window{Rate: 200, P50: 20, Processor: 80, Service: 60, Redis: 20, Others: 0.25})
	add(redisLock, 64, Window{Rate: 200, Processor: 30, Service: 30, Others: 0.25}, Window{Rate: 100, Processor: 30, Service: 30})
	add(plain, 64, Window{Rate: 50, P50: 10, Processor: 10, Service: 10, Others: 0.25}, Window{Rate: 50, P50: 10, Processor: 10, Service: 10})
	r.Goals = judge(r)
	return r
}

func TestGoals_CompareMedians(t *testing.T) {
	t.Parallel()
	want := []GoalResult{
		{Name: "fresh-64-processor-us", Value: 75, Least: 70, Most: 80, Goal: 80, Met: true},
		{Name: "fresh-64-redis-processor-us", Value: 20, Least: 20, Most: 20, Goal: 20, Met: true},
		{Name: "fresh-64-rate-vs-redislock", Value: 1, Least: 0.5, Most: 2, AtLeast: true, Goal: 0.9, Met: true},
		{Name: "fresh-64-rate-vs-plain", Value: 3, Least: 2, Most: 4, AtLeast: true, Goal: 1.7, Met: true},
		{Name: "record-bytes-without-body", Value: 400, Least: 400, Most: 400, Goal: 420, Met: true},
		{Name: "zookeeper-64-processor-vs-plain", Value: 7.5, Least: 7, Most: 8, Goal: 1},
	}
	if got := sample().Goals; !slices.Equal(got, want) {
		t.Errorf("goals of what was measured = %+v, want %+v", got, want)
	}
}

// A goal of loopback says nothing over a network, and the other way round.
func TestGoals_OverANetwork(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Settings.Delay = time.Millisecond
	want := []GoalResult{
		{Name: "record-bytes-without-body", Value: 400, Least: 400, Most: 400, Goal: 420, Met: true},
		{Name: "zookeeper-64-p50-vs-plain", Value: 2, Least: 2, Most: 2, Goal: 1.05},
		{Name: "zookeeper-64-rate-vs-plain", Value: 3, Least: 2, Most: 4, AtLeast: true, Goal: 0.95, Met: true},
	}
	if got := judge(r); !slices.Equal(got, want) {
		t.Errorf("goals over a network = %+v, want %+v", got, want)
	}
}

func TestReport_HasTimesInTripsAndMarksWhatTheProcessorsBounded(t *testing.T) {
	t.Parallel()
	r := &Result{Settings: Settings{Connections: []int{8}, Delay: time.Millisecond}}
	add := func(name string, connections, trips int, w Window) {
		r.Cases = append(r.Cases, CaseResult{Case: name, Connections: connections, Trips: trips, Median: w, Rounds: []Window{w}})
	}
	add(get, 1, 1, Window{P50: 2400, Busy: 0.2})
	add(redisLock, 8, 4, Window{P50: 10800, Busy: 0.86})
	for delay, want := range map[time.Duration][]string{
		time.Millisecond: {"| 4 | 4.50* | 0* |\n", "1ms to the servers and 1ms back", "|    1 |     1 |       1.00 |     2400 |        0 |       0 |  20 % |", "|    8 |     4 |       4.50 |    10800 |        0 |       0 | 86 %* |"},
		0:                {"Loopback", "|    8 |     - |       4.50 |"},
	} {
		var out bytes.Buffer
		r.Settings.Delay = delay
		r.Print(&out)
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("with a delay of %v the report does not have %q:\n%s", delay, text, &out)
			}
		}
	}
}

func TestGoals_AreMissedOnTheWrongSide(t *testing.T) {
	t.Parallel()
	of := func(v float64) measured { return func(*Result) []float64 { return []float64{v} } }
	for _, c := range []struct {
		value   float64
		atLeast bool
		met     bool
	}{{1, true, true}, {1.1, true, true}, {0.9, true, false}, {1, false, true}, {1.1, false, false}, {0.9, false, true}} {
		got, ok := goal{of: of(c.value), atLeast: c.atLeast, value: 1}.judge(nil)
		if !ok || got.Met != c.met {
			t.Errorf("judge(%v, at least: %t) = %+v, want met: %t", c.value, c.atLeast, got, c.met)
		}
	}
}

func TestReport_HasARatioLineForEachGoal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := sample()
	r.Goals = append(r.Goals, GoalResult{Name: "out-of-reach", Value: 0.456, AtLeast: true, Goal: 0.9})
	r.Print(&out)
	for _, want := range []string{
		"\nRATIO fresh-64-processor-us 75.00 80 met\n", "\nRATIO out-of-reach 0.46 0.9 missed\n",
		"takes up 500 bytes of Redis with a body of 100", "used 25 % of the processors, and 50 % in the worst window",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not have %q:\n%s", want, &out)
		}
	}
}

func TestPlot_ShowsEachCase(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := sample().WritePlot(&out); err != nil {
		t.Fatal(err)
	}
	checkSVG(t, out.String())
	for _, want := range []string{"some &lt;machine&gt;", ">" + plain + "<", ">" + redisLock + "<", ">150<", ">75<"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plot does not have %q:\n%s", want, &out)
		}
	}
}
