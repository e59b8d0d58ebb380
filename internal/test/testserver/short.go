package testserver

import "testing"

// LeftOut is what a test says that is skipped under "go test -short". It is the
// one reason for a skip that "make quick" accepts.
const LeftOut = "needs a server, left out under -short"

// NotRunHere begins what a test says that is skipped because this machine cannot have its
// server. A run of all tests tells of such tests, and counts them as neither passed nor
// failed.
const NotRunHere = "not run here: "

// needsServer skips the test under "go test -short". Every Start function and
// every Shared function begins with it.
func needsServer(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip(LeftOut)
	}
}
