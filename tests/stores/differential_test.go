package stores

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// The same requests get the same answers from every store and locker. A run makes random requests,
// one after the other, at several engines, until about five seconds have passed. A failing run prints
// its seed, and IDEMKEEPER_SEED repeats it.
func TestStoresAndLockersGiveTheSameAnswers(t *testing.T) {
	t.Parallel()
	const steps, budget = 100, 5 * time.Second
	first := uint64(time.Now().UnixNano())
	if s := os.Getenv("IDEMKEEPER_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first = n
	}
	sides := differentialSides(t)
	start := time.Now()
	for seed := first; seed == first || time.Since(start) < budget; seed++ {
		random := rand.New(rand.NewPCG(seed, 1))
		for _, s := range sides {
			s.tokens = nil
		}
		var history []string
		for range steps {
			step := randomStep(random, fmt.Sprint("merchant-", seed))
			var want string
			for i, s := range sides {
				got := s.take(t, step)
				if i == 0 {
					want = got
					history = append(history, fmt.Sprintf("%+v: %s", step, got))
				} else if got != want {
					t.Fatalf("seed %d: %+v:\n%s answers %s,\n%s answers %s; before that:\n%s",
						seed, step, sides[0].name, want, s.name, got, strings.Join(history, "\n"))
				}
			}
		}
		t.Logf("seed %d: %d steps, %d replays, %d refusals", seed, steps,
			count(history, "replayed true"), count(history, "refused"))
	}
}

func count(history []string, what string) (n int) {
	for _, line := range history {
		if strings.Contains(line, what) {
			n++
		}
	}
	return n
}

// side is an engine on one store and one locker.
type side struct {
	name   string
	engine *idem.Engine
	store  driver.Store
	tokens []idem.Key // that were issued, for the merchants by turns
}

// differentialStep is one thing that a client or an operator does.
type differentialStep struct {
	what            string // do, issue, status, resolve, apply or release
	scope           string
	key             int // of the client's keys, or of the issued tokens
	token           bool
	route           string
	body            string
	outcome         string // of the handler, if it runs
	resolverApplies bool
}

var (
	differentialRoutes   = []string{"leave", "ask", "rerun"}
	differentialOutcomes = []string{"201", "201", "201", "204", "402", "403", "403 after the gate", "429", "500", "504", "error", "panic", "no effect", "omitted", "relayed"}
)

func randomStep(random *rand.Rand, merchant string) differentialStep {
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	s := differentialStep{scope: merchant + one("", "-2"), key: random.IntN(6), token: random.IntN(5) == 0,
		route: one(differentialRoutes...), body: one("1250", "1250", "1250", "9999"), outcome: one(differentialOutcomes...), resolverApplies: random.IntN(2) == 0}
	s.what = one("do", "do", "do", "do", "do", "do", "do", "issue", "status", "resolve", "apply", "release")
	return s
}

// take does a step and says what came of it.
func (s *side) take(t *testing.T, step differentialStep) string {
	t.Helper()
	key := idem.Key(hostileText + strconv.Itoa(step.key))
	if step.token && len(s.tokens) > 0 {
		key = s.tokens[step.key%len(s.tokens)]
	}
	ctx, id, policy := t.Context(), idem.NewKeyID(step.scope, key), step.policy()
	switch step.what {
	case "issue":
		token, err := s.engine.IssueToken(ctx, step.scope, time.Hour)
		s.tokens = append(s.tokens, token.Value)
		return fmt.Sprint("issued ", err)
	case "status":
		st, err := s.engine.Status(ctx, step.scope, key, policy)
		return fmt.Sprintf("status %v %v attempt %d, its operation %v, resolves itself %v, %s",
			st.State, st.Kind, st.Attempt, st.OperationID == id.OperationID(), st.ResolvesItself, codeOf(err))
	case "resolve":
		rec, err := s.engine.Resolve(ctx, id, policy)
		return fmt.Sprintf("record %v attempt %d, %v", rec.State, rec.Attempt.Number, err != nil)
	case "apply", "release":
		resolution := idem.NotApplied()
		if step.what == "apply" {
			resolution = idem.Applied(idem.Response{Status: 201, Body: []byte("decided")})
		}
		before, err := s.store.Get(ctx, id)
		if err != nil || !before.State.Open() {
			return fmt.Sprintf("not open but %v, %v", before.State, err)
		}
		rec, err := s.engine.Decide(ctx, id, before.Attempt, resolution, driver.Decision{By: "ada", Reason: hostileText}, policy)
		return fmt.Sprintf("decided %v attempt %d, %v", rec.State, rec.Attempt.Number, err != nil)
	}
	return s.do(ctx, step, key, policy)
}

// policy is that of the step's route.
func (step differentialStep) policy() *idem.Policy {
	p := idem.Policy{Name: "POST /" + step.route + hostileText, AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	if step.token {
		p.IssuedTokens = true
	}
	switch step.route {
	case "ask":
		p.InDoubt = idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
			if step.resolverApplies {
				return idem.Applied(idem.Response{Status: 201, Body: []byte("found")}), nil
			}
			return idem.NotApplied(), nil
		})
	case "rerun":
		p.InDoubt = idem.RunAgain()
	}
	p, err := p.WithDefaults()
	if err != nil {
		panic(err)
	}
	return &p
}

var errDifferential = errors.New("the handler failed")

func (s *side) do(ctx context.Context, step differentialStep, key idem.Key, policy *idem.Policy) (said string) {
	ran := 0
	defer func() {
		if r := recover(); r != nil {
			said = fmt.Sprintf("panic %v, ran %d", r, ran)
		}
	}()
	op := idem.Operation{Transport: idem.TransportHTTP, Scope: step.scope, Key: key, Policy: policy, Fingerprint: idem.FingerprintOf("pay", step.body)}
	res, err := s.engine.Do(ctx, op, func(ctx context.Context) (idem.Response, error) {
		ran++
		return step.handle(ctx)
	})
	r := res.Response
	return fmt.Sprintf("status %d %q omitted %v %v attempt %d replayed %v, %s, ran %d",
		r.Status, r.Body, r.Omitted, r.Header, res.Attempt, res.Replayed, codeOf(err), ran)
}

// handle is the handler.
func (step differentialStep) handle(ctx context.Context) (idem.Response, error) {
	x, _ := idem.FromContext(ctx)
	r := idem.Response{Status: 201, Header: map[string][]string{"Content-Type": {hostileText}},
		Body: fmt.Appendf(nil, "%s attempt %d, its operation %v", step.body, x.Attempt, x.OperationID == x.KeyID.OperationID())}
	if n, err := strconv.Atoi(strings.Fields(step.outcome)[0]); err == nil {
		r.Status = n
	}
	switch step.outcome {
	case "403 after the gate":
		if _, err := idem.DownstreamKey(ctx, "bank"); err != nil {
			return r, err
		}
	case "error", "relayed":
		return r, errDifferential
	case "panic":
		panic("differential")
	case "no effect":
		idem.NoEffect(ctx)
	case "omitted":
		r.Body, r.Omitted = nil, true
	}
	return r, nil
}

// codeOf is what a client learns of an error.
func codeOf(err error) string {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return "refused " + string(r.Code)
	}
	if err != nil {
		return "error"
	}
	return "no error"
}

// differentialSides are the engines. The first one is the model.
func differentialSides(t *testing.T) []*side {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	client, err := redisstore.Connect(testserver.SharedRedis(t))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = client.Close() })
	apart, err := redisstore.New(t.Context(), client, redisstore.WithPrefix(testserver.KeyPrefix(t)), redisstore.WithLogger(log))
	kit.Fatal(t, err)
	marked, err := redisstore.New(t.Context(), client, redisstore.WithPrefix(testserver.KeyPrefix(t)), redisstore.WithLogger(log))
	kit.Fatal(t, err)
	redisLock, err := redislock.New(t.Context(), client, redislock.WithPrefix(testserver.KeyPrefix(t)), redislock.WithLogger(log))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = redisLock.Close(context.Background()) })
	var ensembles []*zookeeper.Client
	for range 2 {
		c, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: testserver.SharedZooKeeper(t), Chroot: testserver.Chroot(t), Logger: log})
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		ensembles = append(ensembles, c)
	}
	db, err := database.Open(testserver.SharedPostgres(t), database.Options{Connections: 4})
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = db.Close() })
	var inPostgres []*sqlstore.Store
	var prefix string
	for range 2 {
		prefix = fmt.Sprintf("differs_%x_", rand.Uint32())
		tables := sqlstore.WithTablePrefix(prefix)
		kit.Fatal(t, sqlstore.Migrate(t.Context(), db.Write, db.Dialect, tables))
		store, err := sqlstore.New(t.Context(), db.Write, db.Dialect, tables, sqlstore.WithLogger(log), sqlstore.WithExpiry(0))
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = store.Close() })
		inPostgres = append(inPostgres, store)
	}
	sqlLock, err := sqllock.New(t.Context(), db.Write, db.Dialect, sqllock.WithTablePrefix(prefix), sqllock.WithLogger(log))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = sqlLock.Close(context.Background()) })
	oneLock, inOne, _ := inRedis(t, testserver.SharedRedis(t), nil)
	sides := []*side{
		{name: "memory", store: memorystore.New()},
		{name: "Redis with its own lock", store: apart},
		{name: "Redis with lock and records in one place", store: inOne},
		{name: "Redis with marked locks in ZooKeeper", store: marked},
		{name: "PostgreSQL with locks in ZooKeeper", store: inPostgres[0]},
		{name: "PostgreSQL with its own locks", store: inPostgres[1]},
	}
	lockers := []driver.Locker{memorylock.New(), redisLock, oneLock, ensembles[0].Locker(zookeeper.WithDurableMarkers()), ensembles[1].Locker(), sqlLock}
	for i, s := range slices.Backward(sides) {
		s.engine, err = idem.New(lockers[i], s.store)
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = s.engine.Close(context.Background()) })
	}
	return sides
}
