package zookeeper

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Which alert a server chooses for a client without the right certificate depends
// on its version of Java, and some only close the connection. The error says what
// it likely means in any case, and whether it is worth trying again.
func TestTLSErrorSaysWhatItLikelyMeans(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	type want struct {
		says string // "" for no hint
		down bool   // another try may find it otherwise
	}
	wants, accepts := want{says: "want a client certificate, and this client has none"}, want{says: "not accept this client's certificate"}
	orDown := func(w want) want { w.down = true; return w }
	mute := want{"no server reached", true}
	for _, tt := range []struct {
		name          string
		server        string
		without, with want // a client certificate
	}{
		{"handshake failure", alerting(t, 40), wants, accepts},
		{"bad certificate", alerting(t, 42), wants, accepts},
		{"unknown certificate", alerting(t, 46), wants, accepts},
		{"unknown authority", alerting(t, 48), wants, accepts},
		{"access denied", alerting(t, 49), wants, accepts},
		{"certificate required", alerting(t, 116), wants, accepts},
		{"another version of TLS", alerting(t, 70), want{}, want{}},
		{"no word", alerting(t, 0), orDown(wants), orDown(accepts)},
		{"after the handshake of TLS 1.3", demanding(t, ca, tls.VersionTLS13), wants, mute},
		{"in the handshake of TLS 1.2", demanding(t, ca, tls.VersionTLS12), wants, mute},
	} {
		for subject, want := range map[string]want{"": tt.without, "payments": tt.with} {
			t.Run(tt.name+"/"+subject, func(t *testing.T) {
				t.Parallel()
				cfg := config(t, tt.server)
				cfg.TLS, cfg.OpenTimeout = ca.Client(subject), 700*time.Millisecond
				c, err := Open(bounded(t), cfg)
				if err == nil {
					c.Abandon()
					t.Fatal("Open() succeeded")
				}
				if !strings.Contains(err.Error(), want.says) || want.says == "" && strings.Contains(err.Error(), "the server may") {
					t.Errorf("Open() = %q, want it to say %q", err, want.says)
				}
				if down := errors.Is(err, driver.ErrUnavailable); down != want.down {
					t.Errorf("Open() = %q, wraps %q: %t, want %t", err, driver.ErrUnavailable, down, want.down)
				}
			})
		}
	}
}

// alerting is a server that answers the first words of a client with an alert of
// TLS, or closes where there is none.
func alerting(t *testing.T, alert byte) string {
	return listening(t, func(c net.Conn) {
		var head [5]byte // of the record: RFC 8446, section 5.1
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(head[3:])))
		if alert > 0 {
			_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, alert}) // section 6
			_, _ = io.Copy(io.Discard, c)                    // until the client has heard it
		}
	})
}

// demanding is a server that wants a client certificate, and says nothing to a
// client that has one.
func demanding(t *testing.T, ca *testserver.Authority, version uint16) string {
	cfg := ca.Server()
	cfg.ClientAuth, cfg.ClientCAs, cfg.MaxVersion = tls.RequireAndVerifyClientCert, ca.Pool(), version
	return listening(t, func(c net.Conn) {
		s := tls.Server(c, cfg)
		if s.Handshake() == nil {
			_, _ = s.Read(make([]byte, 4<<10))
		}
		_, _ = io.Copy(io.Discard, c)
	})
}

// listening serves each connection, and closes it after that.
func listening(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(c)
			}()
		}
	}()
	return ln.Addr().String()
}
