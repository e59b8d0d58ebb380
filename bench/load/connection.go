package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// connection sends one request after the other until the load stops, or until the first
// keys have all been sent.
func (l *load) connection(ctx context.Context) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod(http.MethodPost)
	req.SetRequestURI("http://" + l.Service.Address + "/pay")
	req.Header.SetContentType(jsonType)
	req.SetBodyString(order)

	var latencies []time.Duration
	var answered time.Time
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.latencies = append(l.latencies, latencies...)
		l.answered = answered
	}()
	for {
		number, ok := l.next(ctx)
		if !ok {
			return nil
		}
		req.Header.Set(keyHeader, fmt.Sprintf("%s%020d", l.prefix, number))
		start := time.Now()
		err := l.client.Do(req, resp)
		answered = time.Now()
		took := answered.Sub(start)
		if l.Keys == storm {
			l.stormed.Done()
		}
		if err != nil {
			return err
		}
		if status := resp.StatusCode(); status != http.StatusCreated {
			return fmt.Errorf("status %d, want %d: %s", status, http.StatusCreated, resp.Body())
		}
		l.sent.Add(1)
		if l.measuring.Load() {
			latencies = append(latencies, took)
		}
	}
}

// next is the number of the key of a connection's next request.
func (l *load) next(ctx context.Context) (number int64, ok bool) {
	if ctx.Err() != nil {
		return 0, false
	}
	if l.Keys == storm {
		number, ok = <-l.storms
		return number, ok
	}
	select {
	case <-l.stop:
		return 0, false
	default:
	}
	number = l.taken.Add(1) - 1
	if l.First {
		return number, number < int64(l.Number)
	}
	if l.Single {
		return number, number == 0
	}
	if l.Keys == repeated {
		number %= int64(l.Number)
	}
	return number, true
}

// storm hands out one key after the other, each to all connections. It waits for all
// answers to a key before the next one.
func (l *load) storm(ctx context.Context) error {
	defer close(l.storms)
	for {
		select {
		case <-l.stop:
			return nil
		default:
		}
		number := l.keys.Add(1) - 1
		l.stormed.Add(l.Connections)
		for range l.Connections {
			select {
			case l.storms <- number:
			case <-ctx.Done(): // a connection has failed and takes no more
				return context.Cause(ctx)
			}
		}
		l.stormed.Wait()
	}
}

// reading is what can be read at one moment.
type reading struct {
	at                        time.Time
	sent                      int64
	service, zooKeeper, redis time.Duration
	load, all                 time.Duration // of generator and proxy, and of everything on the machine
	figures                   serviceFigures
	zxid                      int64 // of ZooKeeper's last transaction
}

func (l *load) reading(ctx context.Context) (r reading, err error) {
	if r.figures, err = l.figures(ctx); err != nil {
		return reading{}, err
	}
	if r.service, err = processorTime(l.Processes.Service); err != nil {
		return reading{}, err
	}
	if r.zooKeeper, err = processorTime(l.Processes.ZooKeeper); err != nil {
		return reading{}, err
	}
	if r.redis, err = processorTime(l.Processes.Redis); err != nil {
		return reading{}, err
	}
	if l.ZooKeeper != "" {
		if r.zxid, err = testserver.LastZxid(l.ZooKeeper); err != nil {
			return reading{}, err
		}
	}
	if r.load, err = processorTime(append([]int{os.Getpid()}, l.Processes.Proxy...)); err != nil {
		return reading{}, err
	}
	if r.all, err = busyTime(); err != nil {
		return reading{}, err
	}
	r.at, r.sent = time.Now(), l.sent.Load()
	return r, nil
}

// figures asks the service.
func (l *load) figures(ctx context.Context) (f serviceFigures, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Service.Control, http.NoBody)
	if err != nil {
		return f, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return f, err
	}
	err = json.NewDecoder(resp.Body).Decode(&f)
	return f, errors.Join(err, resp.Body.Close())
}

// since is the window between two readings, without latencies.
func (r reading) since(begin reading) Window {
	requests := float64(r.sent - begin.sent)
	w := Window{
		Rate:        requests / r.at.Sub(begin.at).Seconds(),
		Service:     micros(r.service-begin.service) / requests,
		ZooKeeper:   micros(r.zooKeeper-begin.zooKeeper) / requests,
		Redis:       micros(r.redis-begin.redis) / requests,
		Allocations: float64(r.figures.Allocations-begin.figures.Allocations) / requests,
		Bytes:       float64(r.figures.Bytes-begin.figures.Bytes) / requests,
		Writes:      float64(r.zxid-begin.zxid) / requests,
	}
	w.Processor = w.Service + w.ZooKeeper + w.Redis
	ours := func(r reading) time.Duration { return r.service + r.zooKeeper + r.redis + r.load }
	others := (r.all - begin.all) - (ours(r) - ours(begin))
	share := func(d time.Duration) float64 {
		return max(0, d.Seconds()/r.at.Sub(begin.at).Seconds()/float64(runtime.NumCPU()))
	}
	w.Busy, w.Others = share(r.all-begin.all), share(others)
	return w
}

// percentile of latencies in order, in microseconds. It is 0 without a latency.
func percentile(sorted []time.Duration, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return micros(sorted[(len(sorted)-1)*percent/100])
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
