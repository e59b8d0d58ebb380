package redisstore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The short ways of begin and settle must do the same as the long ways behind them. The
// tests run a script with its short way and without it, on the same state and at the same
// time. They compare the replies and all keys. They also run the short way alone, to see
// whether it decides. If it does not decide, it must not write. The tests ask for expiries
// with PEXPIRETIME, so the server is Redis 7 or miniredis.

// The cases are the common one, which the short way has to decide, each case with one part that is something else, and
// cases with some such parts at random.
func TestShortWaysWriteWhatTheLongWaysWrite(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]func(*testing.T) string{
		"Redis": func(t *testing.T) string { return testserver.SharedRedis(t) }, "miniredis": func(t *testing.T) string { return "redis://" + startMini(t).Addr() },
	} {
		cases := 1_000
		if name == "miniredis" { // its Lua is slow under the race detector
			cases = 50
		}
		for _, script := range []string{"begin", "settle"} {
			t.Run(script+" on "+name, func(t *testing.T) {
				t.Parallel()
				w := newWays(t, connect(t, addr(t)), script)
				seed := uint64(time.Now().UnixNano())
				g := &caseGenerator{rng: rand.New(rand.NewPCG(seed, 3)), base: w.now}
				tried, decided := 0, 0
				try := func() (short bool) {
					c := g.next(script)
					short, difference := w.compare(c)
					if difference != "" {
						t.Fatalf("seed %d, case %d: %s\n%s", seed, tried, c, difference)
					}
					if tried++; short {
						decided++
					}
					return short
				}
				g.only = -1
				if !try() {
					t.Error("the short way did not decide the common case")
				}
				parts := g.asked
				for g.only = 1; g.only <= parts; g.only++ {
					for g.turn = range 5 { // as many others as a part has
						try()
					}
				}
				for g.only = 0; tried < cases; {
					try()
				}
				if decided == tried {
					t.Error("the short way decided all cases")
				}
			})
		}
	}
}

// ways are a script in three forms: short way and long way, the long way alone, and the
// short way alone, which answers "undecided" if it does not decide.
type ways struct {
	t                *testing.T
	client           goredis.UniversalClient
	prefix           string
	now              time.Time // of the scripts
	both, long, only *goredis.Script
}

const undecided = "undecided"

// newWays stops the clock of a script an hour from now, so that Redis does not expire what
// the script writes.
func newWays(t *testing.T, client goredis.UniversalClient, script string) *ways {
	t.Helper()
	files := map[string][]string{"begin": beginFiles, "settle": settleFiles}[script]
	now := time.Now().Add(time.Hour).Truncate(time.Second).Add(time.Duration(rand.IntN(1e6)) * time.Microsecond)
	texts := make([]string, len(files))
	for i, name := range files {
		data, err := lua.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(data)
	}
	const asks = "redis.call('TIME')"
	if strings.Count(strings.Join(texts, ""), asks) != 1 || !strings.Contains(texts[0], asks) {
		t.Fatalf("%v do not ask for the time once, in %s", files, files[0])
	}
	clock := strings.Replace(texts[0], asks, fmt.Sprintf("{'%d', '%d'}", now.Unix(), now.Nanosecond()/1000), 1)
	short, long := texts[1], strings.Join(texts[2:], "")
	w := &ways{
		t: t, client: client, prefix: freshPrefix(t), now: now,
		both: goredis.NewScript(clock + short + long),
		long: goredis.NewScript(clock + long),
		only: goredis.NewScript(clock + short + "return {'" + undecided + "'}"),
	}
	for _, script := range []*goredis.Script{w.both, w.long, w.only} {
		if err := script.Load(t.Context(), client).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// compare reports whether the short way decides a case, and what the ways do differently.
func (w *ways) compare(c *scriptCase) (short bool, difference string) {
	w.t.Helper()
	_, before := w.run(nil, c)
	long, afterLong := w.run(w.long, c)
	both, afterBoth := w.run(w.both, c)
	only, afterOnly := w.run(w.only, c)
	short = only != fmt.Sprintf("%q", []any{undecided})
	switch {
	case both != long:
		difference = fmt.Sprintf("with the short way the reply is\n%s\nwithout it\n%s", both, long)
	case afterBoth != afterLong:
		difference = fmt.Sprintf("the short way leaves\n%s\nthe long way leaves\n%s", afterBoth, afterLong)
	case !short && afterOnly != before:
		difference = fmt.Sprintf("the short way did not decide and wrote\n%s\nto\n%s", afterOnly, before)
	}
	return short, difference
}

// run makes the state of a case, and runs a script on it. It returns the reply and all keys
// afterwards. No script changes nothing. Lua's errors name lines, so all errors are alike.
func (w *ways) run(script *goredis.Script, c *scriptCase) (reply, after string) {
	w.t.Helper()
	ctx, keys := w.t.Context(), make([]string, 7)
	for i, name := range []string{"record", "open", "incarnation", "record:body", "clock", "canary", "decisions"} {
		keys[i] = w.prefix + ":{00}:" + name
	}
	pipe := w.client.Pipeline()
	pipe.Del(ctx, keys...)
	for i, value := range []string{c.record, "", c.incarnation, c.body, c.evidence, c.canary} {
		if value == foreignType {
			pipe.RPush(ctx, keys[i], "item")
		} else if i != 1 && value != missing {
			pipe.Set(ctx, keys[i], value, 0)
		}
	}
	pipe.ZAdd(ctx, keys[1], goredis.Z{Score: 1, Member: "other"})
	if c.indexed {
		pipe.ZAdd(ctx, keys[1], goredis.Z{Score: 2, Member: member})
	}
	pipe.RPush(ctx, keys[6], "earlier")
	answer := goredis.NewCmd(ctx)
	if script != nil {
		named := keys[:6]
		if c.audited {
			named = keys
		}
		answer = script.EvalSha(ctx, pipe, named, c.args...)
	}
	state := []goredis.Cmder{
		pipe.Get(ctx, keys[0]), pipe.Do(ctx, "PEXPIRETIME", keys[0]), pipe.ZRangeWithScores(ctx, keys[1], 0, -1),
		pipe.Get(ctx, keys[2]), pipe.Get(ctx, keys[3]), pipe.Do(ctx, "PEXPIRETIME", keys[3]), pipe.LRange(ctx, keys[6], 0, -1),
		pipe.Get(ctx, keys[4]), pipe.Get(ctx, keys[5]), pipe.Do(ctx, "PEXPIRETIME", keys[5]),
	}
	_, _ = pipe.Exec(ctx) // a missing key is an error
	var texts []string
	for _, cmd := range state {
		if err := cmd.Err(); err != nil && err != goredis.Nil && !goredis.HasErrorPrefix(err, "WRONGTYPE") { //nolint:errorlint // go-redis does not wrap Nil
			w.t.Fatal(err)
		}
		texts = append(texts, fmt.Sprintf("%q", cmd.String()))
	}
	if err := answer.Err(); err != nil {
		if goredis.HasErrorPrefix(err, "NOSCRIPT") {
			w.t.Fatal(err)
		}
		return "an error", strings.Join(texts, "\n")
	}
	return fmt.Sprintf("%q", answer.Val()), strings.Join(texts, "\n")
}

// scriptCase is the state of a shard and a call.
type scriptCase struct {
	record, incarnation, body string // or missing
	evidence, canary          string // or missing
	indexed                   bool   // the key is in the open set
	audited                   bool   // the decision goes to the shard's list
	args                      []any
}

// missing stands for no such key.
const missing = "\x00missing"

// foreignType stands for a list, which another program has put there.
const foreignType = "\x00list"

const member = "2a"

// packed is an attempt and after it the ID of a settlement.
const packed = "\x00\x00\x00\x01" + "fence--1" + "nonce----------1" + "settlement-----1"

func (c *scriptCase) String() string {
	return fmt.Sprintf("record %q, incarnation %q, body %q, evidence %q, canary %q, indexed %v, audited %v, args %q",
		c.record, c.incarnation, c.body, c.evidence, c.canary, c.indexed, c.audited, c.args)
}

// caseGenerator makes cases in which a part is rarely something else than in the common case.
type caseGenerator struct {
	rng   *rand.Rand
	base  time.Time
	only  int // the number of the part that is something else; -1 for none, and 0 for parts at random
	turn  int // which of the others that part is
	asked int // parts of the last case
}

// rarely is true in one of n cases, or for the chosen part.
func (g *caseGenerator) rarely(n int) bool {
	g.asked++
	if g.only != 0 {
		return g.asked == g.only
	}
	return g.rng.IntN(n) == 0
}

// one is one of n others.
func (g *caseGenerator) one(n int) int {
	if g.only != 0 {
		return g.turn % n
	}
	return g.rng.IntN(n)
}

// pick returns common, or rarely one of the others.
func (g *caseGenerator) pick(common string, others ...string) string {
	if g.rarely(8) {
		return others[g.one(len(others))]
	}
	return common
}

func (g *caseGenerator) next(script string) *scriptCase {
	const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	g.asked = 0
	attempts := []string{packed[:28], "\x00\x00\x00\x02" + packed[4:28], "\x00\x00\x00\x01fence--0" + packed[12:28], "\x00\x00\x00\x01fence--2nonce----------2"}
	fingerprints := []string{"\x01" + zeros + "fingerprint----1", "\x01" + zeros + "fingerprint----2"}
	resultTTL, keyTTL := g.pick("3600000", "0", "1"), g.pick("86400000", "0", "1")
	ttls := packTTLs(inMillis(resultTTL), inMillis(keyTTL))
	c := &scriptCase{
		incarnation: g.pick("incarnation", "another", missing, ""),
		body:        g.pick(missing, "", "body"), indexed: script == "settle" != g.rarely(8), audited: g.rarely(16),
		record: g.record(script, attempts, fingerprints, ttls), canary: g.pick("", missing),
	}
	c.evidence = g.evidence()
	now := g.wall() + g.pick(g.ms(g.base, -2000), g.ms(g.base, -3600_000), packTime(time.Time{}))
	attempt := g.pick(attempts[0], attempts[1:]...)
	domain, route := g.pick("domain", "", "other domain"), g.pick("POST /pay", "", strings.Repeat("r", 255))
	if script == "begin" {
		c.args = []any{g.pick("incarnation", "", "another"), member, g.pick("\x00", "\x01"), attempt[4:],
			domain, route, g.pick(fingerprints[0], fingerprints[1]), g.pick("", attempts...), g.pick("", "domain", "other domain"), ttls, now}
		return c
	}
	state, keyAtLeast := g.pick("\x03", "\x04", "\x05"), millis(max(inMillis(resultTTL), inMillis(keyTTL)))
	if state != "\x03" { // a completed record keeps the key for at least as long as its result
		keyAtLeast = g.pick(keyAtLeast, "0")
	}
	c.args = []any{member, attempt, domain, g.pick(packed[28:], "settlement-----2"), state,
		g.pick("response", "", "\xff\x00sealed", strings.Repeat("x", 2000)), g.pick("\x01", "\x00", "\x02"),
		resultTTL, keyAtLeast, g.pick("", "operator"), g.pick("", "because"),
		g.pick("trusted", "untrusted", ""), g.pick("\x00", "\x01"), route, g.pick(fingerprints[0], fingerprints[1]), g.time(-1000),
		g.pick("", "\x04"+attempts[0], "\x02"+attempts[3]), g.pick("", "domain", "other domain"), ttls, now, "3"}
	return c
}

// ms is a packed time, so many ms after another one.
func (g *caseGenerator) ms(t time.Time, ms int64) string {
	return packTime(t.Add(time.Duration(ms) * time.Millisecond))
}

// wall is the wall clock of the caller, commonly a second behind the server's.
func (g *caseGenerator) wall() string {
	return g.pick(g.ms(g.base, -1000), g.ms(g.base, -3601_000), g.ms(g.base, 3600_000))
}

// evidence is what the shard has of its clock, commonly written a moment ago.
func (g *caseGenerator) evidence() string {
	highest := []int64{-500, 0, 1, 500, 120_000, 40 * 86400_000, -9_999, -10_000, -10_001, -70_000, -700_000}
	at := highest[0]
	if g.rarely(4) {
		at = highest[(1+2*g.one(len(highest)))%len(highest)]
	}
	return g.pick(g.ms(g.base, at)+g.ms(g.base, at-1000)+g.ms(g.base, at+600_000), missing)
}

// record is a packed record, or rarely a damaged one.
func (g *caseGenerator) record(script string, attempts, fingerprints []string, ttls string) string {
	if there := script == "settle" != g.rarely(4); !there {
		return missing
	}
	if g.rarely(40) {
		return foreignType
	}
	domain, route := g.pick("domain", "", "other domain"), g.pick("POST /pay", "", "GET /")
	by, reason := g.pick("", "operator"), g.pick("", "because")
	zeros := strings.Repeat("\x00", 16)
	r := g.pick("\x02", "\x01", "\x03") + g.pick("\x02", "\x01", "\x03", "\x04", "\x05", "\x06") +
		g.pick("\x00", "\x01", "\x02") + g.pick("\x00", "\x01", "\x02", "\x03") + g.pick(attempts[0], attempts[1:]...) +
		g.pick(zeros, packed[28:]) + g.pick(fingerprints[0], fingerprints[1]) +
		g.time(-5000) + g.time(-5000) + g.time(0) + g.pick(ttls, packTTLs(0, 0), packTTLs(2*time.Hour, 48*time.Hour), packTTLs(time.Minute, time.Hour), g.time(0)+g.time(0)) + g.time(0) +
		string([]byte{byte(len(domain)), byte(len(route)), byte(len(by)), 0, byte(len(reason))}) + g.pick("\x00", "\x01") +
		domain + route + by + reason + g.pick("", "rest", packed)
	if !g.rarely(6) {
		return r
	}
	damaged := []byte(r)
	switch g.one(4) {
	case 0:
		return r[:g.rng.IntN(len(r))]
	case 1: // the end of the texts
		return r[:len(r)-1-g.rng.IntN(9)]
	case 2:
		damaged[g.rng.IntN(len(r))] = byte(g.rng.IntN(256))
	default:
		damaged = slices.Insert(damaged, g.rng.IntN(len(r)), byte(g.rng.IntN(256)))
	}
	return string(damaged)
}

// inMillis is a number of ms.
func inMillis(s string) time.Duration {
	n, _ := strconv.Atoi(s)
	return time.Duration(n) * time.Millisecond
}

// time is a packed time, commonly so many ms from now, and 0 is never.
func (g *caseGenerator) time(common int64) string {
	pack := func(ms int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(ms))[2:]) }
	now := g.base.UnixMilli()
	usual := pack(0)
	if common != 0 {
		usual = pack(now + common)
	}
	return g.pick(usual, pack(0), pack(now-1), pack(now), pack(now+1), pack(now+3600_000))
}
