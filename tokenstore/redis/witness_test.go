package redisstore

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// witnessed gives a store a document, whatever its prefix is.
func witnessed(w Witness) Option { return WithWitness(func(string) Witness { return w }) }

// Stores with different prefixes have different witnesses, and so a loss of one is not a loss of the
// other.
func TestEachPrefixHasItsWitness(t *testing.T) {
	ours, theirs := startMini(t), startMini(t)
	documents := make(map[string]*register)
	in := WithWitness(func(path string) *register {
		if documents[path] == nil {
			documents[path] = new(register)
		}
		return documents[path]
	})
	a := open(t, connect(t, "redis://"+ours.Addr()), in)
	b := open(t, connect(t, "redis://"+theirs.Addr()), WithPrefix("team-b"), in)
	wantWorking(t, a)
	wantWorking(t, b)
	theirs.FlushAll()
	b = open(t, connect(t, "redis://"+theirs.Addr()), WithPrefix("team-b"), in)
	wantLost(t, b)
	mustAccept(t, b, Shards)
	wantWorking(t, b)
	wantWorking(t, a)
	wantWorking(t, open(t, connect(t, "redis://"+ours.Addr()), in))
}

func TestWitnessPath(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"idem": "/idem/redis", "team-b": "/idem/redis/team-b", "a/b:c": "/idem/redis/a%2Fb:c", "a%2Fb:c": "/idem/redis/a%252Fb:c",
	} {
		if got := WitnessPath(prefix); got != want {
			t.Errorf("WitnessPath(%q) = %q, want %q", prefix, got, want)
		}
	}
}

// A store refuses the witness of a store with another prefix. It does not take the other's records
// for its own that were lost.
func TestWitnessOfAnotherPrefixIsRefused(t *testing.T) {
	m := startMini(t)
	w := new(register)
	a := open(t, connect(t, "redis://"+m.Addr()), witnessed(w))
	version := w.at()
	_, err := New(t.Context(), connect(t, "redis://"+m.Addr()), quiet(), WithPrefix("team-b"), witnessed(w))
	if err == nil || errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), `"idem"`) || !strings.Contains(err.Error(), `"team-b"`) {
		t.Errorf("New() = %v, want an error about the configuration that names both prefixes", err)
	}
	if w.at() != version {
		t.Error("the witness was written by a store that it does not belong to")
	}
	wantWorking(t, a)
}

// An operator of a service that shares the witness of another one by mistake reads so in the log.
func TestLogNamesTheRedisThatTheWitnessRemembers(t *testing.T) {
	a, b := startMini(t), startMini(t)
	w := new(register)
	open(t, connect(t, "redis://"+a.Addr()), witnessed(w))
	var log bytes.Buffer
	wantLost(t, open(t, connect(t, "redis://"+b.Addr()+"/3"), witnessed(w), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	for _, want := range []string{"witness_server=" + a.Addr() + "/0", "server=" + b.Addr() + "/3", "prefix=idem", "another service"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log has no %q: %s", want, log.String())
		}
	}
	log.Reset()
	a.FlushAll()
	wantLost(t, open(t, connect(t, "redis://"+a.Addr()), witnessed(w), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	if strings.Contains(log.String(), "another service") || !strings.Contains(log.String(), "records were lost") {
		t.Errorf("log after a loss: %s", log.String())
	}
}
