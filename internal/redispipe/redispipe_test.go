package redispipe_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redispipe"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// server stands for Redis behind the client. It answers an ECHO with its text once the
// test lets it, and notes the contexts and the sizes of what it was sent.
type server struct {
	hold chan struct{} // nil to answer at once

	mu    sync.Mutex
	sizes []int
	ctxs  []context.Context
	texts []string
}

func (s *server) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (s *server) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { return s.answer(ctx, []goredis.Cmder{cmd}) }
}

func (s *server) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return s.answer
}

func (s *server) answer(ctx context.Context, cmds []goredis.Cmder) error {
	s.mu.Lock()
	s.sizes, s.ctxs = append(s.sizes, len(cmds)), append(s.ctxs, ctx)
	for _, cmd := range cmds {
		s.texts = append(s.texts, cmd.Args()[1].(string))
	}
	s.mu.Unlock()
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			for _, cmd := range cmds {
				cmd.SetErr(ctx.Err())
			}
			return ctx.Err()
		}
	}
	for _, cmd := range cmds {
		if text := cmd.Args()[1].(string); text == "panic" {
			panic("hook")
		} else if text == "bad" {
			cmd.SetErr(errors.New("bad"))
		} else {
			cmd.(*goredis.Cmd).SetVal(text)
		}
	}
	return nil
}

func (s *server) wantSizes(t *testing.T, want ...int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.sizes, want) {
		t.Errorf("commands in each pipeline = %v, want %v", s.sizes, want)
	}
}

func newLane(t *testing.T, s *server) *redispipe.Lane {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { client.Close() })
	client.AddHook(s)
	return redispipe.New(client)
}

// withLane runs a test in a bubble with a lane and a server that holds its answers back.
func withLane(t *testing.T, test func(t *testing.T, s *server, l *redispipe.Lane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{hold: make(chan struct{})}
		test(t, s, newLane(t, s))
	})
}

// result is how one call ended.
type result struct {
	text string
	err  error
	took time.Duration
}

// call sends an ECHO in the background.
func call(ctx context.Context, l *redispipe.Lane, text string) <-chan result {
	c := make(chan result, 1)
	go func() {
		cmd, start := goredis.NewCmd(ctx, "echo", text), time.Now()
		if err := l.Do(ctx, cmd); err != nil {
			c <- result{err: err, took: time.Since(start)}
			return
		}
		got, err := cmd.Text()
		c <- result{got, err, time.Since(start)}
	}()
	synctest.Wait()
	return c
}

func TestCallsThatWaitShareAPipeline(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		first := call(t.Context(), l, "first")
		var others []<-chan result
		for i := range 5 {
			others = append(others, call(t.Context(), l, strconv.Itoa(i)))
		}
		bad := call(t.Context(), l, "bad")
		s.wantSizes(t, 1)
		close(s.hold)
		if r := <-first; r.text != "first" || r.err != nil {
			t.Errorf("first call = %+v, want its own answer", r)
		}
		for i, c := range others {
			if r := <-c; r.text != strconv.Itoa(i) || r.err != nil {
				t.Errorf("call %d = %+v, want its own answer", i, r)
			}
		}
		if r := <-bad; r.err == nil || r.err.Error() != "bad" {
			t.Errorf("bad call = %+v, want its own error", r)
		}
		s.wantSizes(t, 1, 6)
		for i := range 2 { // the lane is free again
			if r := <-call(t.Context(), l, "later"); r.err != nil {
				t.Errorf("later call %d = %+v", i, r)
			}
		}
		s.wantSizes(t, 1, 6, 1, 1)
	})
}

// A hook of the client panics. The calls of its pipeline fail, and the lane and the process go on.
func TestAPanicOfTheClientFailsTheCallsOfItsPipeline(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		first := call(t.Context(), l, "first")
		others := []<-chan result{call(t.Context(), l, "a"), call(t.Context(), l, "panic"), call(t.Context(), l, "b")}
		close(s.hold)
		if r := <-first; r.err != nil {
			t.Errorf("first call = %+v, want its own answer", r)
		}
		for i, c := range others {
			if r := <-c; r.err == nil || !strings.Contains(r.err.Error(), "hook") {
				t.Errorf("call %d of the pipeline = %+v, want the panic as its error", i, r)
			}
		}
		if r := <-call(t.Context(), l, "panic"); r.err == nil || !strings.Contains(r.err.Error(), "hook") {
			t.Errorf("call alone = %+v, want the panic as its error", r)
		}
		if r := <-call(t.Context(), l, "later"); r.text != "later" || r.err != nil {
			t.Errorf("later call = %+v, want its own answer", r)
		}
	})
}

func TestAPipelineHasALargestSize(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		var all []<-chan result
		for i := range 200 {
			all = append(all, call(t.Context(), l, strconv.Itoa(i)))
		}
		close(s.hold)
		for i, c := range all {
			if r := <-c; r.text != strconv.Itoa(i) {
				t.Errorf("call %d = %+v, want its own answer", i, r)
			}
		}
		s.wantSizes(t, 1, 128, 71)
	})
}

func TestACallerThatGaveUpIsNeverSent(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		first := call(t.Context(), l, "first")
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		cancelled, giveUp := context.WithCancel(t.Context())
		one, two := call(short, l, "one"), call(cancelled, l, "two")
		giveUp()
		if r := <-two; !errors.Is(r.err, context.Canceled) || r.took != 0 {
			t.Errorf("cancelled call = %+v, want context.Canceled at once", r)
		}
		if r := <-one; !errors.Is(r.err, context.DeadlineExceeded) || r.took != 10*time.Millisecond {
			t.Errorf("call with a deadline = %+v, want context.DeadlineExceeded after 10ms", r)
		}
		if r := <-call(cancelled, l, "three"); !errors.Is(r.err, context.Canceled) {
			t.Errorf("call with an ended context = %+v, want context.Canceled", r)
		}
		close(s.hold)
		<-first
		if r := <-call(t.Context(), l, "last"); r.err != nil {
			t.Errorf("last call = %+v", r)
		}
		if want := []string{"first", "last"}; !slices.Equal(s.texts, want) {
			t.Errorf("server got %v, want %v", s.texts, want)
		}
	})
}

// leaving is a context that ends just before its call begins to wait.
type leaving struct {
	context.Context
	end func()
}

func (c leaving) Done() <-chan struct{} {
	c.end()
	return c.Context.Done()
}

func TestACallThatIsLeftOutHasAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 50 { // an ended wait and an ended context are both there, and either may be seen
			s := &server{hold: make(chan struct{})}
			l := newLane(t, s)
			first := call(t.Context(), l, "first")
			ctx, cancel := context.WithCancel(t.Context())
			second := call(leaving{ctx, func() {
				cancel()
				close(s.hold)
				time.Sleep(time.Millisecond)
			}}, l, "second")
			<-first
			if r := <-second; !errors.Is(r.err, context.Canceled) {
				t.Fatalf("call = %+v, want context.Canceled", r)
			}
		}
	})
}

func TestACallerReturnsAtItsDeadlineAndTheOthersGetTheirAnswers(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		first := call(t.Context(), l, "first")
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		long, cancelLong := context.WithTimeout(t.Context(), 15*time.Millisecond)
		defer cancelLong()
		one, two := call(short, l, "one"), call(long, l, "two")
		s.hold <- struct{}{} // the answer of the first
		<-first
		synctest.Wait()
		s.wantSizes(t, 1, 2)
		if deadline, ok := s.ctxs[1].Deadline(); !ok || time.Until(deadline) != 15*time.Millisecond {
			t.Errorf("deadline of the pipeline = %v, %v, want the later one", deadline, ok)
		}
		if r := <-one; !errors.Is(r.err, context.DeadlineExceeded) || r.took != 10*time.Millisecond {
			t.Errorf("call with the earlier deadline = %+v, want context.DeadlineExceeded after 10ms", r)
		}
		close(s.hold)
		if r := <-two; r.text != "two" || r.err != nil {
			t.Errorf("call with the later deadline = %+v, want its answer", r)
		}
	})
}

func TestAPipelineWithOneEndlessCallHasNoDeadline(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		first := call(t.Context(), l, "first")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		all := []<-chan result{first, call(short, l, "one"), call(context.Background(), l, "two")}
		close(s.hold)
		for _, c := range all {
			<-c
		}
		if deadline, ok := s.ctxs[1].Deadline(); ok {
			t.Errorf("deadline of the pipeline = %v, want none", deadline)
		}
	})
}

func TestAnOverduePipelineHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	withLane(t, func(t *testing.T, s *server, l *redispipe.Lane) {
		hung := call(t.Context(), l, "hung")
		one, two := call(t.Context(), l, "one"), call(t.Context(), l, "two")
		s.wantSizes(t, 1)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		s.wantSizes(t, 1, 2)
		three := call(t.Context(), l, "three")
		s.wantSizes(t, 1, 2)
		close(s.hold)
		for _, c := range []<-chan result{hung, one, two, three} {
			if r := <-c; r.err != nil {
				t.Errorf("call = %+v", r)
			}
		}
		s.wantSizes(t, 1, 2, 1)
		s.hold = make(chan struct{})
		call(t.Context(), l, "four") // takes the one place there is
		call(t.Context(), l, "five")
		s.wantSizes(t, 1, 2, 1, 1)
		close(s.hold)
	})
}

// Callers of a real server get their own answers, or errors, while connections break.
func TestAnswersStayWithTheirCallers(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartRedisProxy(t, testserver.StartRedis(t).Addr())
	client := goredis.NewClient(&goredis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	l := redispipe.New(client)
	var answered, failed sync.Map
	var callers sync.WaitGroup
	for caller := range 32 {
		callers.Go(func() {
			for n := range 30 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+n%5)*100*time.Millisecond)
				text := strconv.Itoa(1000*caller + n)
				one, two := goredis.NewCmd(ctx, "echo", text), goredis.NewCmd(ctx, "echo", "-"+text)
				err := l.Do(ctx, one, two)
				cancel()
				switch {
				case err != nil, one.Err() != nil, two.Err() != nil:
					failed.Store(text, true)
				case one.Val() != text || two.Val() != "-"+text:
					t.Errorf("answers = %v, %v, want %s and -%s", one.Val(), two.Val(), text, text)
				default:
					answered.Store(text, true)
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { callers.Wait(); close(over) }()
	for cuts := 0; ; cuts++ {
		select {
		case <-over:
			count := func(m *sync.Map) (n int) { m.Range(func(any, any) bool { n++; return true }); return n }
			t.Logf("%d calls answered, %d failed, %d cuts", count(&answered), count(&failed), cuts)
			if count(&answered) == 0 {
				t.Error("no call was answered")
			}
			return
		case <-time.After(5 * time.Millisecond):
			proxy.Cut()
		}
	}
}
