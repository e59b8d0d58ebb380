// Package rolling has instances of two builds of the sample on the same servers and records, as in a rolling upgrade, while
// clients pay.
package rolling

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { os.Exit(kit.Main(m)) }

// olderEnv names the file of an older build of the sample, as make rolling builds it. Without it both builds are this one.
const olderEnv = "IDEMKEEPER_OLDER_SAMPLE"

// Two instances of one build are killed and replaced by the other build, one after the other, while clients pay each key at both. Every key
// is paid once, and both builds give the same answer to it byte for byte, whichever of them has paid.
func TestRollingUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	newer := kit.Binary(t, "./example-payments")
	older := newer
	if named := os.Getenv(olderEnv); named != "" {
		older = named
	}
	for name, flags := range map[string]func(t *testing.T) []string{
		"PostgreSQL, joined": func(*testing.T) []string { return []string{"--token-store", "sql"} },
		"Redis and ZooKeeper": func(t *testing.T) []string {
			t.Helper()
			s := kit.NewSystem(t)
			return []string{"--redis", s.Redis.URL(), "--zookeeper", strings.Join(s.ZK, ",") + s.Chroot, "--zookeeper-tick", kit.Tick.String()}
		},
	} {
		for order, builds := range map[string][2]string{"upgrade": {older, newer}, "going back": {newer, older}} {
			t.Run(name+", "+order, func(t *testing.T) {
				t.Parallel()
				replaceInstances(t, builds, append(flags(t), "--database", scratch.Empty(t, testserver.SharedPostgres(t)),
					"--processor-latency", "40ms", "--session-timeout", kit.SessionTimeout.String()))
			})
		}
	}
}

func replaceInstances(t *testing.T, builds [2]string, flags []string) {
	t.Helper()
	s := &service{t: t}
	start := func(slot, build int) {
		s.slots[slot].Store(kit.StartBuild(t, builds[build], fmt.Sprintf("instance %d of build %d", slot, build), flags...))
	}
	start(0, 0)
	start(1, 0)
	stop := s.startClients()
	s.awaitMore(20)
	s.slots[0].Load().Kill(t) // payments of its clients are under way
	start(0, 1)
	s.awaitMore(40) // paid with both builds
	s.slots[1].Load().Kill(t)
	start(1, 1)
	s.awaitMore(20)
	stop()

	// All of the second build now answer what the first has paid, and an instance of the first what the second has paid.
	s.slots[1].Load().Kill(t)
	start(1, 0)
	for _, p := range s.paid {
		for slot := range s.slots {
			a := s.pay(slot, p)
			if !a.IsPayment() || !a.Replayed || a.Wire != p.wire {
				t.Errorf("%s over %v at instance %d = %v, want %q replayed", p.key, p.via, slot, a, p.wire)
			}
		}
		kit.WantOnePayment(t, s.slots[0].Load().HTTPClient(), p.key)
	}
	t.Logf("%d keys, each paid once", len(s.paid))
}

// service is two instances of the sample behind one address, as their clients see them.
type service struct {
	t     *testing.T
	slots [2]atomic.Pointer[kit.Instance]

	mu   sync.Mutex
	paid []payment
}

// payment is one that a client was told of.
type payment struct {
	key  string
	via  kit.Transport
	wire string // its answer, as it came
}

// pay sends the request of a payment to an instance, and again while the answer asks for it, which it does while there is none.
func (s *service) pay(slot int, p payment) kit.Answer {
	return kit.WithRetries(func() kit.Answer { return s.slots[slot].Load().Client(p.via).Pay(p.key, kit.Amount, p.key) })
}

// startClients starts clients who send each payment to both instances at once, and then ask for an earlier one. stop waits for them.
func (s *service) startClients() (stop func()) {
	var clients sync.WaitGroup
	var over atomic.Bool
	for client := range 6 {
		clients.Go(func() {
			for n := 0; !over.Load() && !s.t.Failed(); n++ {
				p := payment{key: fmt.Sprintf("rolling-%d-%d", client, n), via: kit.Transports[n%len(kit.Transports)]}
				if !s.payAtBoth(&p) {
					return
				}
				s.mu.Lock()
				s.paid = append(s.paid, p)
				earlier := s.paid[rand.IntN(len(s.paid))]
				s.mu.Unlock()
				if a := s.pay(n%2, earlier); !a.IsPayment() || a.Wire != earlier.wire {
					s.t.Errorf("%s again = %v, want %q", earlier.key, a, earlier.wire)
				}
			}
		})
	}
	return func() {
		over.Store(true)
		clients.Wait()
	}
}

// payAtBoth wants the same payment from both instances, and keeps its answer.
func (s *service) payAtBoth(p *payment) bool {
	var answers [2]kit.Answer
	var both sync.WaitGroup
	for slot := range s.slots {
		both.Go(func() { answers[slot] = s.pay(slot, *p) })
	}
	both.Wait()
	if a, b := answers[0], answers[1]; !a.IsPayment() || !b.IsPayment() || a.Wire != b.Wire {
		s.t.Errorf("%s over %v = %v and %v, want one payment", p.key, p.via, a, b)
		return false
	}
	p.wire = answers[0].Wire
	return true
}

// awaitMore waits until this many more keys are paid.
func (s *service) awaitMore(n int) {
	s.t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.paid)
	}
	want := count() + n
	kit.Eventually(s.t, fmt.Sprintf("%d keys", want), func() error {
		if got := count(); got < want && !s.t.Failed() {
			return fmt.Errorf("%d keys are paid", got)
		}
		return nil
	})
}
