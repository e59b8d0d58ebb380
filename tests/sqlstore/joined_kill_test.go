package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// How often the tests of this file kill. `make kills` sets both.
const (
	envKills         = "IDEMKEEPER_KILLS"
	envDatabaseKills = "IDEMKEEPER_DATABASE_KILLS"
)

// kills is how often a test kills. It prints lines "FIGURE name value" if the environment says it.
func kills(t *testing.T, env string, otherwise int) (n int, told bool) {
	t.Helper()
	text := os.Getenv(env)
	if text == "" {
		return otherwise, false
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", env, err)
	}
	return n, true
}

// TestJoinedPaysOnceWhileInstancesAreKilled kills processes at any moment (SIGKILL), while six
// clients pay. Two clients share each key, and each of them asks until it is answered. There is no
// resolver.
func TestJoinedPaysOnceWhileInstancesAreKilled(t *testing.T) {
	t.Parallel()
	n, tell := kills(t, envKills, 5)
	run := func(t *testing.T, b backend) {
		t.Helper()
		r := startKillRun(startService(t, b, serviceParts{}))
		r.run(n, func() {
			p := r.instances[rand.IntN(len(r.instances))]
			p.kill()
			p.start()
		})
		r.check()
		if tell {
			r.figures("instance-kills", n)
		}
	}
	onEach(t, run)
	compounding.run(t, run)
	if tell { // these add nothing to the few kills of a usual run
		pipelined.run(t, run)
		behindOwnPooler(t, func(t *testing.T, _ ownServer, b backend) { run(t, b) })
	}
}

// TestJoinedPaysOnceWhileTheDatabaseIsKilled kills the server of the database at any moment, and
// starts it on the same data. It syncs to the disk as in production. SQLite has no server: there a
// killed instance is a killed database.
func TestJoinedPaysOnceWhileTheDatabaseIsKilled(t *testing.T) {
	t.Parallel()
	n, tell := kills(t, envDatabaseKills, 2)
	run := func(t *testing.T, server ownServer, b backend) {
		t.Helper()
		r := startKillRun(startService(t, b, serviceParts{}))
		r.run(n, func() {
			server.Kill()
			server.Restart()
		})
		r.check()
		if tell {
			r.figures("database-kills", n)
		}
	}
	onOwnServers(t, run)
	if tell {
		t.Run(pipelined.name, func(t *testing.T) {
			server := testserver.StartPostgres(t)
			run(t, server, onPostgres(pipelined.name, asPipelined(t, server.URL())))
		})
		behindOwnPooler(t, run)
	}
}

// behindOwnPooler runs a test on a PostgreSQL and a PgBouncer of its own.
func behindOwnPooler(t *testing.T, run func(*testing.T, ownServer, backend)) {
	t.Helper()
	t.Run(throughPgBouncer.name, func(t *testing.T) {
		server := testserver.StartPostgres(t)
		pooler := testserver.StartPgBouncer(t, server.URL(), "server_login_retry = 0")
		run(t, server, onPostgres(throughPgBouncer.name, pooler.URL("postgres")))
	})
}

// killRun is a run of clients that pay while something is killed.
type killRun struct {
	*service  // on the same database, to look at it
	instances []*process
	history   *history

	answers atomic.Int64 // final ones
	// A request was interrupted if no answer came, or unavailable. Its client asked again, until it
	// got a payment that was there already, or until its own request ran.
	interrupted, replayed, ranAgain atomic.Int64
}

func startKillRun(s *service) *killRun {
	s.Helper()
	return &killRun{service: s, instances: startInstances(s), history: &history{paid: map[string]map[string]bool{}, final: map[string]string{}}}
}

// run has clients pay until kill was called n times.
func (r *killRun) run(n int, kill func()) {
	r.Helper()
	ctx, stop := context.WithCancel(r.Context())
	var killer, clients sync.WaitGroup
	killer.Go(func() {
		defer stop()
		for range n {
			// Clients get some answers between two kills, on a slow machine too.
			enough := r.answers.Load() + rand.Int64N(20)
			r.eventually("the clients are answered", func() bool { return r.answers.Load() >= enough || r.Failed() })
			<-time.After(rand.N(10 * time.Millisecond)) // any moment will do
			kill()
		}
	})
	var next atomic.Int64
	for range 6 {
		clients.Go(func() {
			client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
			for ctx.Err() == nil && r.payUntilAnswered(ctx, client, fmt.Sprintf("key-%d", next.Add(1)/2)) {
			}
		})
	}
	killer.Wait()
	clients.Wait()
}

// payUntilAnswered asks for a payment until it is answered, and once the kills are over, not much longer.
func (r *killRun) payUntilAnswered(kills context.Context, client *http.Client, key string) bool {
	interrupted := false
	for quiet := time.Now(); time.Since(quiet) < 2*patience; {
		if kills.Err() == nil {
			quiet = time.Now()
		}
		a, err := r.instances[rand.IntN(len(r.instances))].pay(client, key)
		if err == nil {
			r.history.note(key, a)
		}
		if err == nil && settled(a) {
			r.answers.Add(1)
			switch {
			case interrupted && a.replayed:
				r.replayed.Add(1)
			case interrupted:
				r.ranAgain.Add(1)
			}
			return true
		}
		refused := errors.Is(err, syscall.ECONNREFUSED) || a.code == string(idem.CodeInProgress)
		if !refused && !interrupted {
			interrupted = true
			r.interrupted.Add(1)
		}
		<-time.After(rand.N(5 * time.Millisecond)) // as Retry-After asks for
	}
	r.Errorf("%s was never answered, the last time %v", key, r.history.last(key))
	return false
}

// check wants one payment for each key, no outcome in doubt, and every answer to be replayed byte
// for byte.
func (r *killRun) check() {
	r.Helper()
	h := r.history
	h.check(r.T, r.service)
	r.wantPayments(len(h.final))
	if open := get[int](r, r.pools.read, r.store.sql("SELECT count(*) FROM {records} WHERE state <> 3")); open > 0 {
		r.Errorf("%d records are not completed, want 0", open)
	}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for key := range h.final {
		a, err := r.instances[rand.IntN(len(r.instances))].pay(client, key)
		if err != nil || a.status != http.StatusCreated || !a.replayed || len(h.paid[key]) != 1 || !h.paid[key][a.body] {
			r.Errorf("%s is replayed as %v, %v, and clients were told %v", key, a, err, h.paid[key])
		}
	}
	r.Logf("%d payments, %d requests interrupted, then %d replayed and %d run again", len(h.final), r.interrupted.Load(), r.replayed.Load(), r.ranAgain.Load())
}

// figures prints what was killed and how it went. A failed check fails the test beside them.
func (r *killRun) figures(what string, kills int) {
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"kills", int64(kills)}, {"instances", int64(len(r.instances))}, {"keys", int64(len(r.history.final))}, {"answers", r.answers.Load()},
		{"interrupted", r.interrupted.Load()}, {"then-replayed", r.replayed.Load()}, {"then-ran-again", r.ranAgain.Load()},
	} {
		fmt.Fprintf(os.Stdout, "FIGURE joined-%s-%s-%s %d\n", what, r.backend.name, f.name, f.n)
	}
}
