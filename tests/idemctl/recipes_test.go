package idemctl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// wantExitLine fails the test unless a command ended with this exit code and one line of
// idemctl's that holds all parts.
func wantExitLine(t testing.TB, what string, got kit.Result, code int, parts ...string) {
	t.Helper()
	_, line, ok := strings.Cut(got.Stderr, "idemctl: ") // a shell may have said something before
	if got.Code != code || !ok || strings.Count(line, "\n") != 1 || !kit.HoldsAll(line, parts) {
		t.Errorf("%s: exit code %d, %q, want %d and a line with %q", what, got.Code, got.Stderr, code, parts)
	}
}

// wantOutput fails the test unless a command ended with 0, printed this and
// complained of nothing.
func wantOutput(t testing.TB, what string, got kit.Result, stdout string) {
	t.Helper()
	if got.Code != 0 || got.Stdout != stdout || got.Stderr != "" {
		t.Errorf("%s = %q, %q, exit code %d, want %q and 0", what, got.Stdout, got.Stderr, got.Code, stdout)
	}
}

// waitForPlaces waits until n clients are in line at a path.
func waitForPlaces(s *kit.System, path string, n int) {
	s.T.Helper()
	conn := s.ZooKeeper()
	kit.Eventually(s.T, fmt.Sprintf("%d in line", n), func() error {
		if len(s.Children(conn, s.Chroot+path)) != n {
			return kit.ErrNotYet
		}
		return nil
	})
	conn.Close()
}
