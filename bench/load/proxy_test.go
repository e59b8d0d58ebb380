package load

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"
)

// step is what happens on one of two connections, in order.
type step struct {
	connection int
	reply      bool
}

// A chain of three, and requests that overlap it.
func TestTrips_AreTheLongestChain(t *testing.T) {
	t.Parallel()
	ask, reply := func(c int) step { return step{c, false} }, func(c int) step { return step{c, true} }
	for name, c := range map[string]struct {
		steps []step
		want  int
	}{
		"none":                          {nil, 0},
		"one":                           {[]step{ask(0), reply(0)}, 1},
		"one in parts":                  {[]step{ask(0), ask(0), reply(0), reply(0)}, 1},
		"one after the other":           {[]step{ask(0), reply(0), ask(1), reply(1), ask(0), reply(0)}, 3},
		"two servers at once":           {[]step{ask(0), ask(1), reply(0), reply(1)}, 1},
		"two chains at once":            {[]step{ask(0), ask(1), reply(0), ask(0), reply(1), ask(1), reply(0), reply(1)}, 2},
		"a slow one and a chain of two": {[]step{ask(1), ask(0), reply(0), ask(0), reply(0), reply(1)}, 2},
		"no reply yet":                  {[]step{ask(0), reply(0), ask(0)}, 1},
	} {
		var count trips
		var numbers [2]int64
		numbers[1] = count.next() // still under way when the count begins
		count.begin()
		count.replied(numbers[1], time.Now())
		for _, s := range c.steps {
			if s.reply {
				count.replied(numbers[s.connection], time.Now())
			} else {
				numbers[s.connection] = count.next()
			}
		}
		if got := count.until(time.Now()); got != c.want {
			t.Errorf("%s: %d trips, want %d", name, got, c.want)
		}
	}
}

func TestTrips_EndWithTheAnswer(t *testing.T) {
	t.Parallel()
	var count trips
	answered := time.Now()
	count.begin()
	count.replied(count.next(), answered)
	count.replied(count.next(), answered.Add(time.Millisecond))
	if got := count.until(answered); got != 1 {
		t.Errorf("%d trips before the answer, want 1", got)
	}
}

// through connects to a server over a proxy.
func through(t *testing.T, delay time.Duration, server net.Listener) net.Conn {
	t.Helper()
	p, err := newProxy(delay)
	if err != nil {
		t.Fatal(err)
	}
	address, err := p.open(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A server that echoes. Many chunks are under way at once, and arrive whole, in order and not before their time.
func TestProxy_DelaysAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const delay = 20 * time.Millisecond
	var lc net.ListenConfig
	server, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	conn := through(t, delay, server)
	defer conn.Close()
	sent := bytes.Repeat([]byte("0123456789"), 1<<15)
	begin := time.Now()
	go func() {
		for part := range len(sent) / 1000 {
			if _, err := conn.Write(sent[part*1000 : (part+1)*1000]); err != nil {
				return
			}
		}
	}()
	got := make([]byte, len(sent)/1000*1000)
	if _, err := io.ReadFull(conn, got[:1]); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 2*delay {
		t.Errorf("the first byte came back after %v, want at least %v", took, 2*delay)
	}
	if _, err := io.ReadFull(conn, got[1:]); err != nil || !bytes.Equal(got, sent[:len(got)]) {
		t.Errorf("what came back differs from what was sent: %v", err)
	}
}

func TestProxy_PassesOnTheEnd(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	server, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("last words"))
			conn.Close()
		}
	}()
	conn := through(t, time.Millisecond, server)
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "last words" {
		t.Errorf("read %q, %v, want all until the server closed", got, err)
	}
}

// The protocol of the process.
func TestProxy_AnswersOverItsInput(t *testing.T) {
	t.Parallel()
	var in, out bytes.Buffer
	questions := []proxyRequest{{Delay: time.Millisecond}, {Target: "127.0.0.1:1"}, {Begin: true}, {Until: time.Now()}}
	for _, q := range questions {
		if err := json.NewEncoder(&in).Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := serveProxy(context.Background(), json.NewDecoder(&in), json.NewEncoder(&out)); err != nil {
		t.Fatal(err)
	}
	answers := json.NewDecoder(&out)
	for i := range questions {
		var a proxyAnswer
		if err := answers.Decode(&a); err != nil || a.Error != "" || a.Trips != 0 || (a.Address != "") != (questions[i].Target != "") {
			t.Errorf("answer to %+v = %+v, %v", questions[i], a, err)
		}
	}
}
