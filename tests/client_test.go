package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// client is a merchant at one instance.
type client struct{ addr, token string }

// demo is the merchant that most tests are.
func (in *instance) demo() client { return client{in.addr, "demo"} }

// order is the body of a payment request.
type order struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Note     string `json:"note"`
}

func (o order) body() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and ints always marshal
	}
	return string(b)
}

// payment is what the service says of one.
type payment struct {
	ID string `json:"id"`
	order
	Status    string `json:"status"`
	CreatedAt string `json:"created_at"`
}

// answer is a response, or why there is none.
type answer struct {
	status  int
	header  http.Header
	body    string
	payment payment // of a 201
	problem struct {
		Type, Title, Detail, Code string
		Status                    int
	}
	err  error
	took time.Duration
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("error %v after %v", a.err, a.took)
	}
	return fmt.Sprintf("%d %s after %v (replayed %v, Retry-After %q)", a.status, strings.TrimSpace(a.body), a.took,
		a.replayed(), a.header.Get("Retry-After"))
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// is reports whether the answer is a problem with this status and code.
func (a answer) is(status int, code string) bool {
	return a.err == nil && a.status == status && a.problem.Code == code && a.problem.Status == status &&
		a.header.Get("Content-Type") == "application/problem+json"
}

// comeBack reports whether the client is asked to send it again, which every
// answer that may change by itself has to do.
func (a answer) comeBack() bool {
	return a.err != nil || (a.status == 409 || a.status == 503) && a.header.Get("Retry-After") != ""
}

// transport keeps no connection: package http repeats a request with an
// Idempotency-Key by itself where a connection that it kept breaks.
var transport = &http.Transport{DisableKeepAlives: true}

// send makes one request; body may be empty.
func (c client) send(ctx context.Context, method, path, body string, header http.Header) answer {
	start := time.Now()
	a := answer{}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, strings.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	req.Header = http.Header{"Authorization": {"Bearer " + c.token}, "Content-Type": {"application/json"}}
	maps.Copy(req.Header, header)
	resp, err := (&http.Client{Transport: transport, Timeout: patience}).Do(req)
	if err == nil {
		var b []byte
		b, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		a.status, a.header, a.body = resp.StatusCode, resp.Header, string(b)
	}
	a.err, a.took = err, time.Since(start)
	if err == nil {
		a.decode()
	}
	return a
}

func (a *answer) decode() {
	var err error
	switch {
	case a.status == http.StatusCreated:
		err = json.Unmarshal([]byte(a.body), &a.payment)
	case a.header.Get("Content-Type") == "application/problem+json":
		err = json.Unmarshal([]byte(a.body), &a.problem)
	}
	if err != nil {
		a.err = fmt.Errorf("answer %d %q: %w", a.status, a.body, err)
	}
}

// pay sends an order from alice to bob.
func (c client) pay(key string, amount int64, note string) answer {
	return c.post(context.Background(), "/v1/payments", key, amount, note)
}

// trade is pay with an issued token.
func (c client) trade(token string, amount int64, note string) answer {
	return c.post(context.Background(), "/v1/trades", token, amount, note)
}

func (c client) post(ctx context.Context, path, key string, amount int64, note string) answer {
	o := order{"alice", "bob", amount, "USD", note}
	return c.send(ctx, http.MethodPost, path, o.body(), http.Header{"Idempotency-Key": {key}})
}

// paying is a pay that runs beside the test.
func (c client) paying(key string, amount int64, note string) <-chan answer {
	done := make(chan answer, 1)
	go func() { done <- c.pay(key, amount, note) }()
	return done
}

// payUntil repeats a payment, as a client does, while the answer asks for it.
func (c client) payUntil(limit time.Duration, key string, amount int64, note string) answer {
	var a answer
	_ = poll(limit, func() error {
		if a = c.pay(key, amount, note); a.comeBack() {
			return errNotYet
		}
		return nil
	})
	return a
}

// get reads JSON.
func (c client) get(path string, to any) error {
	a := c.send(context.Background(), http.MethodGet, path, "", nil)
	if a.err != nil {
		return a.err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("GET %s: %v", path, a)
	}
	return json.NewDecoder(bytes.NewReader([]byte(a.body))).Decode(to)
}

// payments lists those with a note.
func (c client) payments(note string) ([]payment, error) {
	var list struct{ Payments []payment }
	err := c.get("/v1/payments?note="+url.QueryEscape(note), &list)
	return list.Payments, err
}

// state of a key.
func (c client) state(key string) (string, error) {
	a := c.send(context.Background(), http.MethodGet, "/v1/idempotency", "", http.Header{"Idempotency-Key": {key}})
	var s struct{ State string }
	if a.err == nil {
		a.err = json.Unmarshal([]byte(a.body), &s)
	}
	return s.State, a.err
}

// ready asks /readyz.
func (c client) ready() answer {
	return c.send(context.Background(), http.MethodGet, "/readyz", "", nil)
}
