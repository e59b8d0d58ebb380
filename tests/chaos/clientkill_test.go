package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

const (
	retryingCallers = 4
	retryingCalls   = 12 // of each caller, at least
	// mortalLatency opens windows of half its length before and after the ledger write.
	mortalLatency = 500 * time.Millisecond

	// The lock of a dead holder lives for a session, and a call may meet several kills.
	retryLimit = 5 * time.Minute
	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// Callers make calls without a key, each of them once, while the one instance is
// killed at random moments and started again on the same ports. The library's
// clients add the keys and the retries. Each call ends with the answer that its
// order deserves, and with one payment if that answer is a payment. The seed
// decides on the moments. IDEMKEEPER_SEED sets it.
func TestClientsPayOnceUnderKills(t *testing.T) {
	t.Parallel()
	for via, retrying := range map[kit.Transport]func(testing.TB, *kit.Instance, *atomic.Int64) kit.Client{
		kit.OverHTTP{}: retryingHTTP, kit.OverGRPC{}: retryingGRPC,
	} {
		t.Run(via.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(randomSeed(t), 0))
			m := &mortal{System: kit.NewSystem(t)}
			m.launch()
			var attempts atomic.Int64
			c := retrying(t, m.in, &attempts)
			ctx, cancel := context.WithTimeout(context.Background(), retryLimit)
			defer cancel()
			var callers sync.WaitGroup
			var answers sync.Map // order to answer
			for caller := range retryingCallers {
				callers.Go(func() {
					for i := 0; ctx.Err() == nil && (i < retryingCalls || !m.over.Load()); i++ {
						o, _ := orderOfCall(caller, i)
						answers.Store([2]int{caller, i}, via.Order(ctx, c, kit.ToPayments, nil, o))
					}
				})
			}
			m.killAll(r)
			callers.Wait()

			calls := 0
			for call, a := range answers.Range {
				calls++
				o, code := orderOfCall(call.([2]int)[0], call.([2]int)[1])
				wantAnswerOfCall(t, m.in.Client(via), o, a.(kit.Answer), code)
			}
			if calls < retryingCallers*retryingCalls {
				t.Errorf("%d calls ended, want %d at least", calls, retryingCallers*retryingCalls)
			}
			t.Logf("%d kills: %d attempts before the ledger write, %d after it; %d calls, %d attempts", m.kills, m.before, m.after, calls, attempts.Load())
		})
	}
}

// orderOfCall is what a caller orders in its i-th call, and the code of its
// refusal, if any.
func orderOfCall(caller, i int) (o kit.Order, code string) {
	accounts := [...]string{"alice", "bob", "carol"}
	n := caller + i
	o = kit.Order{From: accounts[n%3], To: accounts[(n+1)%3], Amount: int64(100*i + caller + 1), Currency: "USD", Note: fmt.Sprintf("call %d of caller %d", i, caller)}
	switch i % 6 {
	case 2:
		o.Amount = kit.OpeningBalances + 1 // no account ever holds it
		return o, "insufficient-funds"
	case 4:
		o.From = "nobody"
		return o, "account-unknown"
	}
	return o, ""
}

func wantAnswerOfCall(t *testing.T, c kit.Client, o kit.Order, a kit.Answer, code string) {
	t.Helper()
	if code != "" {
		kit.WantRefusal(t, o.Note, a, code)
		kit.WantNoPayment(t, c, o.Note)
		return
	}
	want := kit.WantOnePayment(t, c, o.Note)
	kit.WantPayment(t, o.Note, a, want)
	if want.Order != o || want.Status != "succeeded" {
		t.Errorf("%s made %+v, want %+v", o.Note, want, o)
	}
}

// countingTransport counts the requests that the transport under test sends.
type countingTransport struct {
	*http.Transport
	sent *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c countingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	return c.Transport.RoundTrip(req)
}

func retryingHTTP(t testing.TB, in *kit.Instance, sent *atomic.Int64) kit.Client {
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	c := in.Client(kit.OverHTTP{})
	c.RoundTripper = retryingTransport(countingTransport{base, sent})
	return c
}

// retryingTransport does not give up within the limits above.
func retryingTransport(base http.RoundTripper) http.RoundTripper {
	return idemhttp.MustNewTransport(base, idemhttp.WithKeysHonoured(),
		idemhttp.WithRetryElapsed(retryLimit), idemhttp.WithRetryBackoff(retryFirst, retryMost))
}

func retryingGRPC(t testing.TB, in *kit.Instance, sent *atomic.Int64) kit.Client {
	t.Helper()
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		sent.Add(1)
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	c := in.Client(kit.OverGRPC{})
	c.Conn = dialRetrying(t, in.RPC, grpc.WithChainUnaryInterceptor(count))
	return c
}

// dialRetrying opens a connection that sends a call again, as retryingTransport does.
func dialRetrying(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: kit.WaitLimit,
			Backoff: backoff.Config{BaseDelay: retryFirst, Multiplier: 2, Jitter: 0.2, MaxDelay: retryMost}}),
		grpc.WithChainUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(idemgrpc.WithKeysHonoured(),
			idemgrpc.WithRetryElapsed(retryLimit), idemgrpc.WithRetryBackoff(retryFirst, retryMost)))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// killMoment is when an instance is killed: a delay after the log has its first
// line of a step, or after the start if there is no step.
type killMoment struct {
	step  string
	delay time.Duration
}

// killMoments are the moments of one run in random order: twice before the ledger
// write, twice after it, once while an answer is on its way, and twice anywhere.
func killMoments(r *rand.Rand) []killMoment {
	m := []killMoment{
		{step: "at=before-ledger"}, {step: "at=before-ledger"},
		{step: "at=after-ledger"}, {step: "at=after-ledger"},
		{step: "at=answered"},
		{step: "at=before-ledger", delay: time.Duration(r.Int64N(int64(2 * mortalLatency)))},
		{delay: time.Duration(r.Int64N(int64(2 * time.Second)))},
	}
	r.Shuffle(len(m), func(i, j int) { m[i], m[j] = m[j], m[i] })
	return m
}

// mortal is an instance that is killed, and started again on the same ports.
type mortal struct {
	*kit.System
	in   *kit.Instance // the one that runs
	over atomic.Bool   // set with the last kill

	kills         int
	before, after int // attempts that a kill has ended before and after the ledger write
}

// killAll kills at all moments, and then until kills have hit attempts before and
// after the ledger write: a test that gets no processor time may come too late.
func (m *mortal) killAll(r *rand.Rand) {
	m.T.Helper()
	defer m.over.Store(true)
	for _, at := range killMoments(r) {
		m.kill(at)
	}
	for end := time.Now().Add(2 * kit.WaitLimit); m.before == 0 || m.after == 0; {
		if time.Now().After(end) {
			m.T.Fatalf("%d kills hit %d attempts before the ledger write and %d after it, want both", m.kills, m.before, m.after)
		}
		step := "at=before-ledger"
		if m.before > 0 {
			step = "at=after-ledger"
		}
		m.kill(killMoment{step: step})
	}
}

var stepLine = regexp.MustCompile(` at=(\S+) op=(\w+)`)

// kill kills the instance, counts where its attempts were, and starts it again.
func (m *mortal) kill(at killMoment) {
	m.T.Helper()
	if at.step != "" {
		m.in.WaitLog(m.T, at.step)
	}
	time.Sleep(at.delay) // a random moment: the test waits for no condition
	m.in.Kill(m.T)
	m.kills++
	last := map[string]string{} // operation to its last step
	for line := range strings.Lines(m.in.Stderr.Tail(1 << 20)) {
		if step := stepLine.FindStringSubmatch(line); step != nil {
			last[step[2]] = step[1]
		}
	}
	for _, step := range last {
		switch step {
		case "before-ledger":
			m.before++
		case "after-ledger":
			m.after++
		}
	}
	m.launch()
}

// launch starts an instance on the ports of the one before.
func (m *mortal) launch() {
	m.T.Helper()
	if m.in == nil {
		host := ownLoopback() + ":0"
		m.in = m.Start("the mortal", kit.WithLatency(mortalLatency), kit.WithFlags("--http-addr", host, "--grpc-addr", host))
		return
	}
	m.in = superviseInstance(m.T, fmt.Sprintf("the mortal after %d kills", m.kills),
		m.Flags(kit.WithLatency(mortalLatency), kit.WithFlags("--http-addr", m.in.Addr, "--grpc-addr", m.in.RPC)), func(*kit.Instance) {})
}

// ownLoopback is an address of this test alone, so that no request reaches another
// test's server on the port of a dead instance. Only Linux has more than one
// loopback address by default.
func ownLoopback() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250))
}
