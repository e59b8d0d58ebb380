package stores

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Every repeat of a completed key is answered, however many come at once, and although its policy lets no duplicate wait.
func TestCombinedRepeatsAtOnce(t *testing.T) {
	t.Parallel()
	inEachPlace(t, func(t *testing.T, p place) {
		const repeats = 16
		c := newCombined(t, p)
		c.wantPaid("k")
		slow := c.faults.Slow("BeginLocked", c.faults.Calls("BeginLocked")+1)
		answers, arrived := make(chan error, repeats), new(atomic.Int32)
		repeat := func() {
			policy := c.policy
			res, err := c.engine.Do(t.Context(), idem.Operation{Transport: idem.TransportHTTP, Scope: "m", Key: "k", Policy: &policy,
				Fingerprint: func(v uint8) (driver.Fingerprint, error) {
					defer arrived.Add(1)
					return idem.FingerprintOf("pay")(v)
				}}, c.pay)
			if err == nil && (!res.Replayed || string(res.Response.Body) != "payment 1") {
				err = fmt.Errorf("%+v is no replay", res)
			}
			answers <- err
		}
		go repeat()
		kit.WaitFor(t, "the first look", slow.Arrived())
		for range repeats - 1 {
			go repeat()
		}
		kit.Eventually(t, "all repeats", func() error {
			if n := arrived.Load(); n < repeats {
				return fmt.Errorf("%d of %d", n, repeats)
			}
			return nil
		})
		slow.Release()
		for range repeats {
			if err := <-answers; err != nil {
				t.Errorf("Do() = %v, want the replay", err)
			}
		}
	})
}

// Duplicates of a request that runs are refused, or wait for it, in the same process and in another one.
func TestCombinedDuplicatesOfARunningRequest(t *testing.T) {
	t.Parallel()
	inEachPlace(t, func(t *testing.T, p place) {
		c := newCombined(t, p)
		other, err := idem.New(c.locker, c.store)
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = other.Close(context.Background()) })
		waiting := make(chan error, 2)
		res, err := c.do("k", func(ctx context.Context) (idem.Response, error) {
			for name, e := range map[string]*idem.Engine{"the same process": c.engine, "another process": other} {
				if _, err := c.doAt(e, "k", c.pay); codeOf(err) != "refused in-progress" {
					t.Errorf("Do() in %s = %v, want in-progress", name, err)
				}
			}
			c.policy.DuplicateWait = time.Minute
			for _, e := range []*idem.Engine{c.engine, other} {
				go func() {
					res, err := c.doAt(e, "k", c.pay)
					if err == nil && (!res.Replayed || string(res.Response.Body) != "payment 1") {
						err = fmt.Errorf("%+v is no replay", res)
					}
					waiting <- err
				}()
			}
			c.eventually(telemetry.EventJoined)
			return c.pay(ctx)
		})
		if err != nil || res.Response.Status != 201 {
			t.Errorf("Do() = %+v, %v, want 201", res, err)
		}
		for range 2 {
			if err := <-waiting; err != nil {
				t.Errorf("a duplicate that waits gets %v", err)
			}
		}
		c.wantPaid("k")
	})
}

// A scope with all its executions open begins no more, and its used keys are answered.
func TestCombinedLimitOfOpenExecutions(t *testing.T) {
	t.Parallel()
	const limit, requests = 3, 24
	c := newCombined(t, place{}, idem.WithMaxOpenExecutionsPerScope(limit))
	c.wantPaid("paid")
	finish, answers := make(chan struct{}), make(chan error, requests)
	for n := range requests {
		go func() {
			_, err := c.do(fmt.Sprint(n), func(context.Context) (idem.Response, error) {
				<-finish
				return idem.Response{Status: 201}, nil
			})
			answers <- err
		}()
	}
	for range requests - limit {
		if err := <-answers; codeOf(err) != "refused too-many-open" {
			t.Errorf("Do() = %v, want too many open", err)
		}
	}
	kit.Eventually(t, "as many handlers as may run", func() error {
		if n := c.engine.Running().Count; n != limit {
			return fmt.Errorf("%d run, want %d", n, limit)
		}
		return nil
	})
	if res, err := c.do("paid", c.pay); err != nil || !res.Replayed {
		t.Errorf("Do() of a used key = %+v, %v, want its replay", res, err)
	}
	began := c.faults.Calls("BeginLocked")
	if _, err := c.do("one too many", c.pay); codeOf(err) != "refused too-many-open" || c.faults.Calls("BeginLocked") != began {
		t.Errorf("Do() = %v with %d calls to begin, want too many open and none", err, c.faults.Calls("BeginLocked")-began)
	}
	close(finish)
	for range limit {
		if err := <-answers; err != nil {
			t.Errorf("Do() = %v", err)
		}
	}
	for n := range requests {
		key := fmt.Sprint(n)
		c.wantFree(key)
		if rec := c.record(key); rec.State.Open() {
			t.Errorf("the record of %s is %+v", key, rec)
		}
	}
}

// A token that was never issued takes no lock, which every server of a replicated Redis would have to write.
func TestCombinedCallWithAnUnknownToken(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	c := newCombined(t, place{url: server.URL()})
	c.wantPaid("k") // the server learns the script
	c.policy.IssuedTokens = true
	fences := func() string { // each lock writes one
		info, err := server.Do("INFO", "commandstats")
		kit.Fatal(t, err)
		_, rest, found := strings.Cut(strings.Join(info, "\n"), "cmdstat_hset:")
		if !found {
			t.Fatalf("INFO = %q", info)
		}
		calls, _, _ := strings.Cut(rest, ",")
		return calls
	}
	before := fences()
	if _, err := c.do("junk", c.pay); codeOf(err) != "refused token-unknown" {
		t.Errorf("Do() = %v, want an unknown token", err)
	}
	if after := fences(); c.faults.Calls("BeginLocked") != 2 || after != before {
		t.Errorf("%d calls to begin, and the server counts %s of fences, want 2 and %s", c.faults.Calls("BeginLocked"), after, before)
	}
}
