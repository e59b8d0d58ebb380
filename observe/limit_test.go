package observe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/observe"
)

// logged is what a handler wrote.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(l.buf.String())
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// sum adds up what the lines stand for.
func (l *logged) sum(t *testing.T) (sum int) {
	t.Helper()
	for _, line := range l.lines() {
		n := 1
		if _, count, ok := strings.Cut(line, observe.Repeated+"="); ok {
			if _, err := fmt.Sscan(count, &n); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
		}
		sum += n
	}
	return sum
}

func setup() (*slog.Logger, *observe.LimitHandler, *logged) {
	out := &logged{}
	h := observe.NewLimitHandler(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return slog.New(h), h, out
}

func refused(log *slog.Logger, n int, err error) {
	log.LogAttrs(context.Background(), slog.LevelWarn, "idempotency", slog.String("event", "refused"),
		slog.String("op", fmt.Sprint(n)), slog.String("code", "unavailable"), slog.Any("err", err))
}

// TestOutageIsNoFlood: a thousand refusals a second for ten seconds.
func TestOutageIsNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _, out := setup()
		for n := range 10_000 {
			refused(log, n, fmt.Errorf("dial tcp 127.0.0.1:%d: connection refused", 1000+n))
			if n == 0 && len(out.lines()) != 1 {
				t.Error("the first refusal was not logged at once")
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := len(out.lines()); n < 10 || n > 12 {
			t.Errorf("%d lines in ten seconds, want about one a second:\n%s", n, strings.Join(out.lines(), "\n"))
		}
		if n := out.sum(t); n != 10_000 {
			t.Errorf("the lines stand for %d refusals, want 10000", n)
		}
		time.Sleep(2 * time.Second)
		before := len(out.lines())
		refused(log, 1, errors.New("dial tcp 127.0.0.1:1: connection refused"))
		if n := len(out.lines()) - before; n != 1 {
			t.Errorf("%d lines of the next outage at once, want 1", n)
		}
		time.Sleep(2 * time.Second) // for the timer
	})
}

func TestAnotherReasonIsLoggedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, h, out := setup()
		for range 3 {
			refused(log, 1, errors.New("connection refused"))
			refused(log.With("event", "other"), 1, errors.New("connection refused"))
			refused(log.WithGroup("g"), 1, errors.New("connection refused"))
			refused(log, 1, errors.New("i/o timeout"))
			log.Warn("something else")
			log.Error("something else")
			log.Info("below a warning")
		}
		lines := out.lines()
		if len(lines) != 6+3 {
			t.Errorf("%d lines at once, want one of each of six reasons, and all three below a warning:\n%s", len(lines), strings.Join(lines, "\n"))
		}
		h.Flush()
		if n := out.sum(t); n != 21 {
			t.Errorf("the lines stand for %d records, want 21", n)
		}
	})
}

// TestCountOfTheEndIsNotLost: by Flush, and by time alone.
func TestCountOfTheEndIsNotLost(t *testing.T) {
	for name, end := range map[string]func(*observe.LimitHandler){
		"flushed":        (*observe.LimitHandler).Flush,
		"after a second": func(*observe.LimitHandler) { time.Sleep(1100 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, h, out := setup()
				for range 5 {
					refused(log, 1, errors.New("down"))
				}
				end(h)
				if lines := out.lines(); len(lines) != 2 || !strings.Contains(lines[1], "repeated=4") {
					t.Errorf("lines = %q, want the first and one for the other four", lines)
				}
				h.Flush()
			})
		})
	}
}

func TestReasonsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, h, out := setup()
		word := func(n int) string { return strings.Repeat("a", n%50) + strings.Repeat("b", n/50) }
		for n := range 5000 {
			log.Warn("boom", "err", word(n))
		}
		if n := len(out.lines()); n > 1001 {
			t.Errorf("%d lines at once, want at most 1001", n)
		}
		h.Flush()
		if n := out.sum(t); n != 5000 {
			t.Errorf("the lines stand for %d records, want 5000", n)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	log, h, out := setup()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 500 {
				refused(log, n, errors.New([]string{"down", "lost"}[i%2]))
				if n%100 == 0 {
					h.Flush()
				}
			}
		})
	}
	all.Wait()
	h.Flush()
	if n := out.sum(t); n != 4000 {
		t.Errorf("the lines stand for %d records, want 4000", n)
	}
}
