package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// respReader reads one RESP2 or RESP3 value, keeping its bytes for the proxy and
// its scalars, flattened, for redisDo.
type respReader struct {
	r    *bufio.Reader
	raw  []byte
	vals []string
	fail error // the first error reply found
}

// value reads one value with everything nested in it.
func (p *respReader) value() error {
	line, err := p.r.ReadBytes('\n')
	p.raw = append(p.raw, line...)
	if err != nil {
		return err
	}
	text := strings.TrimRight(string(line), "\r\n")
	if text == "" {
		return nil
	}
	kind, rest := text[0], text[1:]
	switch kind {
	case '$', '=', '!':
		return p.bulk(kind, rest)
	case '*', '~', '>':
		return p.nested(rest, 1, 0)
	case '%':
		return p.nested(rest, 2, 0)
	case '|': // attributes come before the value that they describe
		return p.nested(rest, 2, 1)
	case '-':
		p.fail = errors.Join(p.fail, errors.New(rest))
	default:
		p.vals = append(p.vals, rest)
	}
	return nil
}

func (p *respReader) bulk(kind byte, size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return fmt.Errorf("bulk length %q", size)
	}
	if n < 0 {
		p.vals = append(p.vals, "")
		return nil
	}
	body := make([]byte, n+2)
	if _, err := io.ReadFull(p.r, body); err != nil {
		return err
	}
	p.raw = append(p.raw, body...)
	p.vals = append(p.vals, string(body[:n]))
	if kind == '!' {
		p.fail = errors.Join(p.fail, errors.New(string(body[:n])))
	}
	return nil
}

func (p *respReader) nested(count string, each, extra int) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("element count %q", count)
	}
	for range n*each + extra {
		if err := p.value(); err != nil {
			return err
		}
	}
	return nil
}

// redisDo sends one command over a connection of its own and returns the
// scalars of the answer in order. An error reply is returned as an error.
func redisDo(addr string, args ...string) ([]string, error) {
	conn, err := net.DialTimeout("tcp", addr, askTimeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(askTimeout))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return nil, err
	}
	p := respReader{r: bufio.NewReader(conn)}
	if err := p.value(); err != nil {
		return nil, err
	}
	if p.fail != nil {
		return nil, fmt.Errorf("%s: %w", args[0], p.fail)
	}
	return p.vals, nil
}

// redisField returns one field of an INFO-like answer ("name:value" lines).
func redisField(addr, field string, args ...string) (string, error) {
	vals, err := redisDo(addr, args...)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(strings.Join(vals, "\n")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return v, nil
		}
	}
	return "", fmt.Errorf("%s of %s has no field %s", strings.Join(args, " "), addr, field)
}
