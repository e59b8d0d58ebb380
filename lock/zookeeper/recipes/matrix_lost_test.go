package recipes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// Each kind of request, or its reply, is lost once: while everything is made for
// the first time, and while it is handed over. It does not show.
func matrixLostMessages(t *testing.T, at matrixPlace) {
	for _, tt := range []struct {
		name string
		op   int32
		// where it is sent: when things are made, handed over, or after the
		// connection was cut
		making, handing, cut bool
	}{
		{"container", testserver.OpCreateContainer, true, false, false},
		{"transaction", testserver.OpMulti, true, true, false},
		{"read", testserver.OpGetData, true, true, false},
		{"list", testserver.OpGetChildren2, true, true, false},
		{"connect", testserver.OpConnect, false, true, true},
		{"credential", testserver.OpAuth, false, true, true},
		{"watches", testserver.OpSetWatches, false, true, true},
	} {
		for _, reply := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reply %v", tt.name, reply), func(t *testing.T) {
				p := newPair(t, at, 20*time.Second)
				session := sessionOf(p.c)
				lose := func() <-chan struct{} {
					if reply {
						return p.proxy.DropNextReply(testserver.Op(tt.op))
					}
					return p.proxy.DropNextRequest(testserver.Op(tt.op))
				}
				var lost []<-chan struct{}
				if tt.making {
					lost = append(lost, lose())
				}
				releaseAll(t, p.holdAll(p.c))
				had := p.holdAll(p.other)
				next := make([]driver.Lease, len(had))
				answered := p.queueUp(p.c, func(i int, l driver.Lease) { next[i] = l })
				until(t, "waiters", func() bool { return p.watches() > 0 })
				if tt.handing {
					lost = append(lost, lose())
				}
				if tt.cut {
					p.proxy.Cut()
					await(t, "the loss", lost[0])
				}
				releaseAll(t, had)
				await(t, "everything", answered)
				if t.Failed() {
					t.FailNow()
				}
				wantHeldStill(t, next)
				releaseAll(t, next)
				for _, ch := range lost {
					await(t, "the loss", ch)
				}
				p.wantIdle(p.c)
				releaseAll(t, p.holdAll(p.other))
				if sessionOf(p.c) != session {
					t.Error("the session did not survive")
				}
			})
		}
	}
}

// watches counts what the client behind the proxy has asked the servers to tell.
func (p *pair) watches() int {
	return watchesOf(p.c)
}

// watchesOf counts the watches of a client's session, without that of its lock domain.
func watchesOf(c *zookeeper.Client) (n int) {
	for key := range sessionOf(c).Session.Watches.Watched() {
		if !strings.HasSuffix(key.Path, "/idem/domain") {
			n++
		}
	}
	return n
}

// The reply to the end of a session is lost, or the request: what it had is
// free at once, or when the session has timed out.
func matrixLostClose(t *testing.T, at matrixPlace) {
	for _, lose := range []func(*testserver.Proxy, testserver.Match) <-chan struct{}{
		(*testserver.Proxy).DropNextReply, (*testserver.Proxy).DropNextRequest,
	} {
		p := newPair(t, at, 3*time.Second)
		had := p.holdAll(p.c)
		lost := lose(p.proxy, testserver.Op(testserver.OpClose))
		_ = p.c.Close(bounded(t))
		await(t, "the loss", lost)
		for i, l := range p.holdAll(p.other) {
			if !had[i].Fence().Before(l.Fence()) {
				t.Errorf("%T: fence %v after %v", l, l.Fence(), had[i].Fence())
			}
		}
	}
}
