package redispipe

import (
	"context"
	"slices"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Large is the size in bytes from which a call belongs into a [Bulk].
const Large = 16 << 10

const (
	// maxBulkBytes bounds what the large calls to one server carry at a time. A larger call goes alone.
	maxBulkBytes = 256 << 10
	// maxBulkCalls bounds the large calls to one server at a time. They take half of the pool at most.
	maxBulkCalls = 8
)

// Bulk sends large calls, few at a time and in the order in which they came. Each has a connection of
// its own. If all were sent at once, they would take the connections and the link from the small calls. On a
// slow link each of them would also get so small a part of it that none is done in time. A Bulk is safe for
// concurrent use. Make it with [NewBulk].
type Bulk struct {
	client goredis.UniversalClient
	least  int // bytes that a call counts for at least

	mu    sync.Mutex
	gates map[string]*gate // by server
}

// NewBulk returns a Bulk over client.
func NewBulk(client goredis.UniversalClient) *Bulk {
	return &Bulk{client: client, least: maxBulkBytes / max(1, min(maxBulkCalls, poolOf(client)/2)), gates: make(map[string]*gate)}
}

// poolOf is the number of connections that client may have to one server.
func poolOf(client goredis.UniversalClient) int {
	switch c := client.(type) {
	case *goredis.Client:
		return c.Options().PoolSize
	case *goredis.ClusterClient:
		return c.Options().PoolSize
	}
	return maxBulkCalls
}

// Write sends a command of size bytes and waits for its answer, which the command has. server names the
// server that gets it, so that no call waits for another server. Write returns an error, and has sent
// nothing, if ctx ends while the call waits for its turn.
func (b *Bulk) Write(ctx context.Context, server string, size int, cmd goredis.Cmder) error {
	g := b.gate(server)
	leave, err := g.enter(ctx, b.weight(size))
	if err != nil {
		return err
	}
	defer leave()
	redisserver.Process(ctx, b.client, cmd)
	return nil
}

// Read sends commands in one round trip, as Write does. The size of the answer is known afterwards only, so the
// call counts for as much as the last ones had. answered returns the size.
func (b *Bulk) Read(ctx context.Context, server string, answered func() int, cmds ...goredis.Cmder) error {
	g := b.gate(server)
	leave, err := g.enter(ctx, b.weight(g.expected()))
	if err != nil {
		return err
	}
	defer leave()
	pipe := b.client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...)
	redisserver.Exec(ctx, pipe)
	if ctx.Err() != nil { // perhaps it was too much for the link
		g.saw(maxBulkBytes)
	} else {
		g.saw(answered())
	}
	return nil
}

func (b *Bulk) weight(size int) int { return min(max(size, b.least), maxBulkBytes) }

func (b *Bulk) gate(server string) *gate {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.gates[server]
	if g == nil {
		g = new(gate)
		b.gates[server] = g
	}
	return g
}

// gate lets large calls to one server pass.
type gate struct {
	mu      sync.Mutex
	used    int // bytes of the calls under way
	recent  int // bytes of recent answers
	waiting []*entrant
}

// entrant is a call that waits for its turn.
type entrant struct {
	weight int
	in     chan struct{} // closed when it may go
}

// enter waits for the turn of a call. The caller calls leave when it is over.
func (g *gate) enter(ctx context.Context, weight int) (leave func(), err error) {
	g.mu.Lock()
	e := &entrant{weight, make(chan struct{})}
	g.waiting = append(g.waiting, e)
	g.admit()
	g.mu.Unlock()
	select {
	case <-e.in:
		return func() { g.leave(e) }, nil
	case <-ctx.Done():
	}
	g.leave(e)
	return nil, context.Cause(ctx)
}

// leave ends the turn of a call, or its wait.
func (g *gate) leave(e *entrant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, e); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	} else {
		g.used -= e.weight
	}
	g.admit()
}

// admit lets calls go, in their order. Needs mu.
func (g *gate) admit() {
	for len(g.waiting) > 0 && g.used+g.waiting[0].weight <= maxBulkBytes {
		g.used += g.waiting[0].weight
		close(g.waiting[0].in)
		g.waiting = g.waiting[1:]
	}
}

// saw notes the size of an answer. A larger one counts at once, and is forgotten step by step.
func (g *gate) saw(size int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recent = max(size, g.recent*7/8)
}

func (g *gate) expected() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.recent
}
