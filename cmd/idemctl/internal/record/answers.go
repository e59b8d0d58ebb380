package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/answer"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// mostCached bounds the answers in memory, in bytes of their files. Others are read again.
const mostCached = 32 << 20

// answers are the answers that a sheet names. They are below its folder, so that a sheet from
// elsewhere cannot make idemctl store other files of the operator.
type answers struct {
	root      *os.Root
	transport operate.Transport
	allow     []string

	mu     sync.Mutex
	cache  map[string]cachedAnswer // by path
	cached int
}

type cachedAnswer struct {
	*answer.Answer
	content string
}

// read reads and parses a file.
func (a *answers) read(name string) (c cachedAnswer, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.cache[name]; ok {
		return c, nil
	}
	if !filepath.IsLocal(name) {
		return c, errors.New("it is not below the folder of the CSV file")
	}
	info, err := a.root.Stat(name)
	switch {
	case err != nil:
		return c, err
	case !info.Mode().IsRegular():
		return c, errors.New("it is not a regular file")
	case info.Size() > answer.MaxBytes:
		return c, fmt.Errorf("it has more than %d bytes", answer.MaxBytes)
	}
	f, err := a.root.Open(name)
	if err != nil {
		return c, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, answer.MaxBytes+1))
	if err != nil {
		return c, err
	}
	if c.Answer, err = answer.Parse(data); err != nil {
		return c, err
	}
	sum := sha256.Sum256(data)
	c.content = hex.EncodeToString(sum[:])
	if a.cached+len(data) <= mostCached {
		a.cached += len(data)
		a.cache[name] = c
	}
	return c, nil
}

// check reads the answer of a line.
func (a *answers) check(l *line) error {
	c, err := a.read(l.answer)
	if err == nil {
		l.content = c.content
		_, err = c.Response(l.doubt.Route, a.transport, a.allow)
	}
	if err != nil {
		return fmt.Errorf("answer %q: %w", l.answer, err)
	}
	return nil
}

// of is the answer of a line for repeats, on a route.
func (a *answers) of(l *line, route string) (*idem.Response, error) {
	c, err := a.read(l.answer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("answer %q: %w", l.answer, err)
	case c.content != l.content:
		return nil, fmt.Errorf("answer %q has changed since it was checked", l.answer)
	}
	resp, err := c.Response(route, a.transport, a.allow)
	if err != nil {
		return nil, fmt.Errorf("answer %q: %w", l.answer, err)
	}
	return &resp, nil
}
