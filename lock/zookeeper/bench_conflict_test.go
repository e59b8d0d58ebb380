package zookeeper

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// BenchmarkConflicts takes 128 locks at once over a link with a round trip of 5 ms, of
// which none or every other one is held by another client. Reported is how long the
// free ones took, the slowest of each round: the mean of the rounds as worst-ms, and
// the longest of all as max-ms. With conflicts it should be at most three times of
// what it is without.
func BenchmarkConflicts(b *testing.B) {
	for name, held := range map[string]int{"held=0": 0, "held=64": 64} {
		b.Run(name, func(b *testing.B) { benchmarkConflicts(b, 128, held) })
	}
}

func benchmarkConflicts(b *testing.B, n, held int) {
	cfg := sharedConfig(b)
	cfg.SessionTimeout = 60 * time.Second
	beside := open(b, cfg).Locker()
	cfg.Dial = farAway(5 * time.Millisecond)
	l := open(b, cfg).Locker()
	makeParents(b, beside)
	var sum, longest time.Duration
	for b.Loop() {
		ids := make([]driver.KeyID, n)
		leases := make([]driver.Lease, n)
		for i := range ids {
			if ids[i] = newID(); held > 0 && i%(n/held) == 0 {
				leases[i], _ = beside.TryAcquire(b.Context(), request(ids[i]))
			}
		}
		worst := make([]time.Duration, n)
		var wg sync.WaitGroup
		for i, id := range ids {
			taken := leases[i] != nil
			wg.Go(func() {
				began := time.Now()
				lease, err := l.TryAcquire(b.Context(), request(id))
				switch {
				case taken && !errors.Is(err, driver.ErrLocked), !taken && err != nil:
					b.Errorf("TryAcquire() = %v, where held = %v", err, taken)
				case !taken:
					worst[i], leases[i] = time.Since(began), lease
				}
			})
		}
		wg.Wait()
		var round time.Duration
		for i, lease := range leases {
			round = max(round, worst[i])
			if lease != nil {
				lease.ReleaseInBackground()
			}
		}
		sum, longest = sum+round, max(longest, round)
		await(b, "releases", l.c.core.Keeper.Background.Idle())
		await(b, "releases", beside.c.core.Keeper.Background.Idle())
	}
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), "worst-ms")
	b.ReportMetric(float64(longest.Microseconds())/1000, "max-ms")
}

// farAway dials servers that answer after so long at the earliest.
func farAway(roundTrip time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		near, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		here, link := net.Pipe()
		go delay(link, near, roundTrip/2)
		go delay(near, link, roundTrip/2)
		return here, nil
	}
}

// delay passes on what it reads after so long, until either side closes.
func delay(from, to net.Conn, d time.Duration) {
	type chunk struct {
		at   time.Time
		data []byte
	}
	chunks := make(chan chunk, 1<<12)
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.at))
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		for range chunks { // let the reader end
		}
	}()
	defer close(chunks)
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			chunks <- chunk{time.Now().Add(d), append([]byte(nil), buf[:n]...)}
		}
		if err != nil {
			return
		}
	}
}
