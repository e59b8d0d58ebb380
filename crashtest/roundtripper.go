package crashtest

import (
	"io"
	"net/http"
)

// RoundTripper wraps a transport. Each of its requests is a point, such as "POST bank/captures". server is the name of
// the other system in points, because its address may differ from run to run.
func (e *Env) RoundTripper(server string, rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	if e == nil {
		return rt
	}
	return &roundTripper{e, server, rt}
}

type roundTripper struct {
	env    *Env
	server string
	next   http.RoundTripper
}

func (t *roundTripper) RoundTrip(req *http.Request) (res *http.Response, err error) {
	cut := func() {
		if res != nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		if req.Body != nil {
			_ = req.Body.Close()
		}
	}
	err = t.env.Call(req.Context(), req.Method+" "+t.server+stableName(req.URL.Path), cut, func() error {
		res, err = t.next.RoundTrip(req) //nolint:bodyclose // the caller closes it
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
