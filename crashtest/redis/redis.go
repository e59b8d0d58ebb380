// Package crashredis makes points of the commands of a go-redis client. A pipeline is one point.
//
//	opts, err := redis.ParseURL(url)
//	client := redis.NewClient(crashredis.Options(env, opts))
//
// A client of a cluster or of Sentinel has a Dialer in its options too, see [Dialer].
//
// go-redis sends a command again whose connection broke, up to MaxRetries. So a command whose answer is lost may run twice, here as
// in production.
package crashredis

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// Options returns a copy of opts with a Dialer whose connections are wrapped. A nil env changes nothing.
func Options(env *crashtest.Env, opts *redis.Options) *redis.Options {
	if env == nil {
		return opts
	}
	wrapped := *opts
	if wrapped.Dialer == nil {
		wrapped.Dialer = redis.NewDialer(&wrapped)
	}
	wrapped.Dialer = Dialer(env, wrapped.Dialer)
	return &wrapped
}

// Dialer wraps the connections of a Dialer, which is also a field of the options of other clients.
func Dialer(env *crashtest.Env, dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return env.Conn(c, nameOf), nil
	}
}

// handshake are commands that go-redis sends by itself on a new or idle connection.
var handshake = map[string]bool{"HELLO": true, "AUTH": true, "CLIENT": true, "SELECT": true, "PING": true, "READONLY": true, "CLUSTER": true, "COMMAND": true}

// nameOf names the commands of a write, such as "SET pay", with the letters that the key begins with.
func nameOf(written []byte) string {
	var names []string
	for len(written) > 0 {
		args, rest, ok := parse(written)
		if !ok {
			break
		}
		written = rest
		name := strings.ToUpper(args[0])
		if handshake[name] {
			continue
		}
		if len(args) > 1 {
			name += " " + begin(args[1])
		}
		names = append(names, strings.TrimSpace(name))
	}
	return strings.Join(names, ", ")
}

// begin is the start of a key, or of the hash of a script.
func begin(key string) string {
	if len(key) == 40 && strings.Trim(key, "0123456789abcdef") == "" {
		return key[:8]
	}
	end := strings.IndexFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '_' && r != '-'
	})
	if end < 0 {
		return key
	}
	return key[:end]
}

// parse reads one command, an array of strings.
func parse(b []byte) (args []string, rest []byte, ok bool) {
	n, b, ok := number(b, '*')
	if !ok || n < 1 {
		return nil, nil, false
	}
	for range n {
		var size int
		if size, b, ok = number(b, '$'); !ok || size < 0 || len(b) < size+2 {
			return nil, nil, false
		}
		args, b = append(args, string(b[:size])), b[size+2:]
	}
	return args, b, true
}

func number(b []byte, kind byte) (n int, rest []byte, ok bool) {
	line, rest, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok || len(line) < 2 || line[0] != kind {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(line[1:]))
	return n, rest, err == nil
}
