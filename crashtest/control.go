package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// Variables of the environment.
const (
	// envService is set in the processes of the service. It says where to ask for what to do.
	envService = "CRASHTEST_SERVICE"
	// envCase selects one case by its [Case.id].
	envCase = "CRASHTEST_CASE"
)

// InService reports whether this process is a service that the kit has started. The code of a test before [Run] runs in
// it too.
func InService() bool { return os.Getenv(envService) != "" }

// What a service tells the test.
const (
	isReady   = "ready"   // Addr
	isFailed  = "failed"  // Text
	isArmed   = "armed"   // points are counted from now on
	isBefore  = "before"  // a point
	isAfter   = "after"   // the call of a point was answered, Text is its error
	isReached = "reached" // the fault happens now
	isResumed = "resumed" // what was held goes on
)

// event is one line from a service to the test.
type event struct {
	Is   string
	PID  int    `json:",omitempty"`
	Addr string `json:",omitempty"`
	Text string `json:",omitempty"`
	Name string `json:",omitempty"`
	Nth  int    `json:",omitempty"`
	Mark bool   `json:",omitempty"`
}

// order is one line from the test to a service. The first one has the settings.
type order struct {
	Settings                            map[string]string `json:",omitempty"`
	Lease, Session, ClientTimeout, Late time.Duration     `json:",omitempty"`
	Arm                                 *target           `json:",omitempty"`
	GoOn                                bool              `json:",omitempty"`
}

// control is the connection between a service and the test.
type control struct {
	conn net.Conn
	mu   sync.Mutex
}

func (c *control) send(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.conn.Write(append(line, '\n')) // the other side may be gone
}

// serve runs the service in its own process, and does not return.
func serve(tb testing.TB, s Subject) {
	tb.Helper()
	conn, err := net.Dial("tcp", os.Getenv(envService)) //nolint:noctx,gosec // the test has given its own address
	if err != nil {
		fmt.Fprintln(os.Stderr, "crashtest: the test is gone:", err)
		os.Exit(1)
	}
	c := &control{conn: conn}
	c.send(event{PID: os.Getpid()})
	orders := json.NewDecoder(conn)
	var first order
	if err := orders.Decode(&first); err != nil {
		os.Exit(1)
	}
	env := &Env{
		Lease: first.Lease, Session: first.Session, ClientTimeout: first.ClientTimeout, settings: first.Settings,
		control: c, late: first.Late, goOn: make(chan struct{}),
	}
	current.Store(env)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		env.obey(orders)
		// The test has ended, or it wants no more of this process.
		time.AfterFunc(time.Second, func() { os.Exit(0) })
	}()
	if err := s.Serve(ctx, env); err != nil && ctx.Err() == nil {
		c.send(event{Is: isFailed, Text: err.Error()})
		os.Exit(1)
	}
	os.Exit(0)
}

// obey reads orders until the test closes the connection.
func (e *Env) obey(orders *json.Decoder) {
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return
		}
		if o.Arm != nil {
			e.arm(*o.Arm)
			e.control.send(event{Is: isArmed})
		}
		if o.GoOn {
			close(e.goOn)
		}
	}
}
