package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
)

// Sample has the addresses and the output of a running example-payments.
type Sample struct {
	HTTP, GRPC string // HOST:PORT
	Log        string // file of its output
}

// URL is that of HTTP, without a slash at the end.
func (s Sample) URL() string { return "http://" + s.HTTP }

var readyLine = regexp.MustCompile(`(?m)^ready http=(\S+) grpc=(\S+)$`)

// StartSample starts the sample service on free ports, with further flags. The clean-up of the
// test ends it with SIGTERM, and fails the test if the sample does not end in order. The test
// binary builds the sample once, so its TestMain has to use [Main].
func StartSample(tb testing.TB, flags ...string) Sample {
	tb.Helper()
	needsServer(tb)
	path := share(tb, &shared.sample, "", func(string) (string, error) { return buildSample(shared.dir) })
	log := filepath.Join(tb.TempDir(), "sample.log")
	p, err := startProcess(program{name: "the sample", path: path, log: log,
		args: append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"}, flags...)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		err := p.end(syscall.SIGTERM)
		if code := p.cmd.ProcessState.ExitCode(); err != nil || code != 0 {
			tb.Errorf("the sample ended with exit code %d (%v)\n%s", code, err, logTail(log, 50))
		}
	})
	var s Sample
	err = poll(StartTimeout, p.exited, func() error {
		out, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		m := readyLine.FindSubmatch(out)
		if m == nil {
			return fmt.Errorf("the sample is not ready: %s", out)
		}
		s = Sample{HTTP: string(m[1]), GRPC: string(m[2]), Log: log}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// buildSample builds the sample in the workspace of this file, because other modules of the
// repository lack its dependencies.
func buildSample(dir string) (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("testserver: the folder of the sample is not known")
	}
	path := filepath.Join(dir, "example-payments")
	cmd := exec.Command("go", "build", "-o", path, "./example-payments")
	cmd.Dir = filepath.Join(filepath.Dir(file), "../../..")
	cmd.Env = append(os.Environ(), "GOWORK=") // the sample needs go.work, which modules beside the workspace switch off
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("testserver: build the sample: %w\n%s", err, out)
	}
	return path, nil
}
