package exchange

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A problem whose code is not to be had counts as a refusal, because it may be one.
func TestRelayedProblems(t *testing.T) {
	t.Parallel()
	problem := func(code string, length int) string {
		s := `{"code":"` + code + `","detail":"`
		return s + strings.Repeat("x", max(length-len(s)-len(`"}`), 0)) + `"}`
	}
	write := func(body string, header ...string) func(*Writer) {
		return func(w *Writer) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			_, _ = io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		buffered bool
		act      func(*Writer)
		want     bool
	}{
		"a refusal":                       {false, write(problem("in-progress", 0)), true},
		"a refusal over the limit":        {false, write(problem("in-progress", 1000)), true},
		"of its own, over the limit":      {false, write(problem("poor", 1000)), false},
		"of its own, as long as is read":  {false, write(problem("poor", maxProblem)), false},
		"longer than is read":             {false, write(problem("poor", maxProblem+1)), true},
		"says that it is compressed":      {false, write(problem("in-progress", 0), "Content-Encoding", "gzip"), false},
		"says that it is as it is":        {false, write(problem("in-progress", 0), "Content-Encoding", "Identity"), true},
		"in an encoding that is unknown":  {false, write("x", "Content-Encoding", "br"), true},
		"sent by the framework":           {false, func(w *Writer) { w.Bypass(409, w.Header()) }, true},
		"sent by the framework, buffered": {true, func(w *Writer) { w.Bypass(409, w.Header()) }, true},
		"the connection was hijacked":     {false, func(w *Writer) { _, _, _ = w.Hijack() }, false},
		"hijacked after a part of it":     {false, func(w *Writer) { write(problem("in-progress", 0))(w); _, _, _ = w.Hijack() }, false},
	} {
		var got error
		e := &scripted{do: func(ctx context.Context, _ idem.Operation, h idem.Handler) (idem.Result, error) {
			_, got = h(ctx)
			return idem.Result{}, nil
		}}
		serveCall(t, e, Call{Writer: newServer(), Buffered: tt.buffered, Next: func(w *Writer, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			tt.act(w)
		}})
		if (got != nil) != tt.want {
			t.Errorf("%s: error = %v, want a relayed refusal: %v", name, got, tt.want)
		}
	}
}
