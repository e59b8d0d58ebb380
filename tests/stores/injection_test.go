package stores

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// hostileText would end a string or a statement of SQL, Lua or a shell, if it were a part of one.
const hostileText = "'; DROP TABLE idem_records; --\"`]]) redis.call('FLUSHALL') ${x} %s {0} \\"

// Whatever the application, a client or an operator names, every store keeps it as it is, and
// finds other records as before.
func TestStoredTextIsData(t *testing.T) {
	t.Parallel()
	for _, s := range differentialSides(t) {
		store, before := s.store, idem.NewKeyID("m", "before")
		attempt := begun(t, s.name, store, before, "POST /pay", driver.Fence{Domain: "d", Token: 7})
		for _, text := range []string{hostileText, "\r\nSet-Cookie: a=b", "\u202e\x1b[2J", "", "{}", "*", "idem:{00}:open", "\xff\xfe"} {
			id := idem.NewKeyID(text, idem.Key(hostileText))
			a := begun(t, s.name, store, id, text, driver.Fence{Domain: "d" + text, Token: 7})
			page, err := store.ListOpen(t.Context(), driver.OpenQuery{})
			if err != nil || len(page.Records) != 2 {
				t.Fatalf("%s: ListOpen() with %q = %d records, %v, want 2", s.name, text, len(page.Records), err)
			}
			want := idem.Response{Status: 201, Header: map[string][]string{"Location": {text}}, Body: []byte(text)}
			settlement := driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateCompleted, Response: (*driver.Response)(&want),
				Decision: driver.Decision{By: "ada", Reason: text}, ResultTTL: time.Hour, KeyTTL: time.Hour}
			if got, err := store.Settle(t.Context(), id, settlement); err != nil || !got.Settled {
				t.Fatalf("%s: Settle() with %q = %+v, %v", s.name, text, got, err)
			}
			rec, err := store.Get(t.Context(), id)
			if err != nil || rec.Response == nil || string(rec.Response.Body) != text || !reflect.DeepEqual(rec.Response.Header, want.Header) ||
				rec.Attempt != a || rec.Route != text {
				t.Errorf("%s: Get() with %q = %+v, %v", s.name, text, rec, err)
			}
			if err := store.RetireDomain(t.Context(), "x"+text, driver.Decision{By: "ada", Reason: text}); err != nil {
				t.Errorf("%s: RetireDomain(%q) = %v", s.name, "x"+text, err)
			}
		}
		if rec, err := store.Get(t.Context(), before); err != nil || rec.State != driver.StatePending || rec.Attempt != attempt {
			t.Errorf("%s: the record before is %+v, %v", s.name, rec, err)
		}
		if err := store.Ping(t.Context()); err != nil {
			t.Errorf("%s: Ping() = %v", s.name, err)
		}
	}
}

// begun starts an attempt.
func begun(t *testing.T, name string, s driver.Store, id driver.KeyID, route string, fence driver.Fence) driver.Attempt {
	t.Helper()
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "pay")
	kit.Fatal(t, err)
	got, err := s.Begin(context.Background(), id, driver.BeginRequest{Route: route, Fence: fence, Nonce: driver.NewNonce(), Fingerprint: fp, KeyTTL: time.Hour})
	if err != nil || !got.Begun {
		t.Fatalf("%s: Begin() of route %q = %+v, %v", name, route, got, err)
	}
	return got.Record.Attempt
}
