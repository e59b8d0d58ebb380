package crashtest

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Env is what the kit gives to a service. Its methods wrap drivers, so that their calls become points. A nil
// *Env wraps nothing, so a service may have the same lines for production.
type Env struct {
	// Lease, Session and ClientTimeout are those of the [Subject]. Use them in place of the minutes of production.
	Lease, Session, ClientTimeout time.Duration

	settings map[string]string
	control  *control
	late     time.Duration

	mu     sync.Mutex
	armed  bool
	target target
	counts map[string]int
	goOn   chan struct{} // closed when a held point may go on
}

// target is where a fault has to happen. An empty fault only records.
type target struct {
	Name  string
	Nth   int
	Fault Fault
}

// leastStop is less than any time for which the kit stops a process.
const leastStop = 500 * time.Millisecond

// current is the Env of this process, if it is a service of the kit.
var current atomic.Pointer[Env]

// Setting is a value that Setup has returned.
func (e *Env) Setting(name string) string { return e.settings[name] }

// Listen returns a listener on a free port of this machine, and tells the kit that the service is there.
func (e *Env) Listen() (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is bound at once
	if err == nil {
		e.Ready(l.Addr().String())
	}
	return l, err
}

// Ready tells the kit the address of a service that listens by itself.
func (e *Env) Ready(addr string) {
	e.control.send(event{Is: isReady, Addr: addr})
}

// Point marks a moment of a request that no wrapped driver knows, such as the one between two writes to files. It does
// nothing outside of a run of the kit.
func Point(_ context.Context, name string) {
	if e := current.Load(); e != nil {
		e.before(name, true)
	}
}

// errConnection is what the caller of a call gets whose connection broke.
var errConnection = &net.OpError{Op: "read", Net: "crashtest", Err: os.NewSyscallError("read", syscall.ECONNRESET)}

// Call makes a point of a call to another system, for clients that no wrapper of the kit knows. send makes the call. cut breaks its
// connection, and is nil if there is none to break.
func (e *Env) Call(ctx context.Context, name string, cut func(), send func() error) error {
	if e == nil {
		return send()
	}
	if cut == nil {
		cut = func() {}
	}
	p := e.Before(name)
	if p.Cut() {
		cut()
		return errConnection
	}
	err := send()
	if p.After(ctx, err) {
		cut()
		return cmpErr(ctx.Err(), errConnection)
	}
	return err
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Passage is a call on its way through a point. Wrappers that see request and answer apart use it in place of [Env.Call].
type Passage struct {
	env    *Env
	target target
	fault  Fault // that happens here, or ""
}

// Before is called before a call is sent. The process may be killed or stopped within it.
func (e *Env) Before(name string) Passage {
	if e == nil {
		return Passage{}
	}
	return e.before(name, false)
}

// Cut reports whether the connection has to break, in place of the call.
func (p Passage) Cut() bool { return p.fault == ConnectionCut }

// After is called with the answer to a call. The process may be killed within it. It reports
// whether the caller must not get the answer, because the connection broke or ctx ended.
func (p Passage) After(ctx context.Context, err error) (lost bool) {
	if p.env == nil {
		return false
	}
	after := event{Is: isAfter, Name: p.target.Name, Nth: p.target.Nth}
	if err != nil {
		after.Text = err.Error()
	}
	p.env.control.send(after)
	switch p.fault {
	case KilledAfter:
		p.env.control.send(event{Is: isReached})
		die()
	case AnswerLost:
		p.env.control.send(event{Is: isReached})
		return true
	case AnswerLate:
		p.env.control.send(event{Is: isReached})
		defer p.env.control.send(event{Is: isResumed})
		timer := time.NewTimer(p.env.late)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return true
		}
	}
	return false
}

// before counts a point, and does the fault if it belongs here.
func (e *Env) before(name string, mark bool) Passage {
	e.mu.Lock()
	if !e.armed {
		e.mu.Unlock()
		return Passage{}
	}
	e.counts[name]++
	p := Passage{env: e, target: target{Name: name, Nth: e.counts[name]}}
	if p.target.Name == e.target.Name && p.target.Nth == e.target.Nth {
		p.fault = e.target.Fault
	}
	e.mu.Unlock()
	e.control.send(event{Is: isBefore, Name: name, Nth: p.target.Nth, Mark: mark})
	switch p.fault {
	case KilledBefore:
		e.control.send(event{Is: isReached})
		die()
	case Stopped:
		e.control.send(event{Is: isReached})
		stopSelf()
		e.control.send(event{Is: isResumed})
	case Duplicate, OtherBody, Restarted:
		e.control.send(event{Is: isReached})
		<-e.goOn
		e.control.send(event{Is: isResumed})
	case ConnectionCut:
		e.control.send(event{Is: isReached})
	}
	return p
}

// die kills this process, as kill -9 does.
func die() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}

// arm begins to count points.
func (e *Env) arm(at target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed, e.target, e.counts = true, at, map[string]int{}
}

var errNoFunction = errors.New("the Subject needs Serve, Request and Effects")
