package kit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// OverHTTP is the transport HTTP.
type OverHTTP struct{}

// String implements [Transport].
func (OverHTTP) String() string { return "HTTP" }

// Order implements [Transport].
func (OverHTTP) Order(ctx context.Context, c Client, r Route, keys []string, o Order) Answer {
	header := http.Header{}
	if len(keys) > 0 {
		header["Idempotency-Key"] = keys
	}
	a := c.Request(ctx, http.MethodPost, "/v1/"+string(r), o.body(), header)
	if a.IsPayment() && a.FormErr == nil {
		a.FormErr = errors.Join(
			checkHeader(a.Header, "Content-Type", "application/json", "application/json; charset=utf-8"),
			checkHeader(a.Header, "Location", "/v1/payments/"+a.Payment.ID))
	}
	return a
}

func (OverHTTP) token(ctx context.Context, c Client) (token string, expires time.Time, a Answer) {
	a = c.Request(ctx, http.MethodPost, "/v1/tokens", "", nil)
	var body struct {
		Token     string
		ExpiresAt time.Time `json:"expires_at"`
	}
	if a.Err == nil && a.Code == "" {
		a.FormErr = errors.Join(a.FormErr, json.Unmarshal([]byte(a.Body), &body))
		if a.Status != http.StatusCreated {
			a.FormErr = errors.Join(a.FormErr, errors.New("a status other than 201"))
		}
	}
	return body.Token, body.ExpiresAt, a
}

func (OverHTTP) payments(ctx context.Context, c Client, note string) ([]Payment, error) {
	var list struct{ Payments []Payment }
	err := c.get(ctx, "/v1/payments?note="+url.QueryEscape(note), &list)
	return list.Payments, err
}

// Balance implements [Transport].
func (OverHTTP) Balance(ctx context.Context, c Client, account string) (int64, error) {
	var a struct{ Balance int64 }
	err := c.get(ctx, "/v1/accounts/"+url.PathEscape(account), &a)
	return a.Balance, err
}

// get reads JSON.
func (c Client) get(ctx context.Context, path string, to any) error {
	a := c.Request(ctx, http.MethodGet, path, "", nil)
	if a.Err != nil {
		return a.Err
	}
	if a.Status != http.StatusOK {
		return fmt.Errorf("GET %s: %v", path, a)
	}
	return json.Unmarshal([]byte(a.Body), to)
}

// oneWay keeps no connection: package http repeats a request with an
// Idempotency-Key by itself where a connection that it kept breaks.
var oneWay = &http.Transport{DisableKeepAlives: true}

// Request makes one request; body may be empty.
func (c Client) Request(ctx context.Context, method, path, body string, header http.Header) Answer {
	start := time.Now()
	a := Answer{}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, WaitLimit)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.Addr+path, strings.NewReader(body))
	if err != nil {
		a.Err = err
		return a
	}
	req.Header = http.Header{"Authorization": {"Bearer " + c.Token}, "Content-Type": {"application/json"}}
	maps.Copy(req.Header, header)
	sender := http.Client{Transport: oneWay}
	if c.RoundTripper != nil {
		sender.Transport = c.RoundTripper
	}
	resp, err := sender.Do(req)
	if err == nil {
		var b []byte
		b, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		a.Status, a.Header, a.Body = resp.StatusCode, resp.Header, string(b)
	}
	a.Err, a.Took = err, time.Since(start)
	if err == nil {
		a.readHTTP()
	}
	return a
}

// readHTTP takes the reply apart.
func (a *Answer) readHTTP() {
	a.Wire = a.Body
	a.Replayed = a.Header.Get("Idempotent-Replayed") == "true"
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	a.retry = err == nil && seconds > 0
	switch {
	case a.Status == http.StatusCreated:
		a.FormErr = json.Unmarshal([]byte(a.Body), &a.Payment)
	case a.Status >= http.StatusBadRequest && a.Header.Get("Content-Type") == "application/problem+json":
		if a.FormErr = json.Unmarshal([]byte(a.Body), &a.problem); a.FormErr == nil {
			a.Code = a.problem.Code
			a.FormErr = a.checkProblem()
		}
	case a.Status >= http.StatusBadRequest:
		a.FormErr = errors.New("a refusal without a problem")
	}
	if v := a.Header.Values("Idempotent-Replayed"); len(v) > 0 && !slices.Equal(v, []string{"true"}) {
		a.FormErr = errors.Join(a.FormErr, fmt.Errorf("Idempotent-Replayed: %q", v))
	}
	if v := a.Header.Values("Retry-After"); len(v) > 1 || len(v) == 1 && !a.retry {
		a.FormErr = errors.Join(a.FormErr, fmt.Errorf("Retry-After: %q", v))
	}
}

// checkProblem compares a refusal with its row of the table.
func (a *Answer) checkProblem() error {
	p, known := problems[a.Code]
	if !known {
		return fmt.Errorf("unknown code %q", a.Code)
	}
	if a.Status != p.status || a.problem.Status != p.status || a.problem.Title != p.title {
		return fmt.Errorf("status %d, %d and title %q, want %d and %q", a.Status, a.problem.Status, a.problem.Title, p.status, p.title)
	}
	return errors.Join(a.checkText(a.problem.Detail), a.checkRetryHint(p))
}

// checkHeader checks a header field that has to have one value, out of some.
func checkHeader(h http.Header, name string, want ...string) error {
	if v := h.Values(name); len(v) != 1 || !slices.Contains(want, v[0]) {
		return fmt.Errorf("%s: %q, want one of %q", name, v, want)
	}
	return nil
}
