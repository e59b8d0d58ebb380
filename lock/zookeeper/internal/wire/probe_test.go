package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// servers dials servers that a test plays. An unknown one cannot be dialled.
func servers(play map[string]func(net.Conn)) *Dialer {
	return &Dialer{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		server := play[address]
		if server == nil {
			return nil, errors.New("refused")
		}
		client, far := net.Pipe()
		go func() {
			defer far.Close()
			server(far)
		}()
		return client, nil
	}}
}

func TestLeastSession(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		servers string
		want    time.Duration
		took    time.Duration
		says    []string
	}{
		"the first one tells":    {"good", 4 * time.Second, 0, nil},
		"one cannot be reached":  {"down good", 4 * time.Second, 0, nil},
		"one is mute":            {"mute good", 4 * time.Second, probeTimeout, nil},
		"one stops in its words": {"half good", 4 * time.Second, probeTimeout, nil},
		"one reads nothing":      {"deaf good", 4 * time.Second, probeTimeout, nil},
		"one hangs up":           {"gone good", 4 * time.Second, 0, nil},
		"one refuses":            {"none good", 4 * time.Second, 0, nil},
		"one never hangs up":     {"slow", 5 * time.Second, probeTimeout, nil},
		"none tells":             {"down none", 0, 0, []string{"no server told", "down: refused", "none: session refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				closed := false
				d := servers(map[string]func(net.Conn){
					"good": func(c net.Conn) {
						request, err := frame(c)
						if err != nil || len(request) != binary.Size(connectRequest{}) || binary.BigEndian.Uint32(request[16:]) != 1 {
							t.Errorf("connect = %x, %v, want a session of 1 ms", request, err)
						}
						go c.Write(greeting(1, 4000, 21)) // a part may not be read
						end, err := frame(c)
						closed = err == nil && string(end) == "\x00\x00\x00\x08\x00\x00\x00\x01\xff\xff\xff\xf5"
					},
					"mute": answering(nil),
					"half": answering(greeting(1, 4000, 21)[:10]),
					"deaf": func(net.Conn) { time.Sleep(time.Minute) },
					"gone": func(c net.Conn) { _, _ = frame(c) },
					"none": answering(greeting(0, 0, 21)),
					"slow": answering(greeting(1, 5000, 21)),
				})
				began := time.Now()
				got, err := d.LeastSession(t.Context(), strings.Fields(tt.servers))
				if took := time.Since(began); got != tt.want || (err != nil) != (tt.says != nil) || took != tt.took {
					t.Errorf("LeastSession() = %v, %v after %v, want %v after %v", got, err, took, tt.want, tt.took)
				}
				for _, s := range tt.says {
					if err == nil || !strings.Contains(err.Error(), s) {
						t.Errorf("LeastSession() = %v, want it to say %q", err, s)
					}
				}
				if good := strings.Contains(tt.servers, "good"); closed != good {
					t.Errorf("session closed: %v, want %v", closed, good)
				}
				time.Sleep(time.Minute) // until all of them have ended
			})
		})
	}
}

// The connection of a probe ends with it, whatever the server does.
func TestProbeLeavesNoConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := false
		d := servers(map[string]func(net.Conn){"none": func(c net.Conn) {
			_, _ = frame(c)
			_, _ = c.Write(greeting(0, 0, 21))
			_, err := io.Copy(io.Discard, c)
			ended = err == nil
		}})
		if _, err := d.LeastSession(t.Context(), []string{"none"}); err == nil {
			t.Error("LeastSession() = nil, want an error")
		}
		if synctest.Wait(); !ended {
			t.Error("the connection is open")
		}
	})
}
