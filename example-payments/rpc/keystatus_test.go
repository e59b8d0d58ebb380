package rpc_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

func (f *fixture) status(token, key string) (*idemkeeperv1.Status, error) {
	return idemkeeperv1.NewIdempotencyClient(f.conn).GetStatus(as(token, key), &idemkeeperv1.GetStatusRequest{})
}

// The status of a key is its merchant's, behind authentication, and that of a
// key in use over the other transport as well.
func TestStatusOfKeys(t *testing.T) {
	reached, open := make(chan string), make(chan struct{})
	f := setup(t, func(f *fixture, _ *rpc.Config) {
		f.ledger.before = func(context.Context) error {
			reached <- "here"
			<-open
			return nil
		}
	})
	_, err := f.status("nobody", "http")
	wantStatus(t, "no merchant", err, codes.Unauthenticated, "UNAUTHORIZED")
	_, err = f.status("demo", "")
	wantStatus(t, "no key", err, codes.InvalidArgument, "KEY_MISSING")
	if _, names := reflection(t, f); !slices.Contains(names, "idemkeeper.v1.Idempotency") {
		t.Errorf("services %v, want that of keys among them", names)
	}

	done := make(chan struct{}, 2)
	go func() {
		f.pay("grpc", order())
		done <- struct{}{}
	}()
	<-reached
	go func() {
		f.over("POST", "/v1/payments", "http", orderBody)
		done <- struct{}{}
	}()
	<-reached
	for _, key := range []string{"grpc", "http"} {
		s, err := f.status("demo", key)
		if err != nil || s.GetState() != idemkeeperv1.State_STATE_PENDING || s.GetAttempt() != 1 || !s.GetResolver() {
			t.Errorf("status of %s: %v, %v, want pending, attempt 1, and a resolver", key, s, err)
		}
		if _, body := f.over("GET", "/v1/idempotency", key, ""); !strings.Contains(body, `"state":"pending"`) || !strings.Contains(body, `"resolver":true`) {
			t.Errorf("status of %s over HTTP: %s, want it pending, and a resolver", key, body)
		}
		if s, err := f.status("test", key); err != nil || !proto.Equal(s, &idemkeeperv1.Status{State: idemkeeperv1.State_STATE_NONE}) {
			t.Errorf("status of %s for another merchant: %v, %v, want none", key, s, err)
		}
	}
	close(open)
	<-done
	<-done
	if s, err := f.status("demo", "grpc"); err != nil || s.GetState() != idemkeeperv1.State_STATE_COMPLETED || s.Resolver != nil {
		t.Errorf("status: %v, %v, want completed, and nothing of a resolver", s, err)
	}
}

// Without a resolver a person has to settle an interrupted call, and the status says
// so.
func TestStatusWithoutResolver(t *testing.T) {
	f := setup(t, func(f *fixture, cfg *rpc.Config) {
		cfg.Resolver = nil
		f.ledger.after = func(context.Context) error { panic("crash") }
	})
	wantStatus(t, "payment that panics", f.pay("k", order()).err, codes.Internal, "")
	s, err := f.status("demo", "k")
	if err != nil || s.GetState() != idemkeeperv1.State_STATE_UNKNOWN || s.Resolver == nil || s.GetResolver() {
		t.Errorf("status: %v, %v, want unknown, and no resolver", s, err)
	}
}
