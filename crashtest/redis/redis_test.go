package crashredis

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// The service takes a key by SET NX and then counts, so it counts once at most. But go-redis sends INCR again if its answer is lost.
func TestALostAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	var server *miniredis.Miniredis
	report := crashtest.Find(t, crashtest.Subject{
		Setup: func(tb testing.TB) map[string]string {
			server = miniredis.NewMiniRedis()
			if err := server.Start(); err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(server.Close)
			return map[string]string{"redis": server.Addr()}
		},
		Serve: func(_ context.Context, env *crashtest.Env) error {
			client := Wrap(env, redis.NewClient(&redis.Options{Addr: env.Setting("redis")}))
			l, err := env.Listen()
			if err != nil {
				return err
			}
			return http.Serve(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				key := r.FormValue("key")
				taken, err := client.SetNX(r.Context(), "taken:"+key, 1, 0).Result()
				if err == nil && taken {
					client.Incr(r.Context(), "count:"+key)
				}
			}))
		},
		Request: func(ctx context.Context, c crashtest.Call) (crashtest.Answer, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/?key="+c.Key), nil)
			if err != nil {
				return crashtest.Answer{}, err
			}
			return crashtest.Send(req)
		},
		Effects: func(_ context.Context, key string) (n int, err error) {
			if text, err := server.Get("count:" + key); err == nil {
				_, err = fmt.Sscan(text, &n)
				return n, err
			}
			return 0, nil
		},
		Faults: []crashtest.Fault{crashtest.AnswerLost},
	})
	for _, c := range report.Cases[1:] {
		if incr := c.Point.Name == "INCR count"; (c.Cell == "2 EFFECTS") != incr {
			t.Errorf("%v: %s %s, want a second effect at INCR alone", c.Point, c.Cell, c.Why)
		}
	}
	if len(report.Points) != 2 || report.Points[0].Name != "SETNX taken" && report.Points[0].Name != "SET taken" {
		t.Errorf("points %v, want SET and INCR", report.Points)
	}
}

func TestCommandsAreNamed(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{
		"*3\r\n$3\r\nset\r\n$5\r\npay:1\r\n$1\r\nx\r\n":                                      "SET pay",
		"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nDEL\r\n$1\r\nb\r\n":                       "GET a, DEL b",
		"*2\r\n$7\r\nEVALSHA\r\n$40\r\n0123456789012345678901234567890123456789\r\n":         "EVALSHA 01234567",
		"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*3\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$1\r\nx\r\n": "",
		"*1\r\n$4\r\nPING\r\n":              "",
		"the rest of a long pipeline\r\nxy": "",
	} {
		if got := nameOf([]byte(written)); got != want {
			t.Errorf("%q is named %q, want %q", written, got, want)
		}
	}
}
