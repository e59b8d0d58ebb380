package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
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

// A connection carries 256 calls at once, and the server refuses the next one.
func TestCallsOfAConnectionAreBounded(t *testing.T) {
	const most, refusedStream = 256, 7
	f := setup(t)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", f.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fields := []string{":method", "POST", ":scheme", "http", ":path", healthv1.Health_Watch_FullMethodName,
		":authority", "x", "content-type", "application/grpc", "te", "trailers"}
	var block []byte
	for i, text := range fields {
		if i%2 == 0 {
			block = append(block, 0) // a literal that is not indexed
		}
		block = append(append(block, byte(len(text))), text...)
	}
	const endHeaders = 4
	sent := preface()
	for i := range most + 1 { // calls whose message never comes
		sent = append(sent, frame(frameHeaders, endHeaders, uint32(2*i+1), block)...)
	}
	sent = append(sent, frame(framePing, 0, 0, []byte("answered"))...)
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	var refused []uint32
	for {
		kind, flags, stream, payload, err := readFrame(conn)
		if err != nil {
			t.Fatalf("the connection ended: %v", err)
		}
		if kind == frameReset && len(payload) == 4 && payload[3] == refusedStream {
			refused = append(refused, stream)
		}
		if kind == framePing && flags == ack && string(payload) == "answered" { // the server has read the calls before
			break
		}
	}
	if want := []uint32{2*most + 1}; !slices.Equal(refused, want) {
		t.Errorf("the streams %v were refused, want %v", refused, want)
	}
}

// Types and a flag of frames (RFC 9113, section 6).
const (
	frameHeaders, frameReset, frameSettings, framePing = 1, 3, 4, 6

	ack = 1
)

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return append(binary.BigEndian.AppendUint32(append(head, flags), stream), payload...)
}

// preface is what a client sends first.
func preface() []byte {
	return append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(frameSettings, 0, 0, nil)...)
}

func readFrame(r io.Reader) (kind, flags byte, stream uint32, payload []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[:])>>8)
	_, err = io.ReadFull(r, payload)
	return head[3], head[4], binary.BigEndian.Uint32(head[5:]), payload, err
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
		"with a call that never ends": {watchHealth, 32 * time.Minute, 39 * time.Minute}, // the age differs by a tenth
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
	if greets {
		if _, err := conn.Write(preface()); err != nil {
			t.Fatal(err)
		}
	}
	for {
		kind, flags, stream, payload, err := readFrame(conn)
		if err != nil {
			return
		}
		if kind == framePing && flags != ack && answersPings {
			_, _ = conn.Write(frame(framePing, ack, stream, payload)) // the next read tells of an error
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
