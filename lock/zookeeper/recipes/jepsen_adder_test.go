package recipes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// adderVariable tells the test binary to be a process that adds: by which lock
// server, chroot and set.
const adderVariable = "IDEMKEEPER_TEST_SET_ADDER"

// addToSet is what TestGuardedSet runs in processes of their own. It adds the
// elements that it reads from its standard input, and says where it stands. A
// "go" is read when it is about to write.
func addToSet(setting string) {
	args := strings.Fields(setting)
	ctx := context.Background()
	cfg := zookeeper.Config{
		Servers: []string{args[0]}, Chroot: args[1], Logger: testLogger(),
		SessionTimeout: 6 * time.Second, TickTime: testTick, OpenTimeout: patience,
	}
	c, err := zookeeper.Open(ctx, cfg)
	if err != nil {
		say("fail", err)
		return
	}
	defer func() { _ = c.Close(ctx) }()
	set, err := new(net.Dialer).DialContext(ctx, "tcp", args[2])
	if err != nil {
		say("fail", err)
		return
	}
	defer set.Close()
	answers, orders := bufio.NewScanner(set), bufio.NewScanner(os.Stdin)
	ask := func(words ...any) string {
		fmt.Fprintln(set, words...)
		answers.Scan()
		return answers.Text()
	}
	m := MustNewMutex(c, "/guard")
	say("ready")
	for orders.Scan() {
		lease, err := m.Acquire(ctx)
		if err != nil {
			say("fail", err)
			return
		}
		fence := lease.Fence().Token
		elements := strings.FieldsFunc(ask("read", fence), func(r rune) bool { return r == ',' })
		elements = append(elements, orders.Text())
		_, err = lease.Check(ctx) // as careful as can be
		say("read", err)
		orders.Scan() // the pause comes here
		answer := ask("write", fence, strings.Join(elements, ","))
		_ = lease.Release(ctx) // the session may be over
		say(answer)
	}
}

// adder is such a process.
type adder struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startAdder(t testing.TB, server, chroot, set string) *adder {
	t.Helper()
	a := &adder{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
	a.cmd.Env = append(os.Environ(), adderVariable+"="+server+" "+chroot+" "+set)
	var err error
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			a.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		<-read
		_ = a.cmd.Wait()
	})
	a.want("ready")
	return a
}

func (a *adder) tell(word string) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.in, word); err != nil {
		a.t.Fatal(err)
	}
}

// want waits for what the process has to say next.
func (a *adder) want(word string) string {
	a.t.Helper()
	timeout, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case line := <-a.lines:
		if !strings.HasPrefix(line, word) {
			a.t.Fatalf("the process says %q, want %q", line, word)
		}
		return line
	case <-timeout.Done():
		a.t.Fatalf("the process does not say %q", word)
	}
	return ""
}

func (a *adder) add(element string) {
	a.t.Helper()
	a.tell(element)
	a.want("read <nil>")
	a.tell("go")
	a.want("ok")
}

func (a *adder) signal(sig syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		a.t.Fatal(err)
	}
}

func say(words ...any) { fmt.Fprintln(os.Stdout, words...) }
