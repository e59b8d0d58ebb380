package tests

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// logbook collects what a process prints, line by line.
type logbook struct {
	mu    sync.Mutex
	lines []string
	rest  []byte // of a line that has not ended yet
}

// Write implements io.Writer.
func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.lines = append(l.lines, string(line))
		l.rest = bytes.Clone(rest)
	}
}

// find returns the first line that holds all parts.
func (l *logbook) find(parts ...string) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if holdsAll(line, parts) {
			return line, true
		}
	}
	return "", false
}

// count tells how many lines hold all parts.
func (l *logbook) count(parts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if holdsAll(line, parts) {
			n++
		}
	}
	return n
}

func holdsAll(line string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(line, p) {
			return false
		}
	}
	return true
}

// tail returns the last lines.
func (l *logbook) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-n):], "\n") + "\n" + string(l.rest)
}

// waitLog waits for a line on standard error that holds all parts, and returns
// it. The process may have printed it before.
func (in *instance) waitLog(t testing.TB, parts ...string) string {
	t.Helper()
	var line string
	eventually(t, fmt.Sprintf("line %q of %s", parts, in.name), func() error {
		var ok bool
		if line, ok = in.stderr.find(parts...); ok {
			return nil
		}
		if !in.running() {
			return fmt.Errorf("%s has ended", in.name)
		}
		return errNotYet
	})
	return line
}

// neverLogged fails the test where a line holds all parts.
func (in *instance) neverLogged(t testing.TB, parts ...string) {
	t.Helper()
	if line, ok := in.stderr.find(parts...); ok {
		t.Errorf("%s has logged %q", in.name, line)
	}
}
