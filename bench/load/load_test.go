package load

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if child, code := Child(); child {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// The defaults are a short run, to see that everything works. "make load" gives its own.
var (
	connections = flag.String("connections", "2", "numbers of connections")
	caseNames   = flag.String("cases", "", "cases to measure, all by default")
	delay       = flag.Duration("delay", 0, "of the network, in each direction")
	ensemble    = flag.Int("ensemble", 3, "members of the ensemble, 1 for no ensemble")
	rounds      = flag.Int("rounds", 1, "how often every case is measured")
	warmup      = flag.Duration("warmup", 20*time.Millisecond, "before each window")
	window      = flag.Duration("window", 40*time.Millisecond, "how long a case is measured in each round")
	keyCount    = flag.Int("keys", 200, "keys that are repeated")
	recordCount = flag.Int("records", 2000, "records in the full store, 0 to leave its case out")
	profile     = flag.String("profile", "", "file for a processor profile of the service, and with .allocs one of its allocations, with one case")
	jsonFile    = flag.String("json", "", "file for the result. The report then goes to the standard output")
	plotFile    = flag.String("plot", "", "file for the plot")
)

func settings(t *testing.T) Settings {
	t.Helper()
	s := Settings{
		Delay: *delay, Ensemble: *ensemble, Rounds: *rounds, Warmup: *warmup, Window: *window,
		Keys: *keyCount, Records: *recordCount, Profile: *profile,
	}
	for field := range strings.SplitSeq(*connections, ",") {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("-connections %q are not numbers: %v", *connections, err)
		}
		s.Connections = append(s.Connections, n)
	}
	if *caseNames != "" {
		s.Cases = strings.Split(*caseNames, ",")
	}
	return s
}

// TestLoad is "make load". Without flags it is a short run of every case, on real servers.
func TestLoad(t *testing.T) {
	var out io.Writer = os.Stdout
	resultFile, picture := *jsonFile, *plotFile
	if resultFile == "" {
		resultFile, out = filepath.Join(t.TempDir(), "load.json"), t.Output()
	}
	if picture == "" {
		picture = filepath.Join(t.TempDir(), "load.svg")
	}
	s := settings(t)
	result, err := Measure(t.Context(), t, s, out)
	if err != nil {
		t.Fatal(err)
	}
	var report, plot bytes.Buffer
	result.Print(io.MultiWriter(out, &report))
	if err := result.WriteJSON(resultFile); err != nil {
		t.Fatal(err)
	}
	if err := result.WritePlot(&plot); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(picture, plot.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}

	selected, err := selectCases(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range selected {
		checkCase(t, result, c)
		if !strings.Contains(report.String(), "| "+c.name+" ") {
			t.Errorf("the table has no row of %s:\n%s", c.name, &report)
		}
	}
	checkJSON(t, result, resultFile)
	checkSVG(t, plot.String())
	if s.Profile != "" {
		if info, err := os.Stat(s.Profile); err != nil || info.Size() == 0 {
			t.Errorf("profile: %v, want a file that is not empty", err)
		}
	}
}

// TestLoadOverANetwork wants trips that anybody can count in the flows.
func TestLoadOverANetwork(t *testing.T) {
	result, err := Measure(t.Context(), t, Settings{
		Connections: []int{4}, Delay: time.Millisecond, Cases: []string{bare, redisLock}, Ensemble: 1,
		Rounds: 1, Warmup: 10 * time.Millisecond, Window: 20 * time.Millisecond, Keys: 10,
	}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var report bytes.Buffer
	result.Print(&report)
	for _, want := range []struct {
		name               string
		connections, trips int
	}{{bare, 4, 0}, {redisLock, 4, 4}, {get, 1, 1}} {
		if c := result.find(want.name, want.connections); c == nil || c.Trips != want.trips {
			t.Errorf("%s with %d connections was measured as %+v, want %d trips:\n%s", want.name, want.connections, c, want.trips, &report)
		}
	}
	if trip := result.find(get, 1).Median.P50; trip < 2000 {
		t.Errorf("p50 of one GET = %v µs, want at least twice the delay", trip)
	}
}

// checkCase wants figures above zero. A case that uses no ZooKeeper or Redis has none.
func checkCase(t *testing.T, r *Result, c testCase) {
	t.Helper()
	for _, n := range c.connections {
		measured := r.find(c.name, n)
		if measured == nil || len(measured.Rounds) != r.Settings.Rounds {
			t.Errorf("%s with %d connections was measured as %+v, want %d rounds", c.name, n, measured, r.Settings.Rounds)
			continue
		}
		w := measured.Median
		for name, figure := range map[string]struct {
			value    float64
			positive bool
		}{
			"rate": {w.Rate, true}, "p50": {w.P50, true}, "p99": {w.P99, true}, "service": {w.Service, true},
			"redis": {w.Redis, c.redis}, "allocations": {w.Allocations, true}, "bytes": {w.Bytes, true},
			"locks per key": {w.LocksPerKey, c.keys == storm},
			// A replay takes no lock, so ZooKeeper may have had nothing to do.
			"zookeeper": {w.ZooKeeper, c.zooKeeper && c.keys != repeated || w.ZooKeeper > 0 && c.zooKeeper},
		} {
			if figure.value < 0 || figure.value > 0 != figure.positive {
				t.Errorf("%s with %d connections: %s = %v, want above zero: %t", c.name, n, name, figure.value, figure.positive)
			}
		}
		if c.full && (r.Records == nil || r.Records.Bytes <= float64(r.Records.Body)) {
			t.Errorf("records = %+v, want more bytes than those of the body", r.Records)
		}
	}
}

func checkJSON(t *testing.T, r *Result, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var read Result
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	want := *r
	want.Settings.Profile = ""
	if !reflect.DeepEqual(read, want) {
		t.Errorf("the file holds %+v, want %+v", read, want)
	}
}

func checkSVG(t *testing.T, svg string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the plot is not XML: %v\n%s", err, svg)
		}
	}
}

func TestSelectCases(t *testing.T) {
	t.Parallel()
	everything := Settings{Connections: []int{1, 64}, Ensemble: 3, Records: 10}
	for name, c := range map[string]struct {
		change func(*Settings)
		want   int // 0 is an error
	}{
		"all":            {func(*Settings) {}, len(cases)},
		"some":           {func(s *Settings) { s.Cases = []string{plain, stormCase} }, 2},
		"no ensemble":    {func(s *Settings) { s.Ensemble = 1 }, len(cases) - 2},
		"no full store":  {func(s *Settings) { s.Records = 0 }, len(cases) - 1},
		"unknown":        {func(s *Settings) { s.Cases = []string{plain, "mystery"} }, 0},
		"none left":      {func(s *Settings) { s.Cases, s.Ensemble = []string{plainEnsemble}, 1 }, 0},
		"a delay":        {func(s *Settings) { s.Cases, s.Delay = []string{plain}, time.Millisecond }, 2}, // and one GET
		"no connection":  {func(s *Settings) { s.Connections = []int{64, 0} }, 0},
		"no connections": {func(s *Settings) { s.Connections = nil }, 0},
	} {
		s := everything
		c.change(&s)
		got, err := selectCases(s)
		if len(got) != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: selectCases(%+v) = %d cases, %v, want %d", name, s, len(got), err, c.want)
		}
	}
}

func TestCasesWithADatabaseAreComparedAtSixteenConnectionsToo(t *testing.T) {
	t.Parallel()
	for _, given := range [][]int{{1, 64}, {1, sqlConnections}} {
		selected, err := selectCases(Settings{Connections: given, Cases: []string{plain, alone, idemMariaDB}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range selected {
			want := given
			if c.postgres || c.mariadb {
				want = slices.Compact(append(slices.Clone(given), sqlConnections))
			}
			if !slices.Equal(c.connections, want) {
				t.Errorf("%s is measured with %v connections, want %v", c.name, c.connections, want)
			}
		}
	}
}

func TestProcessorTime_CountsThisProcess(t *testing.T) {
	t.Parallel()
	pids := []int{os.Getpid()}
	before, err := processorTime(pids)
	if err != nil {
		t.Fatal(err)
	}
	for after := before; after < before+time.Millisecond; {
		if after, err = processorTime(pids); err != nil {
			t.Fatal(err)
		}
	}
	all, err := busyTime()
	if err != nil || all < before {
		t.Errorf("busyTime = %v, %v, want at least the %v of this process", all, err, before)
	}
	const none = 1<<22 + 1 // Linux numbers processes up to 1<<22
	if _, err := processorTime([]int{none}); err == nil {
		t.Error("processorTime of no process = nil error, want one")
	}
}
