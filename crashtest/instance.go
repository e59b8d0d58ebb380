package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// startTimeout bounds the start of a service, on a machine that has other work.
const startTimeout = time.Minute

// instance is a process of the service, as the test sees it.
type instance struct {
	*control
	cmd    *exec.Cmd
	addr   string
	output *tail
	exited chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and made again with each event
	events  []timed
	closed  bool // no more events will come
}

type timed struct {
	at time.Time
	event
}

// startInstance starts the test binary again. The same test then runs there up to [Run], which serves.
func startInstance(ctx context.Context, test string, s Subject, settings map[string]string) (in *instance, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close() //nolint:errcheck // one connection came in
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in = &instance{output: &tail{}, exited: make(chan struct{}), changed: make(chan struct{})}
	in.cmd = exec.Command(program, "-test.run="+patternOf(test), "-test.timeout=0", "-test.count=1") //nolint:noctx,gosec // the test itself, which is killed by case
	in.cmd.Env = append(os.Environ(), envService+"="+l.Addr().String())
	in.cmd.Stdout, in.cmd.Stderr = in.output, in.output
	if err := in.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = in.cmd.Wait() // a killed process says nothing
		close(in.exited)
		_ = l.Close() // so that nobody waits for it
	}()
	defer func() {
		if err != nil {
			in.kill()
			err = fmt.Errorf("start the service: %w\n%s", err, in.output)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	conn, err := l.Accept()
	if err != nil {
		return in, cmpErr(ctx.Err(), errors.New("the process ended before it reached crashtest.Run"))
	}
	in.control = &control{conn: conn}
	in.send(order{Settings: settings, Lease: s.Lease, Session: s.Session, ClientTimeout: s.ClientTimeout, Late: s.late()})
	go in.read(json.NewDecoder(conn))
	ready, err := in.await(ctx, func(e event) bool { return e.Is == isReady || e.Is == isFailed })
	switch {
	case err != nil:
		return in, err
	case ready.Is == isFailed:
		return in, errors.New(ready.Text)
	}
	in.addr = ready.Addr
	return in, nil
}

// patternOf selects one test, or one subtest.
func patternOf(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

func (in *instance) read(events *json.Decoder) {
	for {
		var e event
		err := events.Decode(&e)
		in.mu.Lock()
		if err != nil {
			in.closed = true
		} else {
			in.events = append(in.events, timed{time.Now(), e})
		}
		close(in.changed)
		in.changed = make(chan struct{})
		in.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// errEnded says that a process ended before what was waited for.
var errEnded = errors.New("the process ended")

// await returns the first event, past or future, that fits.
func (in *instance) await(ctx context.Context, fits func(event) bool) (timed, error) {
	for seen := 0; ; {
		in.mu.Lock()
		events, closed, changed := in.events, in.closed, in.changed
		in.mu.Unlock()
		for ; seen < len(events); seen++ {
			if fits(events[seen].event) {
				return events[seen], nil
			}
		}
		if closed {
			return timed{}, errEnded
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return timed{}, context.Cause(ctx)
		}
	}
}

func is(what string) func(event) bool { return func(e event) bool { return e.Is == what } }

// quiet waits until nothing has happened for a moment. Heartbeats may go on for ever, so it gives up after a while.
func (in *instance) quiet(ctx context.Context, moment, longest time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for {
		in.mu.Lock()
		closed, changed := in.closed, in.changed
		in.mu.Unlock()
		if closed {
			return
		}
		timer := time.NewTimer(moment)
		select {
		case <-changed:
			timer.Stop()
		case <-timer.C:
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// has reports whether there was such an event.
func (in *instance) has(what string) bool {
	return slices.ContainsFunc(in.all(), func(e timed) bool { return e.Is == what })
}

// all returns the events so far.
func (in *instance) all() []timed {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.events
}

// arm has the instance count points, and do a fault.
func (in *instance) arm(ctx context.Context, at target) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	in.send(order{Arm: &at})
	_, err := in.await(ctx, is(isArmed))
	return err
}

func (in *instance) running() bool {
	select {
	case <-in.exited:
		return false
	default:
		return true
	}
}

// kill ends the process, also a stopped one.
func (in *instance) kill() {
	if in.running() {
		_ = in.cmd.Process.Kill()
		<-in.exited
	}
	if in.control != nil {
		_ = in.conn.Close()
	}
}

// tail keeps the end of what a process writes.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const longestTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - longestTail; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.buf.String())
}
