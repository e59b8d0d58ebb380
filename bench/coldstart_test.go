package bench

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// coldCallers is how many executions there are at the same time, coldFor how long they
// go on, and coldFirst which part of that is the cold start.
const (
	coldCallers = 256
	coldFor     = 10 * time.Second
	coldFirst   = 2 * time.Second
)

// BenchmarkColdStart puts three servers without any of the parents of locks under full
// load from the first moment, with executions of fresh keys. With servers=new they
// have just been started, and their own code is as slow as that makes it. With
// servers=warm they have served the same load below another chroot for a while.
//
// Reported are the executions a second in the first two seconds, as cold/s, in the
// last two of ten, as steady/s, what part the one is of the other, as cold-to-steady,
// and how many were refused. It should be half at least, and none.
//
//	go test -run '^$' -bench ColdStart -benchtime 1x .
func BenchmarkColdStart(b *testing.B) {
	coldStart(b, testserver.StartEnsemble(b, 3, testserver.AsInProduction()), "", coldFirst) // this process and Redis
	for _, servers := range []string{"new", "warm"} {
		b.Run("servers="+servers, func(b *testing.B) {
			var cold, steady, refused float64
			for b.Loop() {
				ensemble := testserver.StartEnsemble(b, 3, testserver.AsInProduction())
				if servers == "warm" {
					coldStart(b, ensemble, "/before", coldFor)
				}
				marks, failed := coldStart(b, ensemble, "/measured", coldFor)
				n := int(coldFirst / coldMark)
				cold += float64(sum(marks[:n])) / coldFirst.Seconds()
				steady += float64(sum(marks[len(marks)-n:])) / coldFirst.Seconds()
				refused += float64(failed)
				b.Logf("executions in each %v: %v", coldMark, marks)
			}
			b.ReportMetric(cold/float64(b.N), "cold/s")
			b.ReportMetric(steady/float64(b.N), "steady/s")
			b.ReportMetric(cold/steady, "cold-to-steady")
			b.ReportMetric(refused/float64(b.N), "refused/op")
		})
	}
}

// coldMark is how often the executions are counted.
const coldMark = 250 * time.Millisecond

func coldStart(b *testing.B, ensemble *testserver.Ensemble, chroot string, d time.Duration) (marks []int64, failed int64) {
	b.Helper()
	client, err := zookeeper.Open(b.Context(), zookeeper.Config{
		Servers: ensemble.Hosts(), Chroot: chroot, SessionTimeout: sessionTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := client.Close(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	store, err := redisstore.New(b.Context(), redisClient(b), redisstore.WithPrefix(testserver.KeyPrefix(b)))
	if err != nil {
		b.Fatal(err)
	}
	execute := executeOn(b, newEngine(b, client.Locker(), store))
	ks := newKeys()
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	var done, refused atomic.Int64
	var wg sync.WaitGroup
	for range coldCallers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := execute(b.Context(), ks.next()); err != nil {
					if refused.Add(1) == 1 {
						b.Logf("the first refusal: %v", err)
					}
					continue
				}
				done.Add(1)
			}
		})
	}
	ticks := time.NewTicker(coldMark)
	defer ticks.Stop()
	for before := int64(0); len(marks) < int(d/coldMark); {
		<-ticks.C
		now := done.Load()
		marks, before = append(marks, now-before), now
	}
	wg.Wait()
	return marks, refused.Load()
}

func sum(marks []int64) (n int64) {
	for _, m := range marks {
		n += m
	}
	return n
}
