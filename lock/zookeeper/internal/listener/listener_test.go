package listener

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type recorder[T any] struct {
	mu  sync.Mutex
	all []T
}

func (r *recorder[T]) take(ev T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, ev)
}

func (r *recorder[T]) events() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// Events are posted at the moment at which close has nothing to wait for any
// more. Each is either delivered before close returns, or never.
func TestListenersCloseAmidEvents(t *testing.T) {
	t.Parallel()
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			g := NewGroup(slog.New(slog.DiscardHandler))
			var told recorder[int]
			slow := func(n int) {
				told.take(n)
				time.Sleep(time.Hour) // of the bubble's
				told.take(-n)
			}
			m, other := NewMailbox(g, slow), NewMailbox(g, slow)
			m.Post(1)
			idle := g.busy.Idle()
			go func() { <-idle; m.Post(2) }()
			go func() { <-idle; other.Post(3) }()
			synctest.Wait() // they hear of it first
			if err := g.Close(context.Background()); err != nil {
				t.Errorf("Close() = %v", err)
			}
			done := told.events()
			sum := 0
			for _, n := range done {
				sum += n
			}
			if sum != 0 {
				t.Errorf("told %v when Close() returned: one is under way", done)
			}
			time.Sleep(24 * time.Hour)
			if got := told.events(); !slices.Equal(got, done) {
				t.Errorf("told %v, and %v when Close() returned", got, done)
			}
		})
	}
}

func TestStoppedListenerHearsNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told recorder[int]
		returns := make(chan struct{})
		m := NewMailbox(NewGroup(slog.New(slog.DiscardHandler)), func(n int) { told.take(n); <-returns })
		m.Post(1)
		m.Post(2)
		synctest.Wait()
		m.Stop()
		m.Post(3)
		close(returns)
		synctest.Wait()
		m.Post(4)
		synctest.Wait()
		if got := told.events(); !slices.Equal(got, []int{1}) {
			t.Errorf("told %v, want the event before Stop() alone", got)
		}
	})
}

// A listener that panics is told of later events too.
func TestPanicOfAListenerIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var told recorder[int]
		m := NewMailbox(NewGroup(slog.New(slog.NewTextHandler(&log, nil))), func(n int) {
			told.take(n)
			if n == 2 {
				panic("second")
			}
		})
		for n := range 3 {
			m.Post(n + 1)
		}
		synctest.Wait()
		if got := told.events(); !slices.Equal(got, []int{1, 2, 3}) {
			t.Errorf("told %v, want all three", got)
		}
		if got := log.String(); strings.Count(got, "a listener panicked") != 1 || !strings.Contains(got, "event=2 panic=second") {
			t.Errorf("the log has %q, want one panic", got)
		}
	})
}

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// As long as its context lets it, the end of a client waits for listeners.
func TestListenersAreWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(slog.New(slog.DiscardHandler))
		var told recorder[int]
		m := NewMailbox(g, func(n int) { time.Sleep(time.Hour); told.take(n) })
		for i := range 3 {
			m.Post(i)
		}
		if err := g.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if got := told.events(); !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("told %v when Close() returned, want all", got)
		}
	})
}

// What a listener does not return from does not keep a client open for ever,
// and it is not called again.
func TestListenerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(slog.New(slog.DiscardHandler))
		release := make(chan struct{})
		var told recorder[int]
		m := NewMailbox(g, func(n int) { told.take(n); <-release })
		for i := range 3 {
			m.Post(i)
		}
		began := time.Now()
		if err := g.Close(canceled(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("Close() = %v, want %v", err, context.Canceled)
		}
		if took := time.Since(began); took != lastWords {
			t.Errorf("close() took %v, want %v", took, lastWords)
		}
		m.Post(3)
		close(release)
		synctest.Wait()
		m.Post(4)
		synctest.Wait()
		if got := told.events(); !slices.Equal(got, []int{0}) {
			t.Errorf("told %v, want the one event that was under way", got)
		}
	})
}
