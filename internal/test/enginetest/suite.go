// Package enginetest has the suite of the constructors that make an engine in one call.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

// Open starts another instance of one service.
type Open func(t *testing.T, opts ...idem.SetupOption) (*idem.Engine, error)

// must opens an instance that ends with the test.
func (open Open) must(t *testing.T) *idem.Engine {
	t.Helper()
	engine, err := open(t)
	if err != nil {
		t.Fatalf("New() = %v, want an engine", err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

// Run tests a constructor. row is the name of its set-up in docs/guarantees.md. The test may be called in a package two folders below the
// root of the module.
func Run(t *testing.T, row string, open Open) {
	t.Helper()
	t.Run("another instance replays a payment", func(t *testing.T) { replays(t, open) })
	t.Run("the guarantee is that of the document", func(t *testing.T) { guarantees(t, row, open) })
	t.Run("Close leaves the locks of handlers that still run", func(t *testing.T) { closes(t, open) })
	t.Run("an option that the engine refuses", func(t *testing.T) {
		if engine, err := open(t, idem.WithLockTimeout(-1)); err == nil || engine != nil { // what was opened is closed: see the leak check of TestMain
			t.Errorf("New() = %v, %v, want an error", engine, err)
		}
	})
}

// policy is that of a route.
var policy = idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}

// patience is how long a payment is sent again.
const patience = 30 * time.Second

// Pay sends a payment of a route. It sends the payment again while lock or store answer too slowly, or for another reason of again.
func Pay(engine *idem.Engine, key idem.Key, handler func() string, again ...idem.Code) (res idem.Result, err error) {
	op := idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "100")}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		res, err = engine.Do(context.Background(), op, func(context.Context) (idem.Response, error) {
			return idem.Response{Status: 201, Body: []byte(handler())}, nil
		})
		refusal, refused := errors.AsType[*idem.Refusal](err)
		if !refused || time.Now().After(deadline) || !slices.Contains(append(again, idem.CodeUnavailable), refusal.Code) {
			return res, err
		}
	}
}

// NewKey is a key that nobody has used.
func NewKey() idem.Key { return idem.Key(driver.NewNonce().String()) }

func replays(t *testing.T, open Open) {
	key, runs := NewKey(), atomic.Int64{}
	for i := range 2 {
		res, err := Pay(open.must(t), key, func() string { return fmt.Sprint("payment ", runs.Add(1)) })
		if err != nil || string(res.Response.Body) != "payment 1" || res.Replayed != (i == 1) {
			t.Errorf("instance %d answers %q, replayed %v, %v, want the first payment", i, res.Response.Body, res.Replayed, err)
		}
	}
}

func guarantees(t *testing.T, row string, open Open) {
	resolved := policy
	resolved.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil })
	g, err := open.must(t).Guarantee(resolved)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("| %s | %s | %s | %s |\n", row, g.Of(guarantee.InTransaction).Once, g.Of(guarantee.Fenced).Once, g.Of(guarantee.Elsewhere).Once)
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil || !strings.Contains(string(text), want) {
		t.Errorf("docs/guarantees.md has no row %s (%v)", want, err)
	}
}

func closes(t *testing.T, open Open) {
	key, a, b := NewKey(), open.must(t), open.must(t)
	running, end, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = Pay(a, key, func() string {
			close(running)
			<-end
			return "payment"
		})
	}()
	<-running
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Close(gone); err == nil {
		t.Error("Close() = nil while a handler runs, want an error")
	}
	// Without the lock the attempt would count as interrupted.
	_, err := Pay(b, key, func() string { return "another payment" })
	if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != idem.CodeInProgress {
		t.Errorf("the same key at another instance: %v, want %s", err, idem.CodeInProgress)
	}
	close(end)
	<-answered
	for range 2 {
		if err := b.Close(t.Context()); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	}
	if err := b.PingLock(t.Context()); err == nil {
		t.Error("PingLock() = nil after Close(), want an error")
	}
	if _, err := Pay(open.must(t), NewKey(), func() string { return "payment" }); err != nil {
		t.Errorf("a later instance on the same client: %v", err)
	}
}
