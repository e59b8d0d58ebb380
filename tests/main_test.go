package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	if os.Getenv(tellsSignals) != "" {
		os.Exit(tellSignals())
	}
	testserver.ParallelTests(6) // they mostly wait for other processes
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	defer removeBinaries()
	return testserver.Main(m)
}

// binaries are the programs under test. The first test that needs one builds it,
// so a run of the import rules alone builds none.
var binaries struct {
	mu    sync.Mutex
	dir   string
	built map[string]error
}

func removeBinaries() {
	if binaries.dir != "" {
		os.RemoveAll(binaries.dir)
	}
}

// binary returns the file of a program of this module. For some tests it is built with the race
// detector if the tests are.
func binary(t testing.TB, pkg string) string {
	t.Helper()
	binaries.mu.Lock()
	defer binaries.mu.Unlock()
	if binaries.dir == "" {
		dir, err := os.MkdirTemp("", "idemkeeper-e2e-") //nolint:usetesting // it outlives the first test
		if err != nil {
			t.Fatal(err)
		}
		binaries.dir, binaries.built = dir, map[string]error{}
	}
	file := filepath.Join(binaries.dir, filepath.Base(pkg))
	race := raceEnabled && underDetector(t.Name())
	if race {
		file += "-race"
	}
	err, done := binaries.built[file]
	if !done {
		err = build(pkg, file, race)
		binaries.built[file] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// underDetector reports whether the processes of a test run with the race detector, if the test does.
// These are the tests that send many requests at once. The detector makes each start of a process
// several times as long, and the tests of packages run under it anyway.
func underDetector(test string) bool {
	return strings.HasPrefix(test, "TestChaos") || strings.HasPrefix(test, "TestDuplicates") || strings.HasSuffix(test, "UnderLoad")
}

func build(pkg, file string, race bool) error {
	args := []string{"build", "-o", file}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

const (
	// waitLimit bounds every wait for something that has to happen.
	waitLimit = 60 * time.Second
	// pollPause is the time between two looks at a condition.
	pollPause = 20 * time.Millisecond
)

// eventually waits until cond returns nil.
func eventually(t testing.TB, what string, cond func() error) {
	t.Helper()
	if err := poll(waitLimit, cond); err != nil {
		t.Fatalf("no %s within %v: %v", what, waitLimit, err)
	}
}

// poll calls cond until it returns nil or the time is over.
func poll(limit time.Duration, cond func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(pollPause) {
		err := cond()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// waitFor waits for a signal.
func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(waitLimit):
		t.Fatalf("no %s within %v", what, waitLimit)
	}
}

var errNotYet = errors.New("not yet")
