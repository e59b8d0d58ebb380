package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

const (
	chaosWorkers = 32
	chaosPause   = 100 * time.Millisecond // of a client between two requests, at most
	chaosCall    = 15 * time.Second       // of a call; a black hole answers nothing
)

// story is all that happened under a key, as its clients saw it.
type story struct {
	key   string
	via   kit.Transport
	order kit.Order

	mu      sync.Mutex
	entries []entry
	paid    string // the payment that clients were told of
	wire    string // and its answer, as it came
	end     string // why clients gave up without a payment, or ""
}

// load is the clients of a run.
type load struct {
	c       *chaos
	library map[kit.Transport]kit.Client // with the library's transports
	clients sync.WaitGroup
	keys    atomic.Int64
	gaveUp  func() bool // whether the clients have waited long enough
}

// startLoad starts the clients. Each takes a key, has up to three senders pay with it until
// they know how it ended, and takes the next key. Now and then it asks for an earlier one.
func (c *chaos) startLoad() *load {
	l := &load{c: c, library: map[kit.Transport]kit.Client{}, gaveUp: func() bool { return c.calm() && time.Since(c.ended) > 2*kit.WaitLimit }}
	l.library[kit.OverHTTP{}] = kit.Client{Via: kit.OverHTTP{}, Addr: c.slots[0].web.Addr(), Token: "demo", RoundTripper: retryingTransport(l.anyHTTP())}
	l.library[kit.OverGRPC{}] = kit.Client{Via: kit.OverGRPC{}, Conn: l.anyGRPC(), Token: "demo"}
	for w := range chaosWorkers {
		r := rand.New(rand.NewPCG(c.seed, uint64(1000+w)))
		l.clients.Go(func() {
			for !c.calm() {
				s := l.newStory(r)
				var senders sync.WaitGroup
				for n := range 1 + r.IntN(3) {
					library, r := r.IntN(2) == 0, rand.New(rand.NewPCG(r.Uint64(), 0))
					senders.Go(func() { l.send(s, fmt.Sprint("sender ", n), library, r) })
				}
				senders.Wait()
				if r.IntN(3) == 0 {
					l.send(l.anyStory(r), "later", false, r)
				}
				c.wait(time.Duration(r.Int64N(int64(chaosPause))))
			}
		})
	}
	return l
}

// wait waits until every sender knows how its key ended, or has given up.
func (l *load) wait() {
	l.clients.Wait()
}

func (c *chaos) calm() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

func (l *load) newStory(r *rand.Rand) *story {
	n := l.keys.Add(1)
	accounts := [...]string{"alice", "bob", "carol"}
	from := r.IntN(3)
	s := &story{via: kit.Transports[r.IntN(len(kit.Transports))], key: fmt.Sprintf("chaos-%d", n)}
	s.order = kit.Order{From: accounts[from], To: accounts[(from+1+r.IntN(2))%3], Amount: 1 + r.Int64N(20), Currency: "USD", Note: s.key}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.c.stories = append(l.c.stories, s)
	return s
}

func (l *load) anyStory(r *rand.Rand) *story {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.c.stories[r.IntN(len(l.c.stories))]
}

// send pays until the answer is final. Without the library the client itself sends the
// request again, to any instance.
func (l *load) send(s *story, who string, library bool, r *rand.Rand) {
	c := l.c
	for !l.gaveUp() {
		at, name := l.library[s.via], who+" by the library"
		if !library {
			to := c.slots[r.IntN(len(c.slots))]
			at, name = to.client(s.via), fmt.Sprintf("%s to %s", who, to.name)
		}
		if c.ask(s, at, name) {
			return
		}
		c.wait(time.Duration(r.Int64N(int64(chaosPause))))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = append(c.late, s.key)
}

// ask sends the payment once, and reports whether the answer is final.
func (c *chaos) ask(s *story, at kit.Client, who string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), chaosCall)
	defer cancel()
	return c.hear(s, who, s.via.Order(ctx, at, kit.ToPayments, []string{s.key}, s.order))
}

// hear keeps an answer, and compares it with those before it.
func (c *chaos) hear(s *story, who string, a kit.Answer) (final bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, entry{time.Now(), fmt.Sprintf("%s over %v: %v", who, s.via, a)})
	name := a.Code
	switch {
	case a.Err != nil:
		name = "none"
	case a.IsPayment() && a.FormErr == nil && (s.paid == "" || s.wire == a.Wire):
		s.paid, s.wire, s.end = a.Payment.ID, a.Wire, ""
		name, final = "payment", true
	case a.IsPayment():
		c.wrongAnswer(s, a, "and another one before")
		name, final = "wrong", true
	case a.FormErr == nil && slices.Contains(askAgain, a.Code):
	case a.FormErr == nil && a.Code == "outcome-unknown": // until a resolver or the sweeper knows
		final = c.unsolved
		s.end = a.Code
	case a.FormErr == nil && (c.mayLose || c.Redis != nil) && a.Code == "store-lost": // or its clock has jumped
	case a.FormErr == nil && c.mayLose && a.Code == "result-unavailable":
		s.end, final = a.Code, true
	default:
		c.wrongAnswer(s, a, "which no client may get here")
		name, final = "wrong", true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.figures["answer-"+name]++
	return final
}

// askAgain are the refusals after which a client sends its request again.
var askAgain = []string{"in-progress", "unavailable", "ownership-lost", "ledger-unavailable"}

func (c *chaos) wrongAnswer(s *story, a kit.Answer, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, s.key)
	s.entries = append(s.entries, entry{time.Now(), fmt.Sprintf("WRONG: %v, %s", a, why)})
}

// anyHTTP sends each attempt to another instance, as a load balancer does.
func (l *load) anyHTTP() http.RoundTripper {
	base := &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: chaosCall / 3}
	var addrs []string
	for _, s := range l.c.slots {
		addrs = append(addrs, s.web.Addr())
	}
	return &balancer{base: base, addrs: addrs}
}

type balancer struct {
	base  http.RoundTripper
	addrs []string
	sent  atomic.Uint64
}

// RoundTrip implements http.RoundTripper.
func (b *balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	to := req.Clone(req.Context())
	to.URL.Host = b.addrs[b.sent.Add(1)%uint64(len(b.addrs))]
	return b.base.RoundTrip(to)
}

// anyGRPC is a connection to all instances, in turn.
func (l *load) anyGRPC() *grpc.ClientConn {
	all := manual.NewBuilderWithScheme("chaos")
	var state resolver.State
	for _, s := range l.c.slots {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: s.rpc.Addr()}}})
	}
	all.InitialState(state)
	return dialRetrying(l.c.t, "chaos:///all", grpc.WithResolvers(all), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
}
