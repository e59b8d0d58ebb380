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

const (
	chaosTime    = 60 * time.Second // healing and checking follow
	chaosWorkers = 8
)

// chaos is three instances that go down and come back, and clients that do not
// give up.
type chaos struct {
	*system
	t     *testing.T
	slots [3]slot

	over     chan struct{}  // closed with the last fault
	resumes  sync.WaitGroup // of paused instances
	keys     atomic.Int64
	mu       sync.Mutex
	accepted map[string]string    // key to the payment that a client was told of
	vias     map[string]transport // of each key
	answers  map[string]int       // how often each answer came
	wrong    []string
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
	seed := rand.Uint64()
	if v := os.Getenv("IDEMKEEPER_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("IDEMKEEPER_SEED: %v", err)
		}
	}
	t.Logf("IDEMKEEPER_SEED=%d", seed)
	c := &chaos{system: newSystem(t), t: t, over: make(chan struct{}), accepted: map[string]string{}, vias: map[string]transport{}, answers: map[string]int{}}
	for i := range c.slots {
		c.slots[i].zk, c.slots[i].redis = c.zooKeeperProxy(), c.redisProxy()
		c.launch(i)
	}

	var workers sync.WaitGroup
	for w := range chaosWorkers {
		workers.Go(func() { c.work(rand.New(rand.NewPCG(seed, uint64(w)))) })
	}
	paid := make(chan struct{})
	go func() { workers.Wait(); close(paid) }()
	c.breakThings(rand.New(rand.NewPCG(seed, chaosWorkers)))
	close(c.over)
	c.heal()
	select {
	case <-paid:
	case <-time.After(2 * patience):
		t.Errorf("not every key was paid within %v after the last fault", 2*patience)
	}
	c.audit()
	t.Logf("%d keys, answers: %v", c.keys.Load(), c.answers)
}

// launch starts an instance in a slot. It must be called by the test's own
// goroutine.
func (c *chaos) launch(i int) {
	s := &c.slots[i]
	s.zk.Restore()
	s.redis.Restore()
	s.in.Store(c.start(fmt.Sprintf("slot %d", i), throughZooKeeper(s.zk), throughRedis(s.redis), latency(300*time.Millisecond)))
}

// breakThings does one thing after the other. What is paused stays so while it
// goes on: several instances may be down at once.
func (c *chaos) breakThings(r *rand.Rand) {
	for end := time.Now().Add(chaosTime); time.Now().Before(end); {
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
		i := r.IntN(len(c.slots))
		s := &c.slots[i]
		in := s.in.Load()
		switch r.IntN(12) {
		case 0, 1:
			in.kill(c.t)
			c.launch(i)
		case 2: // within its session
			c.pauseFor(in, time.Duration(r.IntN(1000))*time.Millisecond)
		case 3: // beyond it
			c.pauseFor(in, sessionTimeout+time.Second)
		case 4:
			s.zk.Cut()
		case 5:
			s.redis.Cut()
		case 6:
			s.zk.DropNextReply(testserver.Op(testserver.OpMulti))
		case 7:
			s.redis.DropNextReply(testserver.Contains("evalsha"))
		case 8:
			c.freezeFor(s.zk, time.Duration(r.IntN(8000))*time.Millisecond)
		case 9:
			c.freezeFor(s.redis, time.Duration(r.IntN(4000))*time.Millisecond)
		case 10: // everybody at once
			for i := range c.slots {
				c.slots[i].in.Load().kill(c.t)
			}
			for i := range c.slots {
				c.launch(i)
			}
		}
	}
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
				at := c.slots[r.IntN(len(c.slots))].in.Load().over(via)
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
			time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
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
	a := at.payUnder(ctx, key, 7, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.err != nil:
		c.answers[at.via.String()+" none"]++
		return false
	case a.is("in-progress"), a.is("unavailable"), a.is("ownership-lost"):
		c.answers[at.via.String()+" "+a.code]++
		return false
	case !a.paid() || a.flaw != nil:
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
		list, err := in.over(c.vias[key]).payments(key)
		if err != nil || len(list) != 1 || list[0].ID != c.accepted[key] {
			c.t.Errorf("payments of %s = %v, %v, want exactly %q", key, list, err, c.accepted[key])
		}
	}
	if err := addUp(in.demo()); err != nil {
		c.t.Error(err)
	}
}
