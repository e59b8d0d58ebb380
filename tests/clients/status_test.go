package clients

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

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
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
func statusOf(c kit.Client, keys ...string) (keyStatus, kit.Answer) {
	ctx, cancel := context.WithTimeout(context.Background(), kit.WaitLimit)
	defer cancel()
	if c.Via == (kit.OverGRPC{}) {
		return statusOverGRPC(ctx, c, keys)
	}
	return statusOverHTTP(ctx, c, keys)
}

func statusOverHTTP(ctx context.Context, c kit.Client, keys []string) (keyStatus, kit.Answer) {
	a := c.Request(ctx, http.MethodGet, "/v1/idempotency", "", http.Header{"Idempotency-Key": keys})
	var s struct {
		State, Kind string
		OperationID string `json:"operation_id"`
		Attempt     uint32
		Since       *time.Time
		ExpiresAt   *time.Time `json:"expires_at"`
		Resolver    *bool
	}
	if a.Err == nil && a.Code == "" {
		a.FormErr = errors.Join(a.FormErr, json.Unmarshal([]byte(a.Body), &s))
	}
	return keyStatus{s.State, s.OperationID, s.Kind, s.Attempt, instant(s.Since), instant(s.ExpiresAt), saidOf(s.Resolver)}, a
}

func statusOverGRPC(ctx context.Context, c kit.Client, keys []string) (keyStatus, kit.Answer) {
	conn, err := c.Dial()
	if err != nil {
		return keyStatus{}, kit.Answer{Err: err}
	}
	defer conn.Close()
	out := metadata.NewOutgoingContext(ctx, metadata.MD{"authorization": {"Bearer " + c.Token}, "idempotency-key": keys})
	var a kit.Answer
	s, err := idemkeeperv1.NewIdempotencyClient(conn).GetStatus(out, &idemkeeperv1.GetStatusRequest{}, grpc.Header(&a.MetaHeader), grpc.Trailer(&a.MetaTrailer))
	a.ReadGRPC(ctx, s, err)
	if a.Err != nil || a.Code != "" {
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
func wantStatus(t *testing.T, in *kit.Instance, token, key, state string, attempt uint32, resolver string) {
	t.Helper()
	var first keyStatus
	for i, via := range kit.Transports {
		got, a := statusOf(in.Client(via).As(token), key)
		if a.Err != nil || a.FormErr != nil || got.state != state || got.attempt != attempt || got.resolver != resolver {
			t.Errorf("status of %q over %v = %+v in %v, want %s, attempt %d, resolver %q", key, via, got, a, state, attempt, resolver)
		}
		if known := state != "none"; known != (got.since != "") || known != (got.operation != "") || known != (got.kind != "") {
			t.Errorf("status of %q over %v = %+v, want since, operation and kind: %v", key, via, got, known)
		}
		if i == 0 {
			first = got
		}
		if got != first {
			t.Errorf("status of %q over %v = %+v, want %+v as over %v", key, via, got, first, kit.Transports[0])
		}
	}
}

// The status of a key follows it, for its merchant and for nobody else, whatever
// it was used over and is asked over.
func TestStatusFollowsTheKey(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in, other := s.Start("one", kit.WithLatency(kit.VictimLatency)), s.Start("other")
	undecided := s.Start("one without a resolver", kit.WithFlags("--resolver", "none"))
	for _, via := range kit.Transports {
		key, c := kit.KeyFor(via, "followed"), other.Client(via)
		wantStatus(t, other, "demo", key, "none", 0, "")
		kit.WantRefusal(t, "bad body", c.Pay(key, -1, key), "body-invalid")
		wantStatus(t, other, "demo", key, "none", 0, "")
	}
	all := in.StartPaymentsUpTo(t, "followed", "at=before-ledger")
	for _, r := range all {
		wantStatus(t, other, "demo", r.Key, "pending", 1, "true")
		wantStatus(t, undecided, "demo", r.Key, "pending", 1, "false")
		wantStatus(t, other, "test", r.Key, "none", 0, "")
	}
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		c := other.Client(r.Via)
		kit.WantPayment(t, "payment", <-r.Done, kit.WantOnePayment(t, c, r.Key))
		wantStatus(t, other, "demo", r.Key, "completed", 1, "")
		wantStatus(t, other, "test", r.Key, "none", 0, "")

		token, note := c.IssueToken(t), kit.KeyFor(r.Via, "token")
		wantStatus(t, in, "demo", token, "issued", 0, "")
		kit.WantRefusal(t, "bad body with a token", c.Trade(token, -1, note), "body-invalid")
		wantStatus(t, in, "demo", token, "issued", 0, "")
		if a := c.TradeWithRetries(token, kit.Amount, note); !a.IsPayment() {
			t.Fatalf("trade = %v, want it made", a)
		}
		wantStatus(t, in, "demo", token, "completed", 1, "")
	})
}

// An outcome that nobody knows is told as such. Whether somebody but a person
// settles it is what the instance that is asked would do. The first instance,
// which has no resolver, is the one that sweeps as long as it lives.
func TestStatusOfAnUnknownOutcome(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"))
	decided := s.Start("one with a resolver")
	all := v.StartPaymentsUpTo(t, "unknown", "at=after-ledger")
	v.Kill(t)
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		c := other.Client(r.Via)
		kit.WantRefusal(t, "retry", c.PayWithRetries(r.Key, kit.Amount, r.Key), "outcome-unknown")
		wantStatus(t, other, "demo", r.Key, "unknown", 1, "false")
		wantStatus(t, decided, "demo", r.Key, "unknown", 1, "true")
		wantStatus(t, other, "test", r.Key, "none", 0, "")
		kit.WantPaidOnce(t, "retry where there is a resolver", decided.Client(r.Via), r.Key)
		wantStatus(t, other, "demo", r.Key, "completed", 1, "")
	})
}
