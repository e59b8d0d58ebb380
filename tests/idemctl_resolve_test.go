package tests

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// answerFor writes the FILE of record resolve --applied for a payment, as the
// sample answers it over a transport.
func answerFor(t *testing.T, via transport, p payment) string {
	t.Helper()
	if via == transports[0] {
		body, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return answerFile(t, map[string]any{"status": 201, "body": string(body),
			"headers": map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/" + p.ID}}})
	}
	at, err := time.Parse(time.RFC3339Nano, p.CreatedAt)
	if err != nil {
		t.Fatal(err)
	}
	message, err := proto.Marshal(&paymentsv1.Payment{Id: p.ID, From: p.From, To: p.To, Amount: p.Amount, Currency: p.Currency,
		Note: p.Note, Status: p.Status, CreatedAt: timestamppb.New(at)})
	if err != nil {
		t.Fatal(err)
	}
	return answerFile(t, map[string]any{"status": 0, "body_base64": base64.StdEncoding.EncodeToString(message)})
}

func answerFile(t testing.TB, answer any) string {
	t.Helper()
	data, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// resolve runs record resolve for a key of the merchant demo.
func (s *system) resolve(key string, args ...string) (stdout string, code int) {
	s.t.Helper()
	return s.outputOf(append([]string{"--json", "record", "resolve", "--scope", "merchant_demo", key, "--by", "operator"}, args...)...)
}

// resolveOnceUnlocked repeats record resolve while the lock of the dead is not gone.
func (s *system) resolveOnceUnlocked(key string, args ...string) {
	s.t.Helper()
	eventually(s.t, "decision on "+key, func() error {
		switch out, code := s.resolve(key, args...); code {
		case 0:
			return nil
		case 75:
			return errNotYet
		default:
			s.t.Fatalf("record resolve %q = %q, exit code %d, want 0 or 75", args, out, code)
			return nil
		}
	})
}

// record is the record of a key, asked for by its ID.
func (s *system) record(t *testing.T, key string) recordLine {
	t.Helper()
	out, code := s.outputOf("--json", "record", "show", "--key-id", keyID(key).String())
	rows := recordLines(t, out)
	if code != 0 || len(rows) != 1 {
		t.Fatalf("record show = %q, exit code %d, want one record", out, code)
	}
	return rows[0]
}

// The victim has paid and is killed. While nobody has looked, its record is
// pending, and its lock stands for as long as its session: an operator waits for
// that as everybody does. What he then says, every retry gets.
func TestIdemctlResolvesAsApplied(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	all := v.startPaymentsUpTo(t, "applied", "at=after-ledger")
	v.kill(t)
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := other.client(r.via)
		want := wantOnePayment(t, c, r.key)
		file := answerFor(t, r.via, want)
		s.resolveOnceUnlocked(r.key, "--applied", file)
		wantReplay(t, "retry", c.payWithRetries(r.key, amount, r.key), want)
		if got := s.record(t, r.key); got.State != "completed" || got.Attempt != 1 {
			t.Errorf("record = %+v, want it completed", got)
		}
		if out, code := s.resolve(r.key, "--applied", file); code != 75 || out != "" {
			t.Errorf("again: %q, exit code %d, want 75", out, code)
		}
		wantOnePayment(t, c, r.key)
	})
}

// Where the services leave durable markers, the decision changes the marker, too:
// it stands when Redis has lost all that it knew.
func TestIdemctlResolvesWithDurableMarkers(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"), withMarkers())
	c := other.httpClient()
	const key = "marked-by-hand"
	v.httpClient().startPay(key, amount, key)
	v.waitLog(t, "at=after-ledger", logOp(key))
	v.kill(t)
	want := wantOnePayment(t, c, key)
	s.resolveOnceUnlocked(key, "--applied", answerFor(t, transports[0], want), "--durable-markers", "--attempt", "1")
	wantReplay(t, "retry", c.payWithRetries(key, amount, key), want)
	if found, stat, err := s.zooKeeper().Exists(s.lockPath(key)); err != nil || !found || stat.EphemeralOwner != 0 {
		t.Errorf("the decision left no marker: %v, %v, %v", found, stat, err)
	}
	s.flushRedis(t)
	wantRefusal(t, "retry after the loss", c.payWithRetries(key, amount, key), "result-unavailable")
	wantOnePayment(t, c, key)
}

// A decision about an attempt that is over is not one about the next.
func TestIdemctlResolvesTheAttemptThatWasLookedAt(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	const key = "looked-at"
	v.httpClient().startPay(key, amount, key)
	v.waitLog(t, "at=before-ledger", logOp(key))
	v.kill(t)
	wantRefusal(t, "retry", other.httpClient().payWithRetries(key, amount, key), "outcome-unknown")
	if out, code := s.resolve(key, "--not-applied", "--attempt", "2"); code != 75 || out != "" {
		t.Errorf("of attempt 2: %q, exit code %d, want 75", out, code)
	}
	if got := s.record(t, key); got.State != "unknown" || got.Attempt != 1 {
		t.Errorf("record = %+v, want attempt 1 unknown", got)
	}
	s.resolveOnceUnlocked(key, "--not-applied", "--attempt", "1")
}

// Where services encrypt responses, an answer that they could not read is refused.
func TestIdemctlResolvesForServicesThatEncrypt(t *testing.T) {
	keys := ringKey("k1")
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none", "--response-keys", keys))
	c := other.httpClient()
	const key = "encrypted"
	v.httpClient().startPay(key, amount, key)
	v.waitLog(t, "at=after-ledger", logOp(key))
	v.kill(t)
	wantRefusal(t, "retry", c.payWithRetries(key, amount, key), "outcome-unknown")
	want := wantOnePayment(t, c, key)
	file := answerFor(t, transports[0], want)
	if out, code := s.resolve(key, "--applied", file); code != 1 || out != "" {
		t.Errorf("without keys: %q, exit code %d, want 1", out, code)
	}
	if got := s.record(t, key); got.State != "unknown" {
		t.Errorf("record = %+v, want it unknown", got)
	}
	s.resolveOnceUnlocked(key, "--applied", file, "--response-keys", keys)
	wantReplay(t, "retry", c.payWithRetries(key, amount, key), want)
}

// Who still runs is not overruled.
func TestIdemctlDoesNotOverruleAHolder(t *testing.T) {
	t.Parallel()
	binary(t, "./cmd/idemctl") // building it takes time that the payment has not
	s := newSystem(t)
	in := s.start("one", withLatency(2*waitLimit))
	const key = "running"
	in.httpClient().startPay(key, amount, key)
	in.waitLog(t, "at=before-ledger", logOp(key))
	if out, code := s.resolve(key, "--not-applied"); code != 75 || out != "" {
		t.Errorf("while it runs: %q, exit code %d, want 75", out, code)
	}
	if got := s.record(t, key); got.State != "pending" {
		t.Errorf("record = %+v, want it pending", got)
	}
}

// The victim is killed before it has paid, and a retry has learned that nobody
// knows. Then it may run again.
func TestIdemctlResolvesAsNotApplied(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	all := v.startPaymentsUpTo(t, "not-applied", "at=before-ledger")
	v.kill(t)
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := other.client(r.via)
		wantRefusal(t, "retry", c.payWithRetries(r.key, amount, r.key), "outcome-unknown")
		wantNoPayment(t, c, r.key)
		s.resolveOnceUnlocked(r.key, "--not-applied", "--reason", "the ledger has nothing, and the process is dead")
		a := wantPaidOnce(t, "retry after the decision", c, r.key)
		if got := s.record(t, r.key); a.replayed || got.State != "completed" || got.Attempt != 2 {
			t.Errorf("retry = %v, record %+v, want a second attempt", a, got)
		}
	})
}

// A refusal can be the outcome, too; over gRPC it is a code and a text.
func TestIdemctlResolvesAsRefusedOverGRPC(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	via := transports[1]
	const key = "refused-by-hand"
	v.client(via).startPay(key, amount, key)
	v.waitLog(t, "at=before-ledger", logOp(key))
	v.kill(t)
	if out, code := s.resolve(key, "--applied", answerFile(t, map[string]any{"status": 201, "body": "{}"})); code != 2 || out != "" {
		t.Errorf("with an answer of HTTP: %q, exit code %d, want 2", out, code)
	}
	s.resolveOnceUnlocked(key, "--applied", answerFile(t, map[string]any{"status": int(codes.NotFound), "body": "no such account"}))
	a := other.client(via).pay(key, amount, key)
	if a.err != nil || a.rpc.Code() != codes.NotFound || a.rpc.Message() != "no such account" || !a.replayed {
		t.Errorf("retry = %v, want what the operator said", a)
	}
	wantNoPayment(t, other.client(via), key)
}

// Eight operators decide at once, not all alike, and clients retry meanwhile:
// one decision stands, and everybody is told that one.
func TestIdemctlResolveRaces(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	c := other.httpClient()
	const key, racers = "raced-for", 8
	v.httpClient().startPay(key, amount, key)
	v.waitLog(t, "at=before-ledger", logOp(key))
	v.kill(t)
	wantRefusal(t, "retry", c.payWithRetries(key, amount, key), "outcome-unknown")

	if got := s.record(t, key); got.State != "unknown" {
		t.Fatalf("record = %+v, want it unknown", got)
	}
	byHand := payment{ID: "pay_by_hand", order: fromAlice(amount, key), Status: "succeeded", CreatedAt: "2026-01-02T03:04:05.000000Z"}
	file := answerFor(t, transports[0], byHand)
	exits, stop := make([]int, racers), make(chan struct{})
	var operators, clients sync.WaitGroup
	clients.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if a := c.pay(key, amount, key); !a.isPayment() && !a.isRefusal("outcome-unknown") && !a.isRefusal("in-progress") {
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
			_, exits[i] = s.resolve(key, append(args, "--reason", fmt.Sprint("racer ", i))...)
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
	last := c.payWithRetries(key, amount, key)
	if winner%2 == 0 {
		wantReplay(t, "retry", last, byHand)
		wantNoPayment(t, c, key)
		return
	}
	wantPayment(t, "retry", last, wantOnePayment(t, c, key))
}
