package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"
)

//go:embed lua/swap.lua
var swapLua string

// An incarnation is a UUID. One that was made to accept a loss has, after a
// slash, the UUID of the one that was lost:
//
//	3b8e…            the first
//	91f0…/3b8e…      made where 3b8e… had to be and nothing was
//
// So whoever finds it, where 3b8e… has to be still, knows that somebody began to
// accept the loss and did not come to the end, and can go on with it. Any other
// one that is not known was made for something else: a Redis of others, or the
// one of before.
const lineage = "/"

// successor returns a new incarnation to follow one; "" for the first.
func successor(of string) string {
	if of == "" {
		return newUUID()
	}
	uuid, _, _ := strings.Cut(of, lineage)
	return newUUID() + lineage + uuid
}

// follows reports whether an incarnation was made to follow another one.
func follows(incarnation, of string) bool {
	_, before, accepted := strings.Cut(incarnation, lineage)
	uuid, _, _ := strings.Cut(of, lineage)
	return accepted && before == uuid
}

// foreign reports whether an incarnation was not made for this store.
func foreign(have, want string) bool {
	return have != "" && have != want && !follows(have, want)
}

func anyForeign(have, want *set) bool {
	for i := range have {
		if foreign(have[i], want[i]) {
			return true
		}
	}
	return false
}

// fill gives an incarnation to shards that have none, to follow what had to be
// there; nil: the first. It returns all of them, those that somebody else gave in
// the meantime included, and which it made. Whatever is wiped meanwhile is given
// one again. To replace is to do so with foreign ones too.
func (n *incarnations) fill(ctx context.Context, after *set, replace bool) (have, made *set, err error) {
	if after == nil {
		after = new(set)
	}
	made = new(set)
	for range tries {
		have, err := n.read(ctx)
		if err != nil {
			return nil, nil, err
		}
		pipe := n.client.Pipeline()
		for i, incarnation := range have {
			switch key := n.keys.incarnation(i); {
			case incarnation == "":
				made[i] = successor(after[i])
				pipe.SetNX(ctx, key, made[i], 0)
			case replace && foreign(incarnation, after[i]):
				made[i] = successor(after[i])
				pipe.Eval(ctx, swapLua, []string{key}, incarnation, made[i])
			}
		}
		if pipe.Len() == 0 {
			return have, made, nil
		}
		if _, err = pipe.Exec(ctx); err != nil {
			return nil, nil, n.unavailable(ctx, err)
		}
	}
	return nil, nil, unavailable("incarnation", fmt.Errorf("lost %d times in a row", tries))
}

// forget removes what fill made and what follows nothing any more, since somebody
// else has accepted the loss meanwhile, and Redis lost it again. Nobody could take
// it over: it would have to wait for an operator.
func (n *incarnations) forget(ctx context.Context, made, want *set) error {
	pipe := n.client.Pipeline()
	for i, m := range made {
		if m != "" && m != want[i] && !follows(m, want[i]) {
			pipe.Eval(ctx, swapLua, []string{n.keys.incarnation(i)}, m, "")
		}
	}
	if pipe.Len() == 0 {
		return nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return n.unavailable(ctx, err)
	}
	return nil
}

// errForeign says that a store may not accept a loss by itself.
var errForeign = errors.New("tokenstore/redis: the server has incarnations that the witness does not know; " +
	"is it another one? an operator has to accept the loss")

// accept makes what Redis holds what has to be, with new incarnations where it
// holds none, and returns how many shards that changed. Repeated after a failure
// it goes on where it stopped. Foreign incarnations are replaced too, lest what
// had to be once has to be again: somebody else's, made to follow that, would be
// in its right again. Without a witness they are taken over: nobody could tell
// the other processes of new ones.
func (n *incarnations) accept(ctx context.Context) (int, error) {
	if !n.take(ctx) {
		return 0, unavailable("accept", ctx.Err())
	}
	defer n.give()
	return n.acceptNow(ctx, false)
}

// acceptNow is accept for whoever has the turn. Alone it takes nothing over but
// what was made to accept this very loss: where a single shard has something
// else, it changes nothing.
func (n *incarnations) acceptNow(ctx context.Context, alone bool) (int, error) {
	var refused error
	for range tries {
		want, version, err := n.load(ctx)
		if err != nil {
			return 0, err
		}
		if want == nil {
			want = n.want.Load()
		}
		if alone {
			if refused = n.check(ctx, want); errors.Is(refused, errForeign) {
				n.settleDown(ctx)
				continue
			}
			if refused != nil {
				return 0, refused
			}
		}
		have, made, err := n.fill(ctx, want, !alone && n.witness != nil)
		if err != nil {
			return 0, err
		}
		if alone && anyForeign(have, want) {
			continue // since it was checked
		}
		lost := differing(have, want)
		if n.witness == nil || lost == 0 && version != 0 {
			n.want.Store(have)
			return lost, nil
		}
		if err = n.store(ctx, have, version); err == nil {
			n.want.Store(have)
			return lost, nil
		}
		won, now, lerr := n.load(ctx)
		if lerr != nil || now == version {
			return 0, err // not a race that somebody else won
		}
		if won != nil {
			if err := n.forget(ctx, made, won); err != nil {
				return 0, err
			}
		}
	}
	if refused != nil {
		return 0, refused
	}
	return 0, fmt.Errorf("tokenstore/redis: witness: changed %d times in a row", tries)
}

// check returns errForeign where a shard has what nobody made for this store.
func (n *incarnations) check(ctx context.Context, want *set) error {
	have, err := n.read(ctx)
	if err == nil && anyForeign(have, want) {
		err = errForeign
	}
	return err
}

// settle is how long somebody who lost a race gets to forget what it made.
const settle = 25 * time.Millisecond

// settleDown waits for that.
func (n *incarnations) settleDown(ctx context.Context) {
	t := time.NewTimer(settle)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails (crypto/rand, since Go 1.24)
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}
