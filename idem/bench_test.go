package idem_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func benchEngine(b *testing.B) (*idem.Engine, *idem.Policy) {
	b.Helper()
	store := memorystore.New()
	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close(context.Background()) })
	policy, err := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}.WithDefaults()
	if err != nil {
		b.Fatal(err)
	}
	return engine, &policy
}

var benchBody = string(make([]byte, 180))

func benchDo(b *testing.B, engine *idem.Engine, policy *idem.Policy, key string) {
	b.Helper()
	_, err := engine.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: policy,
		Fingerprint: fingerprintOf("http", benchBody)},
		func(context.Context) (idem.Response, error) {
			return idem.Response{Status: 201, Body: []byte(benchBody)}, nil
		})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkEngineFresh is the engine's own cost of a fresh key: hashing, join,
// read, lock, begin, settle, release, on memory lock and store.
func BenchmarkEngineFresh(b *testing.B) {
	engine, policy := benchEngine(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		benchDo(b, engine, policy, strconv.Itoa(i))
	}
}

// BenchmarkEngineReplay is a repeat of a completed request.
func BenchmarkEngineReplay(b *testing.B) {
	engine, policy := benchEngine(b)
	benchDo(b, engine, policy, "k")
	b.ReportAllocs()
	for b.Loop() {
		benchDo(b, engine, policy, "k")
	}
}
