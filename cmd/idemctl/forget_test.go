package main

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func TestForget(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		settle(t, s, "done", driver.StateCompleted, &idem.Response{Status: 201, Body: []byte("secret")})
		s.doubt("doubt", created)
		settle(t, s, "free", driver.StateReleased, nil)
		begin(t, s, "runs")
		forget := func(code int, part string, args ...string) {
			t.Helper()
			got := idemctl(t, s.env, append([]string{"record", "forget", "--by", "ada", "--reason", "erasure"}, args...)...)
			if got.code != code || !strings.Contains(got.stdout+got.stderr, part) {
				t.Errorf("record forget %q = %+v, want %d and %q", args, got, code, part)
			}
		}
		forget(0, "attempt 1 answer removed by ada: erasure", "--scope", "m", "done")
		forget(0, "attempt 1 answer removed by ada: erasure", "--scope", "m", "doubt")
		for key, want := range map[idem.Key]driver.State{"done": driver.StateCompleted, "doubt": driver.StateUnknown} {
			if rec := stateOf(t, s, key); rec.State != want || !rec.Response.Omitted || rec.Response.Status != 201 {
				t.Errorf("record of %s = %+v, want %v without an answer", key, rec, want)
			}
		}
		forget(cli.ExitNothing, "no stored answer: it is completed", "--scope", "m", "done")
		forget(cli.ExitNothing, "no stored answer: it is released", "--scope", "m", "free")
		forget(cli.ExitNothing, "no stored answer: it is pending", "--scope", "m", "runs")
		forget(cli.ExitNothing, "no record", "--scope", "m", "none")
		forget(cli.ExitUsage, "--key-id", "--key-id", "5f")
		if got := idemctl(t, s.env, "record", "resolve", "--scope", "m", "doubt", "--not-applied"); got.code != 0 {
			t.Errorf("record resolve after it = %+v, want it settled", got)
		}
	})
}

// The answer of a doubt that was forgotten is not there for a file that was exported before.
func TestDecideOnAForgottenAnswer(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	s.doubt("k0", created)
	file := s.export(func(string) (decision, answer string) { return "applied", "kept" })
	if got := idemctl(t, s.env, "record", "forget", "--scope", "m", "k0"); got.code != 0 {
		t.Fatalf("record forget = %+v", got)
	}
	s.decide(cli.ExitFailed, "too long to be kept", file)
	if rec := stateOf(t, s, "k0"); rec.State != driver.StateUnknown {
		t.Errorf("record = %+v, want it in doubt", rec)
	}
}
