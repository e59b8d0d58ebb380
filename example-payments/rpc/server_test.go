package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
)

const serviceName = "payments.v1.PaymentService"

func (f *fixture) wantHealth(service string, want healthv1.HealthCheckResponse_ServingStatus) {
	f.t.Helper()
	got, err := healthv1.NewHealthClient(f.conn).Check(f.t.Context(), &healthv1.HealthCheckRequest{Service: service})
	if err != nil || got.GetStatus() != want {
		f.t.Errorf("health of %q: %v, %v, want %v", service, got, err, want)
	}
}

// Health wants no API key, and asks whenever it is asked.
func TestHealth(t *testing.T) {
	f := setup(t)
	f.wantHealth("", healthv1.HealthCheckResponse_SERVING)
	f.wantHealth(serviceName, healthv1.HealthCheckResponse_SERVING)
	client := healthv1.NewHealthClient(f.conn)
	_, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "x"})
	wantStatus(t, "health of another service", err, codes.NotFound, "")

	f.ledger.ping = func(context.Context) error { return errors.New("gone") }
	f.wantHealth("", healthv1.HealthCheckResponse_NOT_SERVING)
	f.ledger.ping = nil
	if list, err := client.List(t.Context(), &healthv1.HealthListRequest{}); err != nil || list.GetStatuses()[serviceName].GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("List: %v, %v, want SERVING", list, err)
	}
}

func reflection(t *testing.T, f *fixture) (reflectionv1.ServerReflection_ServerReflectionInfoClient, []string) {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return stream, names
}

func TestReflectionListsTheService(t *testing.T) {
	f := setup(t)
	_, names := reflection(t, f)
	if !slices.Contains(names, serviceName) {
		t.Errorf("services %v, want %s among them", names, serviceName)
	}
}

// When the server stops, a watcher of its health is told, reflection is ended, and a
// running payment is finished.
func TestShutdown(t *testing.T) {
	reached, open := make(chan struct{}), make(chan struct{})
	f := setup(t, func(f *fixture, _ *rpc.Config) {
		f.ledger.before = func(context.Context) error {
			close(reached)
			<-open
			return nil
		}
	})
	watch, err := healthv1.NewHealthClient(f.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := watch.Recv(); err != nil || st.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("watch: %v, %v, want SERVING", st, err)
	}
	stream, _ := reflection(t, f)
	paid := make(chan answer, 1)
	go func() { paid <- f.pay("k", order()) }()
	<-reached

	hurry, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := f.server.Shutdown(hurry); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown() while a payment runs = %v, want that the time is over", err)
	}
	if st, err := watch.Recv(); err != nil || st.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("watch: %v, %v, want NOT_SERVING", st, err)
	}
	_, err = watch.Recv()
	wantStatus(t, "watch", err, codes.Unavailable, "")
	_, err = stream.Recv()
	wantStatus(t, "reflection", err, codes.Unavailable, "")
	close(open)
	wantStatus(t, "payment that ran", (<-paid).err, codes.OK, "")
	if err := f.server.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown() = %v, want nil", err)
	}
}

// A connection carries 256 calls at once. The client of net/http opens another one for the next.
func TestCallsOfAConnectionAreBounded(t *testing.T) {
	const most = 256
	f := setup(t)
	var dialled atomic.Int32
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	for i := range most + 1 {
		if n := dialled.Load(); i == most && n != 1 {
			t.Errorf("%d calls needed %d connections, want 1", most, n)
		}
		const none = "\x00\x00\x00\x00\x00" // a message without a field
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+f.conn.Target()+healthv1.Health_Watch_FullMethodName, strings.NewReader(none))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	if n := dialled.Load(); n != 2 {
		t.Errorf("%d calls needed %d connections, want 2", most+1, n)
	}
}

// The middleware refuses a long key. gRPC itself refuses headers that are too long for that.
func TestHeadersOfACallAreBounded(t *testing.T) {
	f := setup(t)
	wantStatus(t, "key of 1 MiB", f.pay(strings.Repeat("k", 1<<20), order()).err, codes.InvalidArgument, "KEY_INVALID")
	wantStatus(t, "key of 3 MiB", f.pay(strings.Repeat("k", 3<<20), order()).err, codes.Internal, "")
}

// Every connection has an end: without a handshake, of a client that does not answer, without
// calls, and with a call that never ends. The limits are those of the package's constants.
func TestConnectionsEnd(t *testing.T) {
	var cfg rpc.Config
	setup(t, func(_ *fixture, c *rpc.Config) { cfg = *c })
	for name, tt := range map[string]struct {
		use         func(*testing.T, *bufconn.Listener)
		after, most time.Duration
	}{
		"without a handshake":         {func(t *testing.T, l *bufconn.Listener) { speakHTTP2(t, l, false, false) }, 5 * time.Second, 6 * time.Second},
		"of a client that is silent":  {func(t *testing.T, l *bufconn.Listener) { speakHTTP2(t, l, true, false) }, 80 * time.Second, 90 * time.Second},
		"without calls":               {func(t *testing.T, l *bufconn.Listener) { speakHTTP2(t, l, true, true) }, 5 * time.Minute, 6 * time.Minute},
		"with a call that never ends": {watchHealth, 32 * time.Minute, 38 * time.Minute}, // the age differs by a tenth
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, err := rpc.New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				listener, served := bufconn.Listen(1<<16), make(chan error, 1)
				go func() { served <- server.Serve(listener) }()
				began := time.Now()
				tt.use(t, listener)
				if took := time.Since(began); took < tt.after-time.Second || took > tt.most {
					t.Errorf("the connection ended after %v, want it within %v and %v", took, tt.after, tt.most)
				}
				server.Close()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// speakHTTP2 is a client without calls. It returns when the server closes the connection.
func speakHTTP2(t *testing.T, l *bufconn.Listener, greets, answersPings bool) {
	conn, err := l.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const frameHead, ping, ack = 9, 6, 1
	if greets {
		settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
		if _, err := conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings...)); err != nil {
			t.Fatal(err)
		}
	}
	for head := make([]byte, frameHead); ; {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))
		if _, err := io.ReadFull(conn, payload); err != nil {
			return
		}
		if head[3] == ping && head[4] != ack && answersPings {
			head[4] = ack
			_, _ = conn.Write(bytes.Join([][]byte{head, payload}, nil)) // the next read tells of an error
		}
	}
}

// watchHealth is a client with a call that it does not end.
func watchHealth(t *testing.T, l *bufconn.Listener) {
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // later than any end
	defer cancel()
	watch, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the call ended with %v, want UNAVAILABLE", err)
	}
}
