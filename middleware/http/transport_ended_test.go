package idemhttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// keyedPost sends to a service, and returns once it has answered.
func keyedPost(t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// What a handler has left running can read, and change nothing.
func TestTransportSendsNothingForAnExecutionThatHasEnded(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	bank := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	t.Cleanup(bank.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: idemhttp.MustNewTransport(base, honoured)}
	var left context.Context
	keyedPost(t, service(t, idem.Policy{InDoubt: idem.LeaveUnknown()}, func(_ http.ResponseWriter, r *http.Request) { left = context.WithoutCancel(r.Context()) }))
	for _, tt := range []struct {
		method string
		keys   []string // as the caller sets them
	}{{"POST", nil}, {"POST", []string{"own"}}, {"POST", []string{}}, {"DELETE", nil}, {"GET", nil}} {
		body := &closed{Reader: strings.NewReader("{}")}
		req, err := http.NewRequestWithContext(left, tt.method, bank.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		if tt.keys != nil {
			req.Header["Idempotency-Key"] = tt.keys
		}
		before := sent.Load()
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		refused := errors.Is(err, idem.ErrExecutionEnded) && sent.Load() == before
		if want := tt.method != "GET"; refused != want || !body.done.Load() {
			t.Errorf("%s with keys %q: error %v, refused %v, want %v; body closed: %v", tt.method, tt.keys, err, refused, want, body.done.Load())
		}
	}
	req, err := http.NewRequestWithContext(left, http.MethodPost, bank.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Do(req); !errors.Is(err, idem.ErrExecutionEnded) {
		t.Errorf("POST without a body = %v, want %v", err, idem.ErrExecutionEnded)
	}
}

type closed struct {
	*strings.Reader
	done atomic.Bool
}

func (c *closed) Close() error {
	c.done.Store(true)
	return nil
}

// An attempt that fails after the handler has returned is not made again.
func TestTransportDoesNotRepeatForAnExecutionThatHasEnded(t *testing.T) {
	t.Parallel()
	var attempts atomic.Int64
	arrived, ended, sent := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if attempts.Add(1) == 1 {
			close(arrived)
			<-ended
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(bank.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: idemhttp.MustNewTransport(base, honoured, idemhttp.WithRetryBackoff(time.Microsecond, time.Millisecond))}
	keyedPost(t, service(t, idem.Policy{InDoubt: idem.LeaveUnknown()}, func(_ http.ResponseWriter, r *http.Request) {
		ctx := context.WithoutCancel(r.Context())
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, bank.URL, http.NoBody)
			if err != nil {
				sent <- err
				return
			}
			resp, err := client.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			sent <- err
		}()
		<-arrived
	}))
	close(ended)
	if err := <-sent; !errors.Is(err, idem.ErrExecutionEnded) || attempts.Load() != 1 {
		t.Errorf("error = %v after %d attempts, want %v after one", err, attempts.Load(), idem.ErrExecutionEnded)
	}
}
