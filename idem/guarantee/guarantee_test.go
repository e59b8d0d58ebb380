package guarantee

import (
	"strings"
	"testing"
	"time"
)

// zooKeeper and the others are parts as lock and store describe them.
var (
	zooKeeper = Part{Name: "lock in ZooKeeper", Keeps: All}
	marking   = Part{Name: "lock in ZooKeeper with durable markers", Keeps: All, Remembers: ClockStep | ServerLoss | FailOver | Loss}
	redisLock = Part{Name: "lock in Redis", Keeps: Repeat | Outage | Crash | Pause, Supplies: map[Hazards]string{All: "lock/zookeeper"}}
	redis     = Part{Name: "records in Redis", Keeps: Repeat | Outage | Crash | Pause | ClockStep, Supplies: map[Hazards]string{ServerLoss: "WithReplicas", FailOver: "WithDurableMarkers", Loss: "WithWitness"}}
	witnessed = Part{Name: "records in Redis with a witness", Keeps: redis.Keeps | Loss, Supplies: redis.Supplies}
	postgres  = Part{Name: "records in PostgreSQL", Keeps: redis.Keeps}
)

// Each part that is taken away lowers the guarantee, and the refusal names what would supply it.
func TestWhatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	best := Setup{Route: "pay", Lock: marking, Store: witnessed, Resolves: true}
	if g := Of(best); g.Meets(AtMostOnceThroughLoss) != nil {
		t.Fatalf("the best set-up: %v", g.Meets(AtMostOnceThroughLoss))
	}
	for name, c := range map[string]struct {
		change func(*Setup)
		need   Need
		want   []string // in the error
	}{
		"no markers":              {func(s *Setup) { s.Lock = zooKeeper }, AtMostOnceThroughLoss, []string{"not through a fail-over", "WithDurableMarkers"}},
		"neither with a witness":  {func(s *Setup) { s.Lock, s.Store = zooKeeper, redis }, AtMostOnceThroughLoss, []string{"not through loss of the records", "WithWitness"}},
		"a lock in Redis":         {func(s *Setup) { s.Lock = redisLock }, AtMostOnceThroughLoss, []string{"not through a step of a clock, loss of a server, a fail-over, loss of the records", "lock/zookeeper"}},
		"no replicas":             {func(s *Setup) { s.Lock = zooKeeper }, Need{Fenced, ServerLoss, false}, []string{"not through loss of a server", "WithReplicas"}},
		"no fence":                {func(*Setup) {}, Need{Elsewhere, Crash | Pause, false}, []string{"no set-up gives that through a pause", "fence"}},
		"no transaction":          {func(*Setup) {}, ExactlyOnceInTransaction, []string{"sqlstore.Join"}},
		"no resolver":             {func(s *Setup) { s.Resolves = false }, Need{Elsewhere, Crash, true}, []string{"in doubt after a crash", "AskResolver"}},
		"no resolver, an outage":  {func(s *Setup) { s.Resolves = false }, Need{Elsewhere, Repeat | Outage, true}, []string{"in doubt after an outage", "AskResolver"}},
		"no resolver, a server":   {func(s *Setup) { s.Resolves, s.Lock, s.Store.Keeps = false, zooKeeper, All }, Need{Fenced, ServerLoss, true}, []string{"in doubt after loss of a server", "AskResolver"}},
		"runs again":              {func(s *Setup) { s.RunsAgain, s.Resolves = true, false }, AtMostOnce, []string{"not through repeats, an outage, a crash", "runs again in doubt"}},
		"runs again at a repeat":  {func(s *Setup) { s.RunsAgain, s.Resolves = true, false }, Need{Elsewhere, Repeat, false}, []string{"not through repeats", "runs again in doubt"}},
		"fails open":              {func(s *Setup) { s.FailsOpen = true }, AtMostOnce, []string{"not through repeats, an outage", "fails open"}},
		"fails open at a loss":    {func(s *Setup) { s.FailsOpen = true }, Need{Fenced, ServerLoss, false}, []string{"not through loss of a server", "fails open"}},
		"fails open, fails over":  {func(s *Setup) { s.FailsOpen = true }, Need{Fenced, FailOver, false}, []string{"not through a fail-over", "fails open"}},
		"joined, and a bank":      {func(s *Setup) { s.Joined = true }, AtMostOnce, []string{"rollback does not undo"}},
		"joined, and a repeat":    {func(s *Setup) { s.Joined = true }, Need{Elsewhere, Repeat, false}, []string{"not through repeats", "a repeat runs again"}},
		"joined, and a key of it": {func(s *Setup) { s.Joined = true }, OncePerDownstreamKey, []string{"CallsOtherSystems"}},
		"no hazard":               {func(*Setup) {}, Need{Effect: Elsewhere, NoDoubt: true}, []string{"no requirement"}},
		"an unknown effect":       {func(*Setup) {}, Need{Effect: 9, Through: Crash}, []string{"no requirement"}},
	} {
		s := best
		c.change(&s)
		g := Of(s)
		err := g.Meets(c.need)
		if err == nil {
			t.Errorf("%s: Meets(%v) = nil, want an error", name, c.need)
			continue
		}
		for _, part := range append(c.want, `"pay"`) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want it to say %q", name, err, part)
			}
		}
	}
}

func TestNeedsThatAreMet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s    Setup
		need Need
	}{
		"joined":                  {Setup{Joined: true, Store: postgres}, ExactlyOnceInTransaction},
		"joined, calling a bank":  {Setup{Joined: true, Store: postgres, CallsOthers: true}, OncePerDownstreamKey},
		"Redis alone":             {Setup{Lock: redisLock, Store: redis}, AtMostOnceThroughPause},
		"a lock, and a bank":      {Setup{Lock: redisLock, Store: redis, RunsAgain: true}, OncePerDownstreamKey},
		"a witness, and no marks": {Setup{Lock: zooKeeper, Store: witnessed}, Need{Fenced, Repeat | Loss, false}},
		"nothing":                 {Setup{}, Need{}},
	} {
		g := Of(c.s)
		if err := g.Meets(c.need); err != nil {
			t.Errorf("%s: Meets(%v) = %v", name, c.need, err)
		}
	}
}

// A part that does not say what it keeps through a crash gives nothing through one.
func TestPartThatSaysNothing(t *testing.T) {
	t.Parallel()
	g := Of(Setup{Route: "pay", Lock: Part{Name: "x", Keeps: Repeat | Outage}, Store: redis})
	if p := g.Of(Elsewhere); p.Once.Has(Crash) || !p.Once.Has(Repeat) || g.Of(200) != (Promise{}) {
		t.Errorf("Of(Elsewhere) = %+v", p)
	}
	if err := g.Meets(AtMostOnce); err == nil || !strings.Contains(err.Error(), "x does not give it") {
		t.Errorf("Meets(AtMostOnce) = %v", err)
	}
}

func TestLineForTheLog(t *testing.T) {
	t.Parallel()
	g := Of(Setup{Route: "POST /pay", Lock: zooKeeper, Store: witnessed, GateFirst: true, OptionalKey: true, KeyTTL: time.Hour})
	const want = "POST /pay: lock in ZooKeeper, records in Redis with a witness: " +
		"at most once anywhere else through every hazard but a pause, loss of a server, a fail-over (in doubt after an outage, a crash); " +
		"at a resource that checks the fence through every hazard but loss of a server, a fail-over (in doubt after an outage, a crash, a pause); " +
		"at a system that takes the downstream key through every hazard (in doubt after an outage, a crash, a pause); " +
		"if the request has a key, which is optional, and if the handler has no effect before the gate, and if repeats come within 1h0m0s of the first request"
	if got := g.String(); got != want {
		t.Errorf("String() =\n%s\nwant\n%s", got, want)
	}
}
