package idemctl

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// resolve runs record resolve for a key of the merchant demo.
func resolve(s *kit.System, key string, args ...string) (stdout string, code int) {
	s.T.Helper()
	return s.OutputOf(append([]string{"--json", "record", "resolve", "--scope", "merchant_demo", key, "--by", "operator"}, args...)...)
}

// resolveOnceUnlocked repeats record resolve while the lock of the dead is not gone.
func resolveOnceUnlocked(s *kit.System, key string, args ...string) {
	s.T.Helper()
	kit.Eventually(s.T, "decision on "+key, func() error {
		switch out, code := resolve(s, key, args...); code {
		case 0:
			return nil
		case 75:
			return kit.ErrNotYet
		default:
			s.T.Fatalf("record resolve %q = %q, exit code %d, want 0 or 75", args, out, code)
			return nil
		}
	})
}

// record is the record of a key, asked for by its ID.
func record(t *testing.T, s *kit.System, key string) kit.RecordLine {
	t.Helper()
	out, code := s.OutputOf("--json", "record", "show", "--key-id", kit.KeyID(key).String())
	rows := kit.RecordLines(t, out)
	if code != 0 || len(rows) != 1 {
		t.Fatalf("record show = %q, exit code %d, want one record", out, code)
	}
	return rows[0]
}

// Where the services leave durable markers, the decision changes the marker, too:
// it stands when Redis has lost all that it knew.
func TestIdemctlResolvesWithDurableMarkers(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"), kit.WithMarkers())
	c := other.HTTPClient()
	const key = "marked-by-hand"
	v.HTTPClient().StartPay(key, kit.Amount, key)
	v.WaitLog(t, "at=after-ledger", kit.LogOp(key))
	v.Kill(t)
	want := kit.WantOnePayment(t, c, key)
	resolveOnceUnlocked(s, key, "--applied", kit.AnswerFor(t, kit.Transports[0], want), "--durable-markers", "--attempt", "1")
	kit.WantReplay(t, "retry", c.PayWithRetries(key, kit.Amount, key), want)
	if found, stat, err := s.ZooKeeper().Exists(s.LockPath(key)); err != nil || !found || stat.EphemeralOwner != 0 {
		t.Errorf("the decision left no marker: %v, %v, %v", found, stat, err)
	}
	s.FlushRedis(t)
	kit.WantRefusal(t, "retry after the loss", c.PayWithRetries(key, kit.Amount, key), "result-unavailable")
	kit.WantOnePayment(t, c, key)
}

// A refusal can be the outcome, too; over gRPC it is a code and a text.
func TestIdemctlResolvesAsRefusedOverGRPC(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"))
	via := kit.Transports[1]
	const key = "refused-by-hand"
	v.Client(via).StartPay(key, kit.Amount, key)
	v.WaitLog(t, "at=before-ledger", kit.LogOp(key))
	v.Kill(t)
	if out, code := resolve(s, key, "--applied", kit.AnswerFile(t, map[string]any{"status": 201, "body": "{}"})); code != 2 || out != "" {
		t.Errorf("with an answer of HTTP: %q, exit code %d, want 2", out, code)
	}
	resolveOnceUnlocked(s, key, "--applied", kit.AnswerFile(t, map[string]any{"status": int(codes.NotFound), "body": "no such account"}))
	a := other.Client(via).Pay(key, kit.Amount, key)
	if a.Err != nil || a.RPC.Code() != codes.NotFound || a.RPC.Message() != "no such account" || !a.Replayed {
		t.Errorf("retry = %v, want what the operator said", a)
	}
	kit.WantNoPayment(t, other.Client(via), key)
}

// Eight operators decide at once, not all alike, and clients retry meanwhile:
// one decision stands, and everybody is told that one.
func TestIdemctlResolveRaces(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"))
	c := other.HTTPClient()
	const key, racers = "raced-for", 8
	v.HTTPClient().StartPay(key, kit.Amount, key)
	v.WaitLog(t, "at=before-ledger", kit.LogOp(key))
	v.Kill(t)
	kit.WantRefusal(t, "retry", c.PayWithRetries(key, kit.Amount, key), "outcome-unknown")

	if got := record(t, s, key); got.State != "unknown" {
		t.Fatalf("record = %+v, want it unknown", got)
	}
	byHand := kit.Payment{ID: "pay_by_hand", Order: kit.FromAlice(kit.Amount, key), Status: "succeeded", CreatedAt: "2026-01-02T03:04:05.000000Z"}
	file := kit.AnswerFor(t, kit.Transports[0], byHand)
	exits, stop := make([]int, racers), make(chan struct{})
	var operators, clients sync.WaitGroup
	clients.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if a := c.Pay(key, kit.Amount, key); !a.IsPayment() && !a.IsRefusal("outcome-unknown") && !a.IsRefusal("in-progress") {
				t.Errorf("retry during the race = %v", a)
			}
		}
	})
	for i := range racers {
		operators.Go(func() {
			args := []string{"--not-applied"}
			if i%2 == 0 {
				args = []string{"--applied", file}
			}
			_, exits[i] = resolve(s, key, append(args, "--reason", fmt.Sprint("racer ", i))...)
		})
	}
	operators.Wait()
	close(stop)
	clients.Wait()

	winner := -1
	for i, code := range exits {
		switch {
		case code == 0 && winner < 0:
			winner = i
		case code != 75:
			t.Errorf("exit codes %v, want one 0 and 75 for the others", exits)
		}
	}
	if winner < 0 {
		t.Fatalf("exit codes %v, want one 0", exits)
	}
	last := c.PayWithRetries(key, kit.Amount, key)
	if winner%2 == 0 {
		kit.WantReplay(t, "retry", last, byHand)
		kit.WantNoPayment(t, c, key)
		return
	}
	kit.WantPayment(t, "retry", last, kit.WantOnePayment(t, c, key))
}
