package tests

import (
	"encoding/json"
	"strings"
	"testing"
)

// recordLine is what idemctl --json writes of a record, as far as the contract
// goes.
type recordLine struct {
	KeyID   string `json:"key_id"`
	State   string
	Since   string
	Attempt int
}

func recordLines(t *testing.T, out string) []recordLine {
	t.Helper()
	var all []recordLine
	for line := range strings.Lines(out) {
		var r recordLine
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("idemctl printed %q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestIdemctlShowsRecordsOfTheLiveSystem(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one", withLatency(2*victimLatency)) // time for idemctl on a busy machine
	const key = "shown"
	show := []string{"--json", "record", "show", "--scope", "merchant_demo", key}
	if out, code := s.outputOf(show...); code != 75 || out != "" {
		t.Errorf("show of an unknown key = %q, exit code %d, want 75", out, code)
	}
	if out, code := s.outputOf("--json", "record", "list"); code != 0 || out != "" {
		t.Errorf("list of nothing = %q, exit code %d, want 0", out, code)
	}

	done := in.httpClient().startPay(key, amount, key)
	in.waitLog(t, "at=before-ledger", logOp(key))
	var shown []*process // together, because the payment ends soon
	for _, args := range [][]string{show, {"--json", "record", "list"}, {"--json", "record", "list", "--state", "pending"}, {"--json", "record", "list", "--state", "unknown"}} {
		shown = append(shown, s.startIdemctl(args...))
	}
	for i, p := range shown {
		got := p.waitExit(t)
		rows := recordLines(t, got.stdout)
		if got.code != 0 || i < 3 && (len(rows) != 1 || rows[0].State != "pending" || rows[0].KeyID != keyID(key).String() || rows[0].Attempt != 1 || rows[0].Since == "") {
			t.Errorf("%s while it runs = %q, exit code %d, want one pending record", p.name, got.stdout, got.code)
		}
		if i == 3 && len(rows) != 0 {
			t.Errorf("%s = %q, want none", p.name, got.stdout)
		}
	}

	wantPayment(t, "payment", <-done, wantOnePayment(t, in.httpClient(), key))
	out, code := s.outputOf(show...)
	if rows := recordLines(t, out); code != 0 || len(rows) != 1 || rows[0].State != "completed" || rows[0].Attempt != 1 {
		t.Errorf("show afterwards = %q, exit code %d, want one completed record", out, code)
	}
	if out, code := s.outputOf("--json", "record", "list"); code != 0 || out != "" {
		t.Errorf("list afterwards = %q, exit code %d, want nothing", out, code)
	}
	if _, code := s.outputOf("--json", "record", "show", "--scope", "merchant_test", key); code != 75 {
		t.Errorf("show in another scope: exit code %d, want 75", code)
	}
	if _, code := s.outputOf("record", "show", key); code != 2 {
		t.Errorf("show without scope: exit code %d, want 2", code)
	}
	if out, code := s.outputOf("store", "accept"); code != 0 {
		t.Errorf("store accept where nothing is lost = %q, exit code %d, want 0", out, code)
	}
}
