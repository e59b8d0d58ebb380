package stores

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// A handler that runs for several times the time to live of its lock is alive, and no other
// instance takes its record over.
func TestSlowHandlerIsNotRunAgain(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	log := slog.New(slog.DiscardHandler)
	client, err := redisstore.Connect(testserver.SharedRedis(t))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = client.Close() })
	prefix := testserver.KeyPrefix(t)
	store, err := redisstore.New(t.Context(), client, redisstore.WithPrefix(prefix), redisstore.WithLogger(log))
	kit.Fatal(t, err)
	policy, err := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.RunAgain()}.WithDefaults()
	kit.Fatal(t, err)
	var engines []*idem.Engine
	for range 2 {
		locker, err := redislock.New(t.Context(), client, redislock.WithPrefix(prefix), redislock.WithTTL(ttl), redislock.WithLogger(log))
		kit.Fatal(t, err)
		engine, err := idem.New(locker, store)
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = engine.Close(context.Background()); _ = locker.Close(context.Background()) })
		engines = append(engines, engine)
	}
	op := idem.Operation{Scope: "m", Key: "slow", Policy: &policy, Fingerprint: idem.FingerprintOf("pay")}
	runs := 0
	answer, err := engines[0].Do(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
		runs++
		for began := time.Now(); time.Since(began) < 2*ttl; time.Sleep(20 * time.Millisecond) {
			_, err := engines[1].Do(t.Context(), op, func(context.Context) (idem.Response, error) {
				runs++
				return idem.Response{}, nil
			})
			if codeOf(err) != "refused in-progress" {
				t.Errorf("another instance answers %v after %v, want in-progress", err, time.Since(began))
				break
			}
		}
		return idem.Response{Status: 201}, ctx.Err()
	})
	if err != nil || answer.Response.Status != 201 || runs != 1 {
		t.Errorf("the slow handler = %+v, %v, and %d ran, want 201 and 1", answer, err, runs)
	}
}
