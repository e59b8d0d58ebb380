package load

import (
	"context"
	"errors"
	"net/url"
	"time"
)

// proxied is the proxy as the measurement sees it. It is nil without a delay.
type proxied struct{ process *process }

// startProxy starts the process. It delays by d in each direction.
func startProxy(ctx context.Context, d time.Duration) (*proxied, error) {
	process, err := startProcess(ctx, roleProxy)
	if err != nil {
		return nil, err
	}
	p := &proxied{process}
	_, err = p.ask(proxyRequest{Delay: d})
	return p, err
}

func (p *proxied) ask(q proxyRequest) (a proxyAnswer, err error) {
	if err := p.process.ask(q, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// address returns the address by which services reach a server. Without a proxy it is the server's own.
func (p *proxied) address(target string) (string, error) {
	if p == nil {
		return target, nil
	}
	a, err := p.ask(proxyRequest{Target: target})
	return a.Address, err
}

// url is address for a server that a URL names.
func (p *proxied) url(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	u.Host, err = p.address(u.Host)
	return u.String(), err
}

// Before each counted request the background work of the one before ends: the longest that a release waits for
// company is 5 ms.
const (
	countedRequests = 5
	uncounted       = 3 // they open connections, load scripts and prepare statements
	quiet           = 10 * time.Millisecond
)

// countTrips sends requests one at a time, and returns the median of their trips.
func (m *measurement) countTrips(ctx context.Context, r *runningCase) (int, error) {
	var counts []float64
	keys := r.testCase.keys
	if keys == storm {
		keys = fresh
	}
	for i := range uncounted + countedRequests {
		if err := wait(ctx, quiet+2*m.Delay); err != nil {
			return 0, err
		}
		if _, err := m.proxy.ask(proxyRequest{Begin: true}); err != nil {
			return 0, err
		}
		result, err := m.do(r, job{Keys: keys, Single: true, Connections: 1})
		if err != nil {
			return 0, err
		}
		a, err := m.proxy.ask(proxyRequest{Until: result.Answered})
		if err != nil {
			return 0, err
		}
		if i >= uncounted {
			counts = append(counts, float64(a.Trips))
		}
	}
	return int(median(counts)), nil
}
