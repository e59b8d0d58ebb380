// Package crashredis makes points of the commands of a go-redis client. A pipeline is one point.
//
//	client := crashredis.Wrap(env, redis.NewClient(opts))
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

// Wrap wraps the connections of a client that has not been used yet, and returns it. A nil env changes nothing.
func Wrap[C redis.UniversalClient](env *crashtest.Env, client C) C {
	if env == nil {
		return client
	}
	if cluster, ok := any(client).(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(dials{env}) })
		return client
	}
	client.AddHook(dials{env})
	return client
}

// dials is a hook that wraps new connections.
type dials struct{ env *crashtest.Env }

func (d dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return d.env.Conn(c, nameOf), nil
	}
}

func (dials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (dials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
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
