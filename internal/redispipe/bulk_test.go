package redispipe_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redispipe"
)

// withBulk runs a test in a bubble with a Bulk and a server that holds its answers back.
func withBulk(t *testing.T, pool int, test func(t *testing.T, s *server, b *redispipe.Bulk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{hold: make(chan struct{})}
		client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", PoolSize: pool})
		defer client.Close()
		client.AddHook(s)
		test(t, s, redispipe.NewBulk(client))
	})
}

func (s *server) underWay() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.texts)
}

// answerOne lets one call have its answer.
func (s *server) answerOne() { s.hold <- struct{}{}; synctest.Wait() }

func write(ctx context.Context, b *redispipe.Bulk, to, text string, size int) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.Write(ctx, to, size, goredis.NewCmd(ctx, "echo", text)) }()
	synctest.Wait()
	return done
}

func TestLargeCallsGoFewAtATime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ size, pool, want int }{
		{1 << 20, 100, 1}, {100 << 10, 100, 2}, {redispipe.Large, 100, 8}, {redispipe.Large, 6, 3}, {redispipe.Large, 1, 1},
	} {
		withBulk(t, tt.pool, func(t *testing.T, s *server, b *redispipe.Bulk) {
			var all []<-chan error
			for i := range 20 {
				all = append(all, write(t.Context(), b, "a", strconv.Itoa(i), tt.size))
			}
			if n := s.underWay(); n != tt.want {
				t.Errorf("%d of 20 calls of %d bytes are under way, with a pool of %d, want %d", n, tt.size, tt.pool, tt.want)
			}
			elsewhere := write(t.Context(), b, "b", "elsewhere", tt.size)
			if n := s.underWay(); n != tt.want+1 {
				t.Errorf("a call to another server waits")
			}
			close(s.hold)
			for i, done := range append(all, elsewhere) {
				if err := <-done; err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if got := strings.Join(s.texts, " "); tt.want == 1 && !strings.HasSuffix(got, "17 18 19") {
				t.Errorf("the calls went in the order %s", got)
			}
		})
	}
}

// A call whose caller gives up while it waits is not sent, and does not hold up the next one.
func TestLargeCallsThatAreGivenUp(t *testing.T) {
	t.Parallel()
	withBulk(t, 100, func(t *testing.T, s *server, b *redispipe.Bulk) {
		first := write(t.Context(), b, "a", "first", 1<<20)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		second := write(ctx, b, "a", "second", 1<<20)
		third := write(t.Context(), b, "a", "third", 1<<20)
		if err := <-second; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Write() = %v, want %v", err, context.DeadlineExceeded)
		}
		close(s.hold)
		if err := errors.Join(<-first, <-third); err != nil {
			t.Error(err)
		}
		if got := strings.Join(s.texts, " "); got != "first third" {
			t.Errorf("sent %s, want first third", got)
		}
	})
}

// Reads go as many at a time as the size of recent answers allows.
func TestLargeReads(t *testing.T) {
	t.Parallel()
	withBulk(t, 100, func(t *testing.T, s *server, b *redispipe.Bulk) {
		var reads sync.WaitGroup
		for range 16 {
			reads.Go(func() {
				cmds := []goredis.Cmder{goredis.NewCmd(t.Context(), "echo", "x"), goredis.NewCmd(t.Context(), "echo", "y")}
				if err := b.Read(t.Context(), "a", func() int { return 1 << 20 }, cmds...); err != nil {
					t.Errorf("Read() = %v", err)
				}
			})
		}
		if n := s.underWay(); n != 16 {
			t.Errorf("%d commands are under way, want those of 8 reads", n)
		}
		for range 8 {
			s.answerOne()
		}
		close(s.hold)
		reads.Wait()

		s.mu.Lock()
		s.hold, s.texts = make(chan struct{}), nil
		s.mu.Unlock()
		for range 3 {
			reads.Go(func() {
				_ = b.Read(t.Context(), "a", func() int { return 1 << 20 }, goredis.NewCmd(t.Context(), "echo", "x"))
			})
		}
		if n := s.underWay(); n != 1 {
			t.Errorf("%d reads are under way after large answers, want 1", n)
		}
		close(s.hold)
		reads.Wait()
	})
}

// A panic of the client ends its own call, and the next one goes.
func TestPanicOfALargeCall(t *testing.T) {
	t.Parallel()
	withBulk(t, 100, func(t *testing.T, s *server, b *redispipe.Bulk) {
		close(s.hold)
		cmd := goredis.NewCmd(t.Context(), "echo", "panic")
		if err := b.Write(t.Context(), "a", 1<<20, cmd); err != nil || cmd.Err() == nil || !strings.Contains(cmd.Err().Error(), "hook") {
			t.Errorf("Write() = %v, and the command has %v, want the panic", err, cmd.Err())
		}
		if err := <-write(t.Context(), b, "a", "next", 1<<20); err != nil {
			t.Errorf("Write() = %v", err)
		}
	})
}

// A pipeline is bounded in bytes.
func TestPipelinesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		first := call(t.Context(), l, "first")
		var all []<-chan result
		for range 40 {
			all = append(all, call(t.Context(), l, strings.Repeat("x", 15<<10)))
		}
		close(s.hold)
		<-first
		for _, c := range all {
			if r := <-c; r.err != nil {
				t.Errorf("Do() = %v", r.err)
			}
		}
		s.wantSizes(t, 1, 17, 17, 6)
	})
}
