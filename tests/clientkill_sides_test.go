package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// retryingSide is a transport with a client that repeats calls by itself.
type retryingSide struct {
	name string
	// dial makes a client of an instance, which counts the attempts it sends.
	dial func(t testing.TB, in *instance, sent *atomic.Int64) retriedCall
	// Statuses of payments, of those without funds, and of those from nowhere.
	paid, poor, unknown string
}

// retriedCall makes one payment: neither a key nor a loop is in it.
type retriedCall func(context.Context, *paymentsv1.CreatePaymentRequest) retriedReply

// retriedReply is what a call returned.
type retriedReply struct {
	status   string              // HTTP's or gRPC's
	payment  *paymentsv1.Payment // nil for a refusal
	rest     string              // refusal and headers
	replayed bool
	err      error // there is no answer, or one that cannot be read
}

// String tells all but what differs from run to run.
func (r retriedReply) String() string {
	if r.err != nil {
		return "error " + r.err.Error()
	}
	text := ""
	if r.payment != nil {
		p := proto.CloneOf(r.payment)
		p.Id, p.CreatedAt = "", nil
		text = protojson.MarshalOptions{EmitUnpopulated: true}.Format(p)
	}
	return fmt.Sprintf("%s %s %s", r.status, text, r.rest)
}

var retryingSides = []retryingSide{
	{name: "grpc", dial: retryingGRPC, paid: "OK", poor: "FailedPrecondition", unknown: "NotFound"},
	{name: "http", dial: retryingHTTP, paid: "201", poor: "402", unknown: "404"},
}

// Bounds of the retries. The lock of a dead holder lives for a session, and a
// call may meet several kills.
const (
	retryAttempts = 10_000
	retryFirst    = 50 * time.Millisecond
	retryMost     = time.Second
)

func retryingGRPC(t testing.TB, in *instance, sent *atomic.Int64) retriedCall {
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		sent.Add(1)
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	client := dialPayments(t, in, grpc.WithChainUnaryInterceptor(idemgrpc.UnaryClientInterceptor(
		idemgrpc.WithRetryAttempts(retryAttempts), idemgrpc.WithRetryElapsed(retryLimit),
		idemgrpc.WithRetryBackoff(retryFirst, retryMost)), count))
	return func(ctx context.Context, o *paymentsv1.CreatePaymentRequest) retriedReply {
		var header metadata.MD
		p, err := client.CreatePayment(asDemo(ctx), o, grpc.Header(&header))
		r := retriedReply{status: status.Code(err).String(), replayed: len(header.Get("idempotent-replayed")) > 0}
		if err == nil {
			r.payment = p
		} else {
			r.rest = protojson.Format(status.Convert(err).Proto())
		}
		return r
	}
}

// dialPayments connects to an instance over gRPC, and to those that come after
// it on the same port.
func dialPayments(t testing.TB, in *instance, opts ...grpc.DialOption) paymentsv1.PaymentServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(in.rpc, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: patience,
			Backoff: backoff.Config{BaseDelay: retryFirst, Multiplier: 2, Jitter: 0.2, MaxDelay: retryMost}}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return paymentsv1.NewPaymentServiceClient(conn)
}

func asDemo(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer demo")
}

// countedTransport is below the transport under test.
type countedTransport struct {
	*http.Transport
	sent *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c countedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	return c.Transport.RoundTrip(req)
}

func retryingHTTP(t testing.TB, in *instance, sent *atomic.Int64) retriedCall {
	base := countedTransport{&http.Transport{}, sent}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: idemhttp.NewTransport(base, idemhttp.WithRetryAttempts(retryAttempts),
		idemhttp.WithRetryElapsed(retryLimit), idemhttp.WithRetryBackoff(retryFirst, retryMost))}
	return func(ctx context.Context, o *paymentsv1.CreatePaymentRequest) retriedReply {
		body, err := json.Marshal(map[string]any{"from": o.GetFrom(), "to": o.GetTo(), "amount": o.GetAmount(),
			"currency": o.GetCurrency(), "note": o.GetNote()}) // protojson would write the amount as text
		if err != nil {
			return retriedReply{err: err}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+in.addr+"/v1/payments", bytes.NewReader(body))
		if err != nil {
			return retriedReply{err: err}
		}
		req.Header.Set("Authorization", "Bearer demo")
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return retriedReply{err: err}
		}
		defer resp.Body.Close()
		return readReply(resp)
	}
}

func readReply(resp *http.Response) retriedReply {
	body, err := io.ReadAll(resp.Body)
	r := retriedReply{status: fmt.Sprint(resp.StatusCode), err: err, replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	location := resp.Header.Get("Location")
	for _, varies := range []string{"Content-Length", "Date", "Idempotent-Replayed", "Location"} {
		resp.Header.Del(varies)
	}
	r.rest = fmt.Sprint(resp.Header)
	switch {
	case err != nil:
	case resp.StatusCode != http.StatusCreated:
		r.rest += " " + string(body)
	default:
		r.payment = new(paymentsv1.Payment)
		if err := protojson.Unmarshal(body, r.payment); err != nil {
			r.err = fmt.Errorf("body %q: %w", body, err)
		} else if location != "/v1/payments/"+r.payment.GetId() {
			r.err = fmt.Errorf("payment %s at Location %q", r.payment.GetId(), location)
		}
	}
	return r
}
