package idemctl

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/kit"
)

func TestIdemctlShowsRecordsOfTheLiveSystem(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one", kit.WithLatency(2*kit.VictimLatency)) // time for idemctl on a busy machine
	const key = "shown"
	show := []string{"--json", "record", "show", "--scope", "merchant_demo", key}
	if out, code := s.OutputOf(show...); code != 75 || out != "" {
		t.Errorf("show of an unknown key = %q, exit code %d, want 75", out, code)
	}
	if out, code := s.OutputOf("--json", "record", "list"); code != 0 || out != "" {
		t.Errorf("list of nothing = %q, exit code %d, want 0", out, code)
	}

	done := in.HTTPClient().StartPay(key, kit.Amount, key)
	in.WaitLog(t, "at=before-ledger", kit.LogOp(key))
	var shown []*kit.Process // together, because the payment ends soon
	for _, args := range [][]string{show, {"--json", "record", "list"}, {"--json", "record", "list", "--state", "pending"}, {"--json", "record", "list", "--state", "unknown"}} {
		shown = append(shown, s.StartIdemctl(args...))
	}
	for i, p := range shown {
		got := p.WaitExit(t)
		rows := kit.RecordLines(t, got.Stdout)
		if got.Code != 0 || i < 3 && (len(rows) != 1 || rows[0].State != "pending" || rows[0].KeyID != kit.KeyID(key).String() || rows[0].Attempt != 1 || rows[0].Since == "") {
			t.Errorf("%s while it runs = %q, exit code %d, want one pending record", p.Name, got.Stdout, got.Code)
		}
		if i == 3 && len(rows) != 0 {
			t.Errorf("%s = %q, want none", p.Name, got.Stdout)
		}
	}

	kit.WantPayment(t, "payment", <-done, kit.WantOnePayment(t, in.HTTPClient(), key))
	out, code := s.OutputOf(show...)
	if rows := kit.RecordLines(t, out); code != 0 || len(rows) != 1 || rows[0].State != "completed" || rows[0].Attempt != 1 {
		t.Errorf("show afterwards = %q, exit code %d, want one completed record", out, code)
	}
	if out, code := s.OutputOf("--json", "record", "list"); code != 0 || out != "" {
		t.Errorf("list afterwards = %q, exit code %d, want nothing", out, code)
	}
	if _, code := s.OutputOf("--json", "record", "show", "--scope", "merchant_test", key); code != 75 {
		t.Errorf("show in another scope: exit code %d, want 75", code)
	}
	if _, code := s.OutputOf("record", "show", key); code != 2 {
		t.Errorf("show without scope: exit code %d, want 2", code)
	}
	if out, code := s.OutputOf("store", "accept"); code != 0 {
		t.Errorf("store accept where nothing is lost = %q, exit code %d, want 0", out, code)
	}
}
