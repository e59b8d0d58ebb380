package queue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// consumerVariable tells the test binary to be a consumer: of which server, in
// which chroot.
const consumerVariable = "IDEMKEEPER_TEST_QUEUE_CONSUMER"

func consumerConfig(server, chroot string) zookeeper.Config {
	return zookeeper.Config{
		Servers: []string{server}, Chroot: chroot, Logger: testLogger(),
		SessionTimeout: 2 * time.Second, TickTime: testTick, OpenTimeout: patience,
	}
}

// consumeQueue is the consumer that TestQueueSurvivesKills runs in processes of
// their own. It says what it does, one line each, until its standard input ends.
func consumeQueue(setting string) {
	server, chroot, _ := strings.Cut(setting, " ")
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	c, err := zookeeper.Open(ctx, consumerConfig(server, chroot))
	if err != nil {
		say("fail", err)
		return
	}
	defer func() { _ = c.Close(context.Background()) }()
	q := MustNew(c, "/q")
	for ctx.Err() == nil {
		d, err := q.Receive(ctx)
		if err != nil {
			continue
		}
		say("got", d.ID, d.Attempt)
		if d.Attempt == 1 && rand.N(10) == 0 {
			d.ReleaseInBackground() // not this time
			continue
		}
		time.Sleep(rand.N(3 * time.Millisecond)) // what it was received for
		err = d.Ack(ctx)
		if err == nil {
			say("acked", d.ID, d.Attempt)
		}
		if _, ok := errors.AsType[*InDoubtError](err); ok {
			say("doubt", d.ID, d.Attempt)
		}
	}
}

func say(words ...any) { fmt.Fprintln(os.Stdout, words...) }

// ledger is what the consumers have said.
type ledger struct {
	mu    sync.Mutex
	got   map[string]int // the latest attempt
	acked map[string]int // the attempt
	doubt map[string]bool
	again []string // acknowledged twice
	count int
}

func (l *ledger) note(t testing.TB, line string) {
	var what, id string
	var attempt int
	n, _ := fmt.Sscan(line, &what, &id, &attempt)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	switch {
	case what == "got" && n == 3:
		l.got[id] = max(l.got[id], attempt)
	case what == "acked" && n == 3:
		if l.acked[id] != 0 {
			l.again = append(l.again, id)
		}
		l.acked[id] = attempt
	case what == "doubt":
		l.doubt[id] = true
	case what == "fail":
		t.Error(line)
	}
}

func (l *ledger) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// consumer is a process that consumes.
type consumer struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	read chan struct{} // closed at the end of its output
}

func startConsumer(t testing.TB, l *ledger, server, chroot string) *consumer {
	t.Helper()
	p := &consumer{cmd: exec.Command(os.Args[0]), read: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), consumerVariable+"="+server+" "+chroot)
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	go func() {
		defer close(p.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.note(t, lines.Text())
		}
	}()
	return p
}

// kill is kill -9. It returns when all that the process has said is noted.
func (p *consumer) kill() {
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
}

// Consumers are killed at any moment. Every element is processed, is removed
// once, and is never delivered again after that.
func TestQueueSurvivesKills(t *testing.T) {
	t.Parallel()
	const elements, consumers, kills = 300, 3, 6
	server, chroot := testserver.SharedZooKeeper(t)[0], testserver.Chroot(t)
	cfg := consumerConfig(server, chroot)
	cfg.SessionTimeout = 60 * time.Second
	q := MustNew(open(t, cfg), "/q")
	l := &ledger{got: map[string]int{}, acked: map[string]int{}, doubt: map[string]bool{}}
	var all []*consumer
	for range consumers {
		all = append(all, startConsumer(t, l, server, chroot))
	}
	var ids []string
	for killed := range kills {
		for range elements / kills / 5 {
			batch, err := q.OfferAll(bounded(t), make([][]byte, 5))
			if err != nil {
				t.Fatalf("OfferAll() = %v", err)
			}
			ids = append(ids, batch...)
		}
		seen := l.lines() + rand.N(20) + 1
		until(t, "work done", func() bool {
			left, err := q.Len(bounded(t))
			return l.lines() >= seen || err == nil && left == 0
		})
		i := killed % consumers
		all[i].kill()
		all[i] = startConsumer(t, l, server, chroot)
	}
	until(t, "queue worked off", func() bool {
		left, err := q.Len(bounded(t))
		return err == nil && left == 0
	})
	for _, p := range all {
		_ = p.in.Close()
		select {
		case <-p.read:
		case <-time.After(patience):
			t.Error("a consumer does not end")
		}
		p.kill()
	}
	unsaid := 0
	for _, id := range ids {
		switch attempt, acked := l.acked[id]; {
		case l.got[id] == 0:
			t.Errorf("%s was lost", id)
		case !acked && !l.doubt[id]:
			unsaid++ // acknowledged, and killed before it could say so
		case l.got[id] > attempt:
			t.Errorf("%s was delivered again (%d) after its acknowledgement (%d)", id, l.got[id], attempt)
		}
	}
	if len(l.again) > 0 || unsaid > kills {
		t.Errorf("acknowledged twice: %q; not known to be acknowledged: %d after %d kills", l.again, unsaid, kills)
	}
	if len(l.got) != len(ids) {
		t.Errorf("%d elements were delivered, want %d", len(l.got), len(ids))
	}
}
