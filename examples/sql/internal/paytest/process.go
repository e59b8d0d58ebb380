package paytest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Steps of every example at which a test can kill the process.
const (
	Written   = "the payment is written"   // and not committed
	Committed = "the payment is committed" // and not answered
)

// Environment of a process that a test starts.
const (
	envDatabase = "PAYTEST_DATABASE"
	envReceiver = "PAYTEST_RECEIVER"
	envStopAt   = "PAYTEST_STOP_AT" // the step to stop at
	envExample  = "PAYTEST_EXAMPLE"
)

// Main is the main function of an example's tests. In the processes that the tests start, it
// serves the named example until it is killed. leaks are the goroutines that a library never ends.
func Main(m *testing.M, examples map[string]Open, leaks ...goleak.Option) {
	gin.SetMode(gin.ReleaseMode)
	if name := os.Getenv(envExample); name != "" {
		fmt.Fprintln(os.Stderr, serve(examples[name]))
		os.Exit(1)
	}
	goleak.VerifyTestMain(testserver.M{M: m}, leaks...)
}

// serve is the process of an instance.
func serve(open Open) error {
	stopAt := os.Getenv(envStopAt)
	s := &Setting{Database: os.Getenv(envDatabase), Receiver: os.Getenv(envReceiver), Reach: func(step string) {
		if step == stopAt {
			fmt.Fprintln(os.Stdout, "at", step)
			select {} // until the test kills this process
		}
	}}
	v, err := newService(context.Background(), s, open)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready", ln.Addr())
	return http.Serve(ln, v)
}

// Process is an instance of an example in a process of its own.
type Process struct {
	URL string

	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
}

// start starts an instance. It ends with the test at the latest.
func start(t *testing.T, example string, s *Setting, stopAt string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), envExample+"="+example, envDatabase+"="+s.Database, envReceiver+"="+s.Receiver, envStopAt+"="+stopAt)
	p.cmd.Stderr, p.cmd.SysProcAttr = os.Stderr, testserver.ChildAttr()
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	t.Cleanup(p.Kill)
	p.URL = "http://" + strings.TrimPrefix(p.wait("ready "), "ready ") + "/pay"
	return p
}

// wait returns the first line with a prefix that the process prints.
func (p *Process) wait(prefix string) string {
	p.t.Helper()
	stuck := time.AfterFunc(Patience, p.signal)
	defer stuck.Stop()
	for p.out.Scan() {
		if strings.HasPrefix(p.out.Text(), prefix) {
			return p.out.Text()
		}
	}
	p.t.Fatalf("the instance never printed %q", prefix)
	return ""
}

// WaitAt waits until the process has stopped at its step.
func (p *Process) WaitAt(step string) { p.t.Helper(); p.wait("at " + step) }

// Kill ends the process at once (SIGKILL).
func (p *Process) Kill() {
	p.signal()
	_ = p.cmd.Wait()
}

func (p *Process) signal() { _ = p.cmd.Process.Signal(syscall.SIGKILL) }
