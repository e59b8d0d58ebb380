package load

import (
	"flag"
	"io"
	"os"
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
	connections = flag.String("connections", "1,8", "numbers of connections")
	caseNames   = flag.String("cases", "", "cases to measure, all by default")
	ensemble    = flag.Int("ensemble", 3, "members of the ensemble, 1 for no ensemble")
	rounds      = flag.Int("rounds", 1, "how often every case is measured")
	warmup      = flag.Duration("warmup", 50*time.Millisecond, "before each window")
	window      = flag.Duration("window", 100*time.Millisecond, "how long a case is measured in each round")
	keyCount    = flag.Int("keys", 500, "keys that are repeated")
	recordCount = flag.Int("records", 2000, "records in the full store, 0 to leave its case out")
	profile     = flag.String("profile", "", "file for a processor profile of the service, with one case")
	jsonFile    = flag.String("json", "", "file for the result")
)

func settings(t *testing.T) Settings {
	t.Helper()
	s := Settings{
		Ensemble: *ensemble, Rounds: *rounds, Warmup: *warmup, Window: *window,
		Keys: *keyCount, Records: *recordCount, Profile: *profile,
	}
	for field := range strings.SplitSeq(*connections, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			t.Fatalf("-connections %q are not numbers of connections", *connections)
		}
		s.Connections = append(s.Connections, n)
	}
	if *caseNames != "" {
		s.Cases = strings.Split(*caseNames, ",")
	}
	return s
}

// TestLoad is "make load", and without flags a short run of it.
func TestLoad(t *testing.T) {
	var out io.Writer = os.Stdout
	if *jsonFile == "" {
		out = t.Output()
	}
	result, err := Measure(t.Context(), t, settings(t), out)
	if err != nil {
		t.Fatal(err)
	}
	result.Print(out)
	if *jsonFile != "" {
		if err := result.WriteJSON(*jsonFile); err != nil {
			t.Fatal(err)
		}
	}
}
