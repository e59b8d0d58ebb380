package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// A dial takes as long as the library says. With TLS it may take as long as a handshake.
func TestDialEndsInTime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tls            *tls.Config
		session, given time.Duration
		want           time.Duration
	}{
		{nil, 20 * time.Second, time.Second, time.Second},
		{&tls.Config{}, 20 * time.Second, time.Second, 4 * time.Second},
		{&tls.Config{}, 20 * time.Second, 7 * time.Second, 7 * time.Second},
		{&tls.Config{}, 2 * time.Second, time.Millisecond, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &Dialer{TLS: tt.tls, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			tr, began := NewTransport(d, tt.session, leaseclock.Now), time.Now()
			_, err := tr.Dial("tcp", "a", tt.given)
			if took := time.Since(began); took != tt.want || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(tr.Failure(), err) {
				t.Errorf("Dial() = %v after %v, Failure() = %v, want it to end after %v", err, took, tr.Failure(), tt.want)
			}
		})
	}
}

// A connection that is made while the transport is shut is closed. The failures that follow are not
// the reason.
func TestTransportThatIsShut(t *testing.T) {
	t.Parallel()
	var tr *Transport
	var far net.Conn
	d := &Dialer{Dial: func(context.Context, string, string) (nc net.Conn, _ error) {
		nc, far = net.Pipe()
		tr.Shut()
		return nc, nil
	}}
	tr = NewTransport(d, time.Second, leaseclock.Now)
	if nc, err := tr.Dial("tcp", "a", time.Second); nc != nil || !errors.Is(err, errTransportShut) {
		t.Errorf("Dial() = %v, %v, want %v", nc, err, errTransportShut)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("Read() at the server = %v, want the connection closed", err)
	}
	if tr.fail(io.ErrUnexpectedEOF); tr.Failure() != nil {
		t.Errorf("Failure() = %v, want none after the end", tr.Failure())
	}
}

// Each session has one ID. Another one ends the transport, and so does the end of the session.
func TestSessionIsNotSwapped(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		next int64
		over bool
		want error
	}{
		"the same":    {1, false, nil},
		"another one": {2, true, errSessionSwapped},
		"none":        {0, true, nil}, // the library reports the expiry
	} {
		tr := NewTransport(&Dialer{}, time.Second, leaseclock.Now)
		for _, session := range []int64{1, tt.next} {
			if err := tr.admit(session, time.Second, leaseclock.Now()); session == tt.next && !errors.Is(err, tt.want) {
				t.Errorf("%s: admit() = %v, want %v", name, err, tt.want)
			}
		}
		if over := errors.Is(context.Cause(tr.ctx), errSessionSwapped); over != tt.over {
			t.Errorf("%s: transport over: %v, want %v", name, over, tt.over)
		}
	}
}

// The servers take turns. The library is told each time when all of them have failed.
func TestHostsTakeTurns(t *testing.T) {
	t.Parallel()
	h := new(Hosts)
	if err := h.Init([]string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for i := range 8 {
		if i == 5 {
			h.Connected()
		}
		server, all := h.Next()
		if got.WriteString(server); all {
			got.WriteString("!")
		}
	}
	if want := "aba!ba!bab!"; got.String() != want {
		t.Errorf("servers %q, want %q, with a mark when all have failed", got.String(), want)
	}
}
