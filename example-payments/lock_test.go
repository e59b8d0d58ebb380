package main

import (
	"strings"
	"testing"
)

// The lock is in the database, and no transaction is open while the card network is called. An instance that dies then leaves the
// key to the others once its lock has timed out.
func TestLockInTheDatabase(t *testing.T) {
	onEachServer(t, func(t *testing.T, database string) {
		flags := []string{"--database", database, "--token-store", "sql", "--lock", "sql", "--session-timeout", "6s", "--log-level", "debug"}
		victim, heir := serve(t, append(flags, "--processor-latency", "10m")...), serve(t, flags...)
		gone := make(chan error, 1)
		go func() {
			_, _, err := victim.request("POST", "/v1/payments", "k", orderBody)
			gone <- err
		}()
		victim.WaitLog(t, "at=before-ledger")
		heir.wantState("k", "pending")
		heir.want(409, "POST", "/v1/payments", "k", orderBody)
		if out, code := idemctl(t, database, "record", "show", "--scope", "merchant_demo", "k"); code != 0 || !strings.Contains(out, "alive: ") {
			t.Errorf("idemctl record show = %d %s, want a holder that lives", code, out)
		}
		if out, code := idemctl(t, database, "doctor"); code != 0 || !strings.Contains(out, "every open record has a known lock domain") {
			t.Errorf("idemctl doctor = %d %s, want a known lock domain", code, out)
		}
		victim.Kill(t)
		<-gone
		if status, body := heir.payUntilSettled("k"); status != 201 {
			t.Errorf("repeat: %d %s, want 201", status, body)
		}
		heir.wantPayments(1)
		heir.stops()
	})
}
