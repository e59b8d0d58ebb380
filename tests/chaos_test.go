package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// chaos is three instances that go down and come back, and clients that do not
// give up.
type chaos struct {
	*system
	t       *testing.T
	seed    uint64
	lasts   time.Duration // healing and checking follow
	workers int
	pause   time.Duration  // of a client between two requests, at most
	opts    []launchOption // of all instances
	wiped   bool           // Redis loses everything now and then, and keys are marked: see markers_chaos_test.go
	slots   [3]slot

	over     chan struct{}  // closed with the last fault
	resumes  sync.WaitGroup // of paused instances
	keys     atomic.Int64
	mu       sync.Mutex
	accepted map[string]string    // key to the payment that a client was told of
	vias     map[string]transport // of each key
	answers  map[string]int       // how often each answer came
	faults   map[string]int       // how often each fault was injected
	wrong    []string

	paid, duplicates int // as the ledger has them, in the end
}

// slot is the place of an instance, behind proxies that stay.
type slot struct {
	zk, redis *testserver.Proxy
	in        atomic.Pointer[instance]
}

// TestChaosPaysEachKeyOnce kills and pauses instances and breaks connections at
// random while clients pay, and retry each of their keys until it is paid, over
// one transport per key. The seed decides on the faults; IDEMKEEPER_SEED sets it.
func TestChaosPaysEachKeyOnce(t *testing.T) {
	c := newChaos(t, randomSeed(t))
	c.lasts, c.workers, c.pause, c.opts = 30*time.Second, 8, 300*time.Millisecond, []launchOption{withLatency(300 * time.Millisecond)}
	c.run()
	t.Logf("%d keys, answers: %v", c.keys.Load(), c.answers)
}

// randomSeed is random, or the value of IDEMKEEPER_SEED. The log shows it.
func randomSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if v := os.Getenv("IDEMKEEPER_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("IDEMKEEPER_SEED: %v", err)
		}
	}
	t.Logf("IDEMKEEPER_SEED=%d", seed)
	return seed
}

func newChaos(t *testing.T, seed uint64) *chaos {
	return &chaos{system: newSystem(t), t: t, seed: seed, over: make(chan struct{}), accepted: map[string]string{},
		vias: map[string]transport{}, answers: map[string]int{}, faults: map[string]int{}}
}

// run is the load, the faults, and the comparison of what clients were told with
// the ledger.
func (c *chaos) run() {
	for i := range c.slots {
		c.slots[i].zk, c.slots[i].redis = c.zooKeeperProxy(), c.redisProxy()
		c.launch(i)
	}
	var workers sync.WaitGroup
	for w := range c.workers {
		workers.Go(func() { c.work(rand.New(rand.NewPCG(c.seed, uint64(w)))) })
	}
	paid := make(chan struct{})
	go func() { workers.Wait(); close(paid) }()
	c.breakThings(rand.New(rand.NewPCG(c.seed, uint64(c.workers))))
	close(c.over)
	c.heal()
	select {
	case <-paid:
	case <-time.After(2 * waitLimit):
		c.t.Errorf("not every key was paid within %v after the last fault", 2*waitLimit)
	}
	c.audit()
}

// launch starts an instance in a slot. It must be called by the test's own
// goroutine.
func (c *chaos) launch(i int) {
	s := &c.slots[i]
	s.zk.Restore()
	s.redis.Restore()
	s.in.Store(c.start(fmt.Sprintf("slot %d", i), append([]launchOption{throughZooKeeper(s.zk), throughRedis(s.redis)}, c.opts...)...))
}

// breakThings does one thing after the other. What is paused stays so while it
// goes on: several instances may be down at once.
func (c *chaos) breakThings(r *rand.Rand) {
	things := c.things(r)
	for end := time.Now().Add(c.lasts); time.Now().Before(end); {
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
		thing := things[r.IntN(len(things))]
		c.faults[thing.name]++
		thing.happen(r.IntN(len(c.slots)))
	}
}

// thing is a fault of an instance, or of all.
type thing struct {
	name   string
	happen func(i int)
}

func (c *chaos) things(r *rand.Rand) []thing {
	in := func(i int) *instance { return c.slots[i].in.Load() }
	kill := func(i int) { in(i).kill(c.t); c.launch(i) }
	beyond := sessionTimeout + time.Second
	all := []thing{
		{"kill", kill},
		{"kill", kill},
		{"pause-within-session", func(i int) { c.pauseFor(in(i), time.Duration(r.IntN(1000))*time.Millisecond) }},
		{"pause-beyond-session", func(i int) { c.pauseFor(in(i), beyond) }},
		{"zookeeper-cut", func(i int) { c.slots[i].zk.Cut() }},
		{"redis-cut", func(i int) { c.slots[i].redis.Cut() }},
		{"zookeeper-reply-lost", func(i int) { c.slots[i].zk.DropNextReply(testserver.Op(testserver.OpMulti)) }},
		{"redis-reply-lost", func(i int) { c.slots[i].redis.DropNextReply(testserver.Contains("evalsha")) }},
		{"zookeeper-partition", func(i int) { c.freezeFor(c.slots[i].zk, time.Duration(r.IntN(8000))*time.Millisecond) }},
		{"redis-partition", func(i int) { c.freezeFor(c.slots[i].redis, time.Duration(r.IntN(4000))*time.Millisecond) }},
		{"kill-all", func(int) {
			for i := range c.slots {
				in(i).kill(c.t)
			}
			for i := range c.slots {
				c.launch(i)
			}
		}},
		{"none", func(int) {}},
	}
	if !c.wiped {
		return all
	}
	wipe := func(int) { c.flushRedis(c.t) }
	return append(all,
		thing{"flushall", wipe},
		thing{"flushall", wipe},
		thing{"kill-and-flushall", func(i int) { in(i).kill(c.t); c.flushRedis(c.t); c.launch(i) }},
		thing{"pause-and-flushall", func(i int) { c.pauseFor(in(i), beyond); c.flushRedis(c.t) }},
		thing{"partition-and-flushall", func(i int) { c.freezeFor(c.slots[i].zk, beyond); c.flushRedis(c.t) }},
	)
}

func (c *chaos) pauseFor(in *instance, d time.Duration) {
	in.pause(c.t)
	c.resumes.Go(func() {
		time.Sleep(d)
		in.resume(c.t)
	})
}

// freezeFor keeps back what travels in both directions, and delivers it late.
func (c *chaos) freezeFor(p *testserver.Proxy, d time.Duration) {
	p.Freeze(testserver.Both)
	c.resumes.Go(func() {
		time.Sleep(d)
		p.Freeze(0)
	})
}

// heal lets everything run again.
func (c *chaos) heal() {
	c.resumes.Wait()
	for i := range c.slots {
		c.slots[i].zk.Restore()
		c.slots[i].redis.Restore()
	}
	for i := range c.slots {
		c.slots[i].in.Load().waitReady(c.t, 200)
	}
}

// work pays one key after the other until the faults are over, each until it is
// paid, and asks for each again afterwards. Some requests are sent twice at once.
func (c *chaos) work(r *rand.Rand) {
	for !c.calm() {
		via := transports[r.IntN(len(transports))]
		key := fmt.Sprintf("chaos-%d", c.keys.Add(1))
		c.mu.Lock()
		c.vias[key] = via
		c.mu.Unlock()
		for again := 0; again < 3; {
			var wg sync.WaitGroup
			var ok atomic.Bool
			for range 1 + r.IntN(2) {
				at := c.slots[r.IntN(len(c.slots))].in.Load().client(via)
				wg.Go(func() {
					if c.once(at, key) {
						ok.Store(true)
					}
				})
			}
			wg.Wait()
			if ok.Load() {
				again++
			}
			time.Sleep(time.Duration(r.Int64N(int64(c.pause))))
		}
	}
}

func (c *chaos) calm() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// once sends a payment and remembers what came back.
func (c *chaos) once(at client, key string) (ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a := at.payWithContext(ctx, key, 7, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.err != nil:
		c.answers[at.via.String()+" none"]++
		return false
	case a.isRefusal("in-progress"), a.isRefusal("unavailable"), a.isRefusal("ownership-lost"):
		c.answers[at.via.String()+" "+a.code]++
		return false
	case c.wiped && a.isRefusal("store-lost"):
		c.answers[at.via.String()+" "+a.code]++
		return false
	case c.wiped && (a.isRefusal("outcome-unknown") || a.isRefusal("result-unavailable")): // final, and nothing is contradicted
		c.answers[at.via.String()+" "+a.code]++
		return true
	case !a.isPayment() || a.formErr != nil:
		c.wrong = append(c.wrong, fmt.Sprintf("%s: %v", key, a))
		return false
	}
	if before, known := c.accepted[key]; known && before != a.payment.ID {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: payment %s, and %s before", key, a.payment.ID, before))
	}
	c.answers[at.via.String()+" paid"]++
	c.accepted[key] = a.payment.ID
	return true
}

// audit compares what clients were told with the ledger.
func (c *chaos) audit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.wrong {
		c.t.Error(w)
	}
	in := c.slots[0].in.Load()
	for n := range c.keys.Load() {
		key := fmt.Sprintf("chaos-%d", n+1)
		list, err := in.client(c.vias[key]).listPayments(key)
		told := c.accepted[key]
		switch {
		case err == nil && len(list) == 1 && list[0].ID == told:
		case err == nil && c.wiped && told == "" && len(list) <= 1: // nobody was told of one
		default:
			c.t.Errorf("payments of %s = %v, %v, want exactly %q", key, list, err, told)
		}
		c.paid += len(list)
		c.duplicates += max(0, len(list)-1)
	}
	if err := checkBalances(in.httpClient()); err != nil {
		c.t.Error(err)
	}
}
