// Package kit runs the sample service and idemctl as processes, with real servers behind them, and
// talks to them as their clients do. The packages below tests share it.
//
//   - main.go builds the programs and waits for conditions.
//   - process.go is a running program, and system.go the servers and instances of one test.
//   - client.go pays over HTTP (transport_http.go) or gRPC (transport_grpc.go), and answer.go is what it gets.
//   - ledger.go compares answers with the ledger.
//   - points.go stops an instance at a chosen moment of a request.
//   - commands.go is for tests that also run idemctl.
//
// A package that uses it has a TestMain that calls [Main].
package kit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Main runs the tests of a package. Up to six run at once, because they mostly wait for other
// processes.
func Main(m *testing.M) int {
	testserver.ParallelTests(6)
	return testserver.Main(m)
}

// Fatal ends the test if there is an error.
func Fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// root is the folder of the workspace. The tests of a package run in the folder of the package.
var root = sync.OnceValue(func() string {
	dir, err := filepath.Abs(".")
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic("no folder above the tests has a go.work")
})

// built are the programs that this process has asked for, and what became of that.
var built = struct {
	mu    sync.Mutex
	files map[string]error
}{files: map[string]error{}}

// Binary returns the file of a program of the workspace. For some tests it is built with the race
// detector if the tests are. The first test that needs a program builds it. All packages of tests share the
// file, and the go command links it again only if the code has changed.
func Binary(t testing.TB, pkg string) string {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	file := filepath.Join(root(), "bin", "tests", filepath.Base(pkg))
	race := raceEnabled && underDetector(t.Name())
	if race {
		file += "-race"
	}
	err, done := built.files[file]
	if !done {
		err = build(pkg, file, race)
		built.files[file] = err
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

// build builds a program, and keeps the tests of other packages from building it at the same time.
func build(pkg, file string, race bool) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	lock, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which gives the lock back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	args := []string{"build", "-o", file}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

const (
	// WaitLimit bounds every wait for something that has to happen.
	WaitLimit = 60 * time.Second
	// pollPause is the time between two looks at a condition.
	pollPause = 20 * time.Millisecond
)

// Eventually waits until cond returns nil.
func Eventually(t testing.TB, what string, cond func() error) {
	t.Helper()
	if err := Poll(WaitLimit, cond); err != nil {
		t.Fatalf("no %s within %v: %v", what, WaitLimit, err)
	}
}

// Poll calls cond until it returns nil or the time is over.
func Poll(limit time.Duration, cond func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(pollPause) {
		err := cond()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// WaitFor waits for a signal.
func WaitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(WaitLimit):
		t.Fatalf("no %s within %v", what, WaitLimit)
	}
}

// ErrNotYet is the error of a condition that is not met yet.
var ErrNotYet = errors.New("not yet")
