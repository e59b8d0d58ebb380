package tests

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

// overHTTP is the transport HTTP.
type overHTTP struct{}

// String implements [transport].
func (overHTTP) String() string { return "HTTP" }

func (overHTTP) order(ctx context.Context, c client, r route, keys []string, o order) answer {
	header := http.Header{}
	if len(keys) > 0 {
		header["Idempotency-Key"] = keys
	}
	a := c.request(ctx, http.MethodPost, "/v1/"+string(r), o.body(), header)
	if a.isPayment() && a.formErr == nil {
		a.formErr = errors.Join(
			checkHeader(a.header, "Content-Type", "application/json", "application/json; charset=utf-8"),
			checkHeader(a.header, "Location", "/v1/payments/"+a.payment.ID))
	}
	return a
}

func (overHTTP) token(ctx context.Context, c client) (token string, expires time.Time, a answer) {
	a = c.request(ctx, http.MethodPost, "/v1/tokens", "", nil)
	var body struct {
		Token     string
		ExpiresAt time.Time `json:"expires_at"`
	}
	if a.err == nil && a.code == "" {
		a.formErr = errors.Join(a.formErr, json.Unmarshal([]byte(a.body), &body))
		if a.status != http.StatusCreated {
			a.formErr = errors.Join(a.formErr, errors.New("a status other than 201"))
		}
	}
	return body.Token, body.ExpiresAt, a
}

func (overHTTP) payments(ctx context.Context, c client, note string) ([]payment, error) {
	var list struct{ Payments []payment }
	err := c.get(ctx, "/v1/payments?note="+url.QueryEscape(note), &list)
	return list.Payments, err
}

func (overHTTP) balance(ctx context.Context, c client, account string) (int64, error) {
	var a struct{ Balance int64 }
	err := c.get(ctx, "/v1/accounts/"+url.PathEscape(account), &a)
	return a.Balance, err
}

// get reads JSON.
func (c client) get(ctx context.Context, path string, to any) error {
	a := c.request(ctx, http.MethodGet, path, "", nil)
	if a.err != nil {
		return a.err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("GET %s: %v", path, a)
	}
	return json.Unmarshal([]byte(a.body), to)
}

// oneWay keeps no connection: package http repeats a request with an
// Idempotency-Key by itself where a connection that it kept breaks.
var oneWay = &http.Transport{DisableKeepAlives: true}

// request makes one request; body may be empty.
func (c client) request(ctx context.Context, method, path, body string, header http.Header) answer {
	start := time.Now()
	a := answer{}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, waitLimit)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, strings.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	req.Header = http.Header{"Authorization": {"Bearer " + c.token}, "Content-Type": {"application/json"}}
	maps.Copy(req.Header, header)
	sender := http.Client{Transport: oneWay}
	if c.roundTripper != nil {
		sender.Transport = c.roundTripper
	}
	resp, err := sender.Do(req)
	if err == nil {
		var b []byte
		b, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		a.status, a.header, a.body = resp.StatusCode, resp.Header, string(b)
	}
	a.err, a.took = err, time.Since(start)
	if err == nil {
		a.readHTTP()
	}
	return a
}

// readHTTP takes the reply apart.
func (a *answer) readHTTP() {
	a.wire = a.body
	a.replayed = a.header.Get("Idempotent-Replayed") == "true"
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	a.retry = err == nil && seconds > 0
	switch {
	case a.status == http.StatusCreated:
		a.formErr = json.Unmarshal([]byte(a.body), &a.payment)
	case a.status >= http.StatusBadRequest && a.header.Get("Content-Type") == "application/problem+json":
		if a.formErr = json.Unmarshal([]byte(a.body), &a.problem); a.formErr == nil {
			a.code = a.problem.Code
			a.formErr = a.checkProblem()
		}
	case a.status >= http.StatusBadRequest:
		a.formErr = errors.New("a refusal without a problem")
	}
	if v := a.header.Values("Idempotent-Replayed"); len(v) > 0 && !slices.Equal(v, []string{"true"}) {
		a.formErr = errors.Join(a.formErr, fmt.Errorf("Idempotent-Replayed: %q", v))
	}
	if v := a.header.Values("Retry-After"); len(v) > 1 || len(v) == 1 && !a.retry {
		a.formErr = errors.Join(a.formErr, fmt.Errorf("Retry-After: %q", v))
	}
}

// checkProblem compares a refusal with its row of the table.
func (a *answer) checkProblem() error {
	p, known := problems[a.code]
	if !known {
		return fmt.Errorf("unknown code %q", a.code)
	}
	if a.status != p.status || a.problem.Status != p.status || a.problem.Title != p.title {
		return fmt.Errorf("status %d, %d and title %q, want %d and %q", a.status, a.problem.Status, a.problem.Title, p.status, p.title)
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
