package idemtest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeResponseTests are about responses. They have to come back unchanged.
var storeResponseTests = []storeTest{
	{name: "as it was", run: func(b *storeBench) {
		for name, r := range storeResponses(b.h.Features.MaxBody) {
			b.Run(name, func(t *testing.T) {
				b := *b // the same store
				b.T = t
				for _, state := range []driver.State{driver.StateUnknown, driver.StateCompleted} {
					b.id = randomKeyID()
					a, _ := b.start(driver.ClientKey)
					s := settlement(a, state)
					s.Response = &r
					b.settle(s, true)
					if got := b.in(state, 1).Response; !sameResponse(got, &r) {
						b.Errorf("Get(%v) = %s, want %s", b.id, describeResponse(got), describeResponse(&r))
					}
					b.settleAgain(s, true)
					if state == driver.StateCompleted {
						b.kept(b.request(driver.ClientKey), state)
					}
				}
			})
		}
	}},
	{name: "a later one replaces a larger one", run: func(b *storeBench) {
		large := &driver.Response{Status: 500, Body: bytes.Repeat([]byte("large"), 2000)}
		for _, small := range []*driver.Response{{Status: 200}, storeResponse()} {
			b.id = randomKeyID()
			a, _ := b.start(driver.ClientKey)
			for _, r := range []*driver.Response{large, small} {
				s := decision(a, driver.StateUnknown)
				s.Response = r
				b.settle(s, true)
			}
			s := settlement(a, driver.StateCompleted)
			s.Response = small
			b.settle(s, true)
			if got := b.get().Response; !sameResponse(got, small) {
				b.Errorf("Get(%v) = %s, want %s", b.id, describeResponse(got), describeResponse(small))
			}
		}
	}},
	{name: "a released one leaves nothing to the next attempt", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		s := settlement(a, driver.StateUnknown)
		s.Response = &driver.Response{Status: 500, Body: bytes.Repeat([]byte("large"), 2000)}
		b.settle(s, true)
		b.settle(decision(a, driver.StateReleased), true)
		next, _ := b.start(driver.ClientKey)
		if rec := b.get(); rec.Response != nil {
			b.Errorf("Get(%v) of the next attempt = %s, want no response", b.id, describeResponse(rec.Response))
		}
		s = settlement(next, driver.StateUnknown)
		s.Response = nil
		if rec := b.settle(s, true); rec.Response != nil {
			b.Errorf("Settle(%v, unknown) = %s, want no response", b.id, describeResponse(rec.Response))
		}
	}},
}

func storeResponses(maxBody int) map[string]driver.Response {
	random := make([]byte, 3000)
	_, _ = rand.Read(random)
	all := map[string]driver.Response{
		"nothing":    {},
		"empty body": {Status: 204, Header: map[string][]string{"Etag": {`""`}}},
		"omitted, with what an encrypting store keeps": {Status: 200, Omitted: true, Header: map[string][]string{"x": {"y"}}, Body: []byte("z")},
		"omitted":    {Status: 200, Omitted: true, Header: map[string][]string{"Content-Type": {"text/event-stream"}}},
		"a status":   {Status: 200, Omitted: true},
		"traced":     {Status: 201, Body: []byte("{}"), Span: driver.Span{TraceID: [16]byte(random[:16]), SpanID: [8]byte(random[16:24])}},
		"binary":     {Status: 200, Body: random},
		"zero bytes": {Status: 200, Body: make([]byte, 100)},
		"many values": {Status: 302, Header: map[string][]string{
			"Content-Language": {"de", "en, fr", ""}, "Location": {"/v1/payments/ü\x00"}, "Content-Encoding": {"gzip"},
		}, Body: []byte("see there\r\n")},
		"trailer": {Trailer: map[string][]string{"grpc-status-details-bin": {"\x08\x00\xff"}}, Body: []byte{0}},
		"longest": {Status: 200, Body: bytes.Repeat([]byte{0xfe}, maxBody)},
	}
	for _, n := range []int{1000, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 1015, 1016, 1017, 1018, 1019, 1020, 1021, 1022, 1023, 1024, 1025, 4097} {
		all[fmt.Sprintf("%d bytes", n)] = driver.Response{Status: 200, Body: bytes.Repeat([]byte("x"), n)}
	}
	return all
}
