package main

import (
	"net/http"
	"strings"
	"testing"
)

// A crash in the middle of a charge ends the instance. The next one has its ports, its keys and its
// ledger, and charges once.
func TestDemoStartsAgainAfterACrash(t *testing.T) {
	t.Parallel()
	p := serve(t, "--demo")
	if status, body, err := p.request("POST", "/v1/payments", "before", orderBody); status != 201 || err != nil {
		t.Fatalf("payment: %d %s %v, want 201", status, body, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/payments", strings.NewReader(orderBody))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer demo")
	req.Header.Set("Idempotency-Key", "k")
	req.Header.Set("Demo-Crash", "yes")
	if res, err := http.DefaultClient.Do(req); err == nil {
		res.Body.Close()
		t.Fatalf("the charge that crashes was answered with %d", res.StatusCode)
	}
	p.WaitLog(t, "the instance has crashed, and another one takes over")
	status, body := p.payUntilSettled("k")
	if status != 201 {
		t.Errorf("repeat: %d %s, want 201", status, body)
	}
	if _, again := p.payUntilSettled("k"); again != body {
		t.Errorf("repeat: %s, want %s", again, body)
	}
	p.wantPayments(2)
	if status, _ := consoleAs(t, p.url, "", "ops", "ops"); status != 200 {
		t.Errorf("/console/ of the second instance: %d, want 200", status)
	}
	p.stops()
}

func TestDemoNeedsRecordsThatLast(t *testing.T) {
	t.Parallel()
	refused(t, "--demo", "--token-store", "memory").WaitLog(t, "--token-store memory")
}
