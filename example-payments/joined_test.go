package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	otherOrder = `{"from":"alice","to":"bob","amount":9999,"currency":"USD","note":"n"}`
	greatOrder = `{"from":"alice","to":"bob","amount":99999999,"currency":"USD","note":"n"}`
)

// want sends a request and fails the test unless it is answered with the status. It returns
// the body.
func (p *process) want(status int, method, path, key, body string) string {
	p.t.Helper()
	got, answer, err := p.request(method, path, key, body)
	if got != status || err != nil {
		p.t.Errorf("%s %s %s: %d %s %v, want %d", method, path, key, got, answer, err, status)
	}
	return answer
}

// wantState fails the test unless the key is in a state.
func (p *process) wantState(key, state string) {
	p.t.Helper()
	if body := p.want(200, "GET", "/v1/idempotency", key, ""); !strings.Contains(body, `"state":"`+state+`"`) {
		p.t.Errorf("state of %s: %s, want %s", key, body, state)
	}
}

// The life of a service with no flag but --database, over both transports, across a
// restart.
func TestJoinedService(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		p := serve(t, "--database", database)
		p.WaitLog(t, "lock=joined store=sql")
		first := p.want(201, "POST", "/v1/payments", "k", orderBody)
		refused := p.want(402, "POST", "/v1/payments", "poor", greatOrder)
		called, err := p.call("over-grpc")
		if err != nil {
			t.Errorf("gRPC: %v", err)
		}
		var token struct{ Token string }
		if err := json.Unmarshal([]byte(p.want(201, "POST", "/v1/tokens", "", "")), &token); err != nil {
			t.Fatal(err)
		}
		p.wantState(token.Token, "issued")
		p.want(422, "POST", "/v1/payments", token.Token, orderBody)
		p.want(403, "POST", "/v1/trades", "not-a-token", orderBody)
		traded := p.want(201, "POST", "/v1/trades", token.Token, orderBody)
		issued, err := p.issue()
		if err != nil {
			t.Fatalf("IssueToken: %v", err)
		}
		tradedOnGRPC, err := p.trade(issued.GetToken(), 1250)
		if err != nil {
			t.Errorf("CreateTrade: %v", err)
		}

		for range 2 { // the second time after a restart
			if got := p.want(201, "POST", "/v1/payments", "k", orderBody); got != first {
				t.Errorf("replay: %s, want %s", got, first)
			}
			if got := p.want(402, "POST", "/v1/payments", "poor", greatOrder); got != refused {
				t.Errorf("replay: %s, want %s", got, refused)
			}
			if got := p.want(201, "POST", "/v1/trades", token.Token, orderBody); got != traded {
				t.Errorf("replay: %s, want %s", got, traded)
			}
			if again, err := p.call("over-grpc"); err != nil || !proto.Equal(again, called) {
				t.Errorf("replay over gRPC: %v, %v, want %v", again, err, called)
			}
			if again, err := p.trade(issued.GetToken(), 1250); err != nil || !proto.Equal(again, tradedOnGRPC) {
				t.Errorf("replay over gRPC: %v, %v, want %v", again, err, tradedOnGRPC)
			}
			if _, err := p.trade(issued.GetToken(), 9999); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("another trade with the token: %v, want FAILED_PRECONDITION", err)
			}
			if _, err := p.trade("not-a-token", 1250); status.Code(err) != codes.PermissionDenied {
				t.Errorf("a trade without a token: %v, want PERMISSION_DENIED", err)
			}
			p.want(422, "POST", "/v1/payments", "k", otherOrder)
			p.want(422, "POST", "/v1/payments", "over-grpc", orderBody)
			p.want(400, "POST", "/v1/payments", "fresh", `{"from":"alice"}`)
			p.wantState("k", "completed")
			p.wantState("fresh", "none")
			p.wantPayments(4)
			p.stops()
			p = serve(t, "--database", database)
		}
	})
}

// An instance is killed while it pays. Nothing is left of an attempt that did not commit, so
// the retry pays, without a resolver.
func TestJoinedKilledInstance(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		for _, at := range []string{"at=before-ledger", "at=checked", "at=after-ledger", "at=answered"} {
			flags := []string{"--database", database, "--resolver", "none", "--log-level", "debug"}
			victim := serve(t, append(flags, "--processor-latency", "100ms")...)
			gone := make(chan error, 1)
			go func() {
				_, _, err := victim.request("POST", "/v1/payments", at, orderBody)
				gone <- err
			}()
			victim.WaitLog(t, at)
			victim.Kill(t)
			<-gone
			heir := serve(t, flags...)
			status, body := heir.payUntilSettled(at)
			if status != 201 {
				t.Errorf("%s: repeat: %d %s, want 201", at, status, body)
			}
			if again := heir.want(201, "POST", "/v1/payments", at, orderBody); again != body {
				t.Errorf("%s: repeat: %s, want %s", at, again, body)
			}
			heir.Kill(t)
		}
		serve(t, "--database", database).wantPayments(4)
	})
}

// Two instances of one server see each other's keys, running ones too.
func TestJoinedInstancesShareKeys(t *testing.T) {
	onEachServer(t, func(t *testing.T, database string) {
		slow := serve(t, "--database", database, "--processor-latency", "2s", "--log-level", "debug")
		other := serve(t, "--database", database, "--wait", "10s")
		first := make(chan string, 1)
		go func() {
			_, body, _ := slow.request("POST", "/v1/payments", "k", orderBody)
			first <- body
		}()
		slow.WaitLog(t, "at=before-ledger")
		other.wantState("k", "pending")
		slow.want(409, "POST", "/v1/payments", "k", orderBody)
		waited := other.want(201, "POST", "/v1/payments", "k", orderBody)
		if body := <-first; body != waited {
			t.Errorf("answers %s and %s, want the same", body, waited)
		}
		other.wantPayments(1)
	})
}

// Payments of one account wait for each other, on both instances, and none is refused.
func TestJoinedPaymentsOfOneAccount(t *testing.T) {
	onEachServer(t, func(t *testing.T, database string) {
		instances := []*process{serve(t, "--database", database), serve(t, "--database", database)}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := range 5 {
					instances[i%2].want(201, "POST", "/v1/payments", fmt.Sprintf("key-%d-%d", i, n), orderBody)
				}
			})
		}
		wg.Wait()
		instances[0].wantPayments(40)
		if got := instances[1].want(200, "GET", "/v1/accounts/alice", "", ""); !strings.Contains(got, fmt.Sprintf(`"balance":%d`, 1_000_000-40*1250)) {
			t.Errorf("alice: %s, want 40 payments less", got)
		}
	})
}

// SQLite has one writer. Payments under different keys take turns, and readers do not wait.
func TestPaymentsOnSQLiteTakeTurns(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"embedded": nil, "file": {"--database", sqliteFile(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, append(flags, "--processor-latency", "20ms")...)
			done := make(chan struct{})
			var readers, payers sync.WaitGroup
			for range 2 {
				readers.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
							p.want(200, "GET", "/v1/accounts", "", "")
							p.want(200, "GET", "/v1/idempotency", "key-1", "")
						}
					}
				})
			}
			for i := range 16 {
				payers.Go(func() {
					for n := range 3 {
						p.want(201, "POST", "/v1/payments", fmt.Sprintf("key-%d-%d", i, n), orderBody)
					}
				})
			}
			payers.Wait()
			close(done)
			readers.Wait()
			p.wantPayments(48)
		})
	}
}

// A payment may keep the writer of SQLite for long. The service is ready all the same.
func TestServiceOnSQLiteIsReadyWhileItPays(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"embedded": nil, "file": {"--database", sqliteFile(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, append(flags, "--processor-latency", "1h", "--log-level", "debug")...)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _, _ = p.request("POST", "/v1/payments", "k", orderBody)
			}()
			p.WaitLog(t, "at=before-ledger")
			p.want(200, "GET", "/readyz", "", "")
			p.want(200, "GET", "/metrics", "", "")
			p.want(200, "GET", "/v1/payments", "", "")
			p.wantState("k", "pending")
			p.want(409, "POST", "/v1/payments", "k", orderBody)
			p.Kill(t)
			<-gone
		})
	}
}

// The commands of operators work on what the service writes, while it runs.
func TestIdemctlOnTheDatabaseOfTheService(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		p := serve(t, "--database", database)
		p.want(201, "POST", "/v1/payments", "k", orderBody)
		for _, tt := range []struct {
			args string
			code int
			want string
		}{
			{"--json record show --scope merchant_demo k", 0, `"state":"completed"`},
			{"record show --scope merchant_test k", 75, ""},
			{"--json record list", 0, ""},
			{"store migrate", 0, "have version"},
			{"store accept", 2, "nothing to accept"},
			{"doctor", 0, "ok"},
		} {
			if out, code := idemctl(t, database, strings.Fields(tt.args)...); code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("idemctl %s = %d %s, want %d %s", tt.args, code, out, tt.code, tt.want)
			}
		}
		out, code := idemctl(t, database, "token", "issue", "--scope", "merchant_demo")
		if code != 0 {
			t.Fatalf("idemctl token issue = %d %s", code, out)
		}
		p.want(201, "POST", "/v1/trades", strings.TrimSpace(out), orderBody)
		p.want(http.StatusCreated, "POST", "/v1/payments", "another", orderBody)
		p.wantPayments(3)
	})
}
