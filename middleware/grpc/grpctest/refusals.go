package grpctest

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

var errDown = errors.Join(driver.ErrUnavailable, errors.New("secret-host:6379: connection refused"))

// refusals has a row for each refusal without a run. The client sees the same of a unary call and
// of a stream.
var refusals = []struct {
	name    string
	keys    []string
	prepare func(b *bundle)
	want    idem.Code
	records int
}{
	{"a missing key", nil, nil, idem.CodeKeyMissing, 0},
	{"an empty key", []string{""}, nil, idem.CodeKeyInvalid, 0},
	{"two keys", []string{"k1", "k2"}, nil, idem.CodeKeyInvalid, 0},
	{"the same key twice", []string{"k1", "k1"}, nil, idem.CodeKeyInvalid, 0},
	{"keys that a proxy has joined", []string{"k1, k2"}, nil, idem.CodeKeyInvalid, 0},
	{"a malformed key", []string{`"k1`}, nil, idem.CodeKeyInvalid, 0},
	{"a key with a space", []string{"k 1"}, nil, idem.CodeKeyInvalid, 0},
	{"an over-long key", []string{strings.Repeat("k", 256)}, nil, idem.CodeKeyInvalid, 0},
	{"a message over the limit", []string{"k1"}, func(b *bundle) { b.options.Policy.MaxRequestBody = 1 }, idem.CodeBodyTooLarge, 0},
	{"no scope", []string{"k1"}, func(b *bundle) {
		b.options.Policy.Scope = func(context.Context) (string, error) { return "merchant", errors.New("secret") }
	}, idem.CodeInternal, 0},
	{"an empty scope", []string{"k1"}, func(b *bundle) {
		b.options.Policy.Scope = func(context.Context) (string, error) { return "", nil }
	}, idem.CodeInternal, 0},
	{"an unknown token", []string{"k1"}, func(b *bundle) { b.options.Policy.IssuedTokens = true }, idem.CodeTokenUnknown, 0},
	{"an issued token where a client key is wanted", []string{"k1"}, func(b *bundle) {
		if _, err := b.records.Issue(b.Context(), idem.NewKeyID("merchant", "k1"), patience); err != nil {
			b.Fatal(err)
		}
	}, idem.CodeKeyReused, 1},
	{"a key used over HTTP", []string{"k1"}, func(b *bundle) {
		policy, _ := b.options.Policy.WithDefaults()
		_, err := b.engine.Do(b.Context(), idem.Operation{Transport: idem.TransportHTTP, Scope: "merchant", Key: "k1", Policy: &policy,
			Fingerprint: func(v uint8) (driver.Fingerprint, error) {
				return idem.NewFingerprint(v, "http POST /v1/payments", "{}")
			}},
			func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil })
		if err != nil {
			b.Fatal(err)
		}
	}, idem.CodeKeyReused, 1},
	{"the store is down", []string{"k1"}, func(b *bundle) { b.store.FailBefore("Get", idemtest.Every, errDown) }, idem.CodeUnavailable, 0},
	{"the store lost its records", []string{"k1"}, func(b *bundle) { b.store.FailBefore("Get", idemtest.Every, driver.ErrStoreLost) }, idem.CodeStoreLost, 0},
	{"the lock service is down", []string{"k1"}, func(b *bundle) { b.locker.FailBefore("TryAcquire", idemtest.Every, errDown) }, idem.CodeUnavailable, 0},
}

// refusalCases are about calls that are refused.
var refusalCases = refusalTable()

func refusalTable() (cases []testCase) {
	for _, r := range refusals {
		cases = append(cases, testCase{r.name, func(b *bundle) {
			if r.prepare != nil {
				r.prepare(b)
			}
			b.start()
			for _, a := range []answer{b.pay(r.keys...), b.payout(r.keys...)} {
				b.wantRefusal(a, r.want)
				if text := status.Convert(a.err).Proto().String(); strings.Contains(text, "secret") || strings.Contains(text, "k1") {
					b.Errorf("the client is told %s", text)
				}
			}
			b.wantRuns(0)
			if n := b.records.Len(); n != r.records {
				b.Errorf("%d records, want %d", n, r.records)
			}
		}})
	}
	return append(cases, otherRefusals...)
}

var otherRefusals = []testCase{
	{"a key with another request", func(b *bundle) {
		b.start()
		b.want(b.pay("k1"), codes.OK, false, 1250)
		b.wantRefusal(b.transfer(b.withKeys("k1"), &walletv1.TransferRequest{To: "bob", Amount: 1251}), idem.CodeKeyReused)
		b.wantRefusal(b.payout("k1"), idem.CodeKeyReused) // another method
		b.wantRuns(1)
	}},
	{"a call whose first one is in progress", func(b *bundle) {
		running, release := make(chan struct{}), make(chan struct{})
		b.wallet.transfer = func(_ context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			close(running)
			receive(b, "a release", release)
			return paid(req), nil
		}
		b.start()
		done := make(chan answer, 1)
		go func() { done <- b.pay("k1") }()
		receive(b, "a start", running)
		b.wantRefusal(b.pay("k1"), idem.CodeInProgress)
		b.wantRefusal(b.transfer(b.withKeys("k1"), &walletv1.TransferRequest{To: "bob", Amount: 1}), idem.CodeKeyReused)
		close(release)
		b.want(receive(b, "an answer", done), codes.OK, false, 1250)
		b.want(b.pay("k1"), codes.OK, true, 1250)
		b.wantRuns(1)
	}},
	{"a stream of requests with a key", func(b *bundle) {
		b.start()
		for keys, want := range map[string]codes.Code{"k1": codes.Unimplemented, "": codes.OK} {
			ctx := b.withKeys()
			if keys != "" {
				ctx = b.withKeys(keys)
			}
			s, err := b.client.Upload(ctx)
			if err == nil {
				_, err = s.CloseAndRecv()
			}
			b.want(answer{err: err}, want, false)
		}
		b.wantRuns(1)
		if n := b.records.Len(); n != 0 {
			b.Errorf("%d records, want none", n)
		}
	}},
}
