// Package crashpgx makes points of the statements of pgx, with or without a pool. A batch or a pipeline is one point for each
// time that it waits for the server.
//
//	cfg, err := pgxpool.ParseConfig(url)
//	crashpgx.Wrap(env, cfg.ConnConfig)
//	pool, err := pgxpool.NewWithConfig(ctx, cfg)
package crashpgx

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// Wrap has the connections of a configuration tell their statements. A nil env changes nothing.
func Wrap(env *crashtest.Env, cfg *pgx.ConnConfig) {
	if env == nil {
		return
	}
	next := cfg.AfterNetConnect
	cfg.AfterNetConnect = func(ctx context.Context, cfg *pgconn.Config, c net.Conn) (net.Conn, error) {
		if next != nil {
			var err error
			if c, err = next(ctx, cfg, c); err != nil {
				return nil, err
			}
		}
		return env.Conn(c, (&session{prepared: map[string]string{}}).nameOf), nil
	}
}

// session knows the statements that a connection has prepared.
type session struct {
	prepared map[string]string // SQL by name
}

// nameOf names the statements of a write. A write that only prepares has none.
func (s *session) nameOf(written []byte) string {
	var names []string
	for len(written) >= 5 && written[0] != 0 { // the first message of a connection has no kind
		size := 1 + int(binary.BigEndian.Uint32(written[1:]))
		if size < 5 || size > len(written) {
			break
		}
		body := written[5:size]
		switch written[0] {
		case 'Q':
			names = append(names, crashtest.StatementName(text(&body)))
		case 'P':
			name := text(&body)
			s.prepared[name] = text(&body)
		case 'B':
			text(&body) // the portal
			names = append(names, crashtest.StatementName(s.prepared[text(&body)]))
		}
		written = written[size:]
	}
	return strings.Join(names, "; ")
}

// text reads a string that ends with a zero.
func text(b *[]byte) string {
	s, rest, _ := bytes.Cut(*b, []byte{0})
	*b = rest
	return string(s)
}
