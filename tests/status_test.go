package tests

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// keyStatus is where a key stands, as either transport tells it.
type keyStatus struct {
	state, operation, kind string
	attempt                uint32
	since, expires         string // "" where it does not say
	resolver               string // "true" or "false" where it says so
}

// status asks over the client's own transport. keys are sent as they are.
func (c client) status(keys ...string) (keyStatus, answer) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if c.via == (overGRPC{}) {
		return c.statusOverGRPC(ctx, keys)
	}
	return c.statusOverHTTP(ctx, keys)
}

func (c client) statusOverHTTP(ctx context.Context, keys []string) (keyStatus, answer) {
	a := c.request(ctx, http.MethodGet, "/v1/idempotency", "", http.Header{"Idempotency-Key": keys})
	var s struct {
		State, Kind string
		OperationID string `json:"operation_id"`
		Attempt     uint32
		Since       *time.Time
		ExpiresAt   *time.Time `json:"expires_at"`
		Resolver    *bool
	}
	if a.err == nil && a.code == "" {
		a.formErr = errors.Join(a.formErr, json.Unmarshal([]byte(a.body), &s))
	}
	return keyStatus{s.State, s.OperationID, s.Kind, s.Attempt, instant(s.Since), instant(s.ExpiresAt), saidOf(s.Resolver)}, a
}

func (c client) statusOverGRPC(ctx context.Context, keys []string) (keyStatus, answer) {
	conn, err := c.dial()
	if err != nil {
		return keyStatus{}, answer{err: err}
	}
	defer conn.Close()
	out := metadata.NewOutgoingContext(ctx, metadata.MD{"authorization": {"Bearer " + c.token}, "idempotency-key": keys})
	var a answer
	s, err := idemkeeperv1.NewIdempotencyClient(conn).GetStatus(out, &idemkeeperv1.GetStatusRequest{}, grpc.Header(&a.metaHeader), grpc.Trailer(&a.metaTrailer))
	a.readGRPC(ctx, s, err)
	if a.err != nil || a.code != "" {
		return keyStatus{}, a
	}
	name := func(s, prefix string) string {
		return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s, prefix)), "_", "-")
	}
	kind := ""
	if s.GetKind() != 0 {
		kind = name(s.GetKind().String(), "KEY_KIND_")
	}
	return keyStatus{name(s.GetState().String(), "STATE_"), s.GetOperationId(), kind, s.GetAttempt(),
		stampOf(s.GetSince()), stampOf(s.GetExpiresAt()), saidOf(s.Resolver)}, a
}

func instant(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func stampOf(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return ""
	}
	t := ts.AsTime()
	return instant(&t)
}

func saidOf(b *bool) string {
	if b == nil {
		return ""
	}
	return strconv.FormatBool(*b)
}

// wantStatus asks one instance about a key over every transport, whichever the key
// was used over. They have to tell the same: state, attempt, and what they say of
// the resolver.
func (in *instance) wantStatus(t *testing.T, token, key, state string, attempt uint32, resolver string) {
	t.Helper()
	var first keyStatus
	for i, via := range transports {
		got, a := in.client(via).as(token).status(key)
		if a.err != nil || a.formErr != nil || got.state != state || got.attempt != attempt || got.resolver != resolver {
			t.Errorf("status of %q over %v = %+v in %v, want %s, attempt %d, resolver %q", key, via, got, a, state, attempt, resolver)
		}
		if known := state != "none"; known != (got.since != "") || known != (got.operation != "") || known != (got.kind != "") {
			t.Errorf("status of %q over %v = %+v, want since, operation and kind: %v", key, via, got, known)
		}
		if i == 0 {
			first = got
		}
		if got != first {
			t.Errorf("status of %q over %v = %+v, want %+v as over %v", key, via, got, first, transports[0])
		}
	}
}

// The status of a key follows it, for its merchant and for nobody else, whatever
// it was used over and is asked over.
func TestStatusFollowsTheKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, other := s.start("one", withLatency(victimLatency)), s.start("other")
	undecided := s.start("one without a resolver", withFlags("--resolver", "none"))
	for _, via := range transports {
		key, c := keyFor(via, "followed"), other.client(via)
		other.wantStatus(t, "demo", key, "none", 0, "")
		wantRefusal(t, "bad body", c.pay(key, -1, key), "body-invalid")
		other.wantStatus(t, "demo", key, "none", 0, "")
	}
	all := in.startPaymentsUpTo(t, "followed", "at=before-ledger")
	for _, r := range all {
		other.wantStatus(t, "demo", r.key, "pending", 1, "true")
		undecided.wantStatus(t, "demo", r.key, "pending", 1, "false")
		other.wantStatus(t, "test", r.key, "none", 0, "")
	}
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := other.client(r.via)
		wantPayment(t, "payment", <-r.done, wantOnePayment(t, c, r.key))
		other.wantStatus(t, "demo", r.key, "completed", 1, "")
		other.wantStatus(t, "test", r.key, "none", 0, "")

		token, note := c.issueToken(t), keyFor(r.via, "token")
		in.wantStatus(t, "demo", token, "issued", 0, "")
		wantRefusal(t, "bad body with a token", c.trade(token, -1, note), "body-invalid")
		in.wantStatus(t, "demo", token, "issued", 0, "")
		if a := c.tradeWithRetries(token, amount, note); !a.isPayment() {
			t.Fatalf("trade = %v, want it made", a)
		}
		in.wantStatus(t, "demo", token, "completed", 1, "")
	})
}

// An outcome that nobody knows is told as such. Whether somebody but a person
// settles it is what the instance that is asked would do. The first instance,
// which has no resolver, is the one that sweeps as long as it lives.
func TestStatusOfAnUnknownOutcome(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	decided := s.start("one with a resolver")
	all := v.startPaymentsUpTo(t, "unknown", "at=after-ledger")
	v.kill(t)
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := other.client(r.via)
		wantRefusal(t, "retry", c.payWithRetries(r.key, amount, r.key), "outcome-unknown")
		other.wantStatus(t, "demo", r.key, "unknown", 1, "false")
		decided.wantStatus(t, "demo", r.key, "unknown", 1, "true")
		other.wantStatus(t, "test", r.key, "none", 0, "")
		wantPaidOnce(t, "retry where there is a resolver", decided.client(r.via), r.key)
		other.wantStatus(t, "demo", r.key, "completed", 1, "")
	})
}
