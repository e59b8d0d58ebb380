package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

func TestTokenIssue(t *testing.T) {
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	got := idemctl(t, env, "token", "issue", "--scope", "m", "--ttl", "1h")
	token := strings.TrimSuffix(got.stdout, "\n")
	if got.code != 0 || token == "" || strings.ContainsAny(token, " \n") || !strings.Contains(got.stderr, "expires at") {
		t.Errorf("token issue = %+v, want the token alone", got)
	}
	if rec := stateOf(t, store, idem.Key(token)); rec.State != idem.StateIssued || rec.TokenExpires.Sub(rec.Created) != time.Hour {
		t.Errorf("record = %+v", rec)
	}
	got = idemctl(t, env, "--json", "token", "issue", "--scope", "m")
	var r tokenRow
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.stderr != "" || time.Until(r.ExpiresAt) > idem.DefaultTokenTTL+time.Minute || time.Until(r.ExpiresAt) < idem.DefaultTokenTTL-time.Minute {
		t.Errorf("token issue --json = %+v, %v", got, err)
	}
	if rec := stateOf(t, store, idem.Key(r.Token)); rec.State != idem.StateIssued || !rec.TokenExpires.Equal(r.ExpiresAt) {
		t.Errorf("record = %+v, want it to expire at %v", rec, r.ExpiresAt)
	}
}
