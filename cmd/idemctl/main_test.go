package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func TestExitCodes(t *testing.T) {
	const nobody = "redis://127.0.0.1:1"
	someID := idem.NewKeyID("s", "k").String()
	tests := []struct {
		args   string
		env    map[string]string
		code   int
		stderr string // part of the one line; "": none
	}{
		{"--help", nil, exitDone, ""},
		{"record --help", nil, exitDone, ""},
		{"record show --help", nil, exitDone, ""},
		{"", nil, exitUsage, "needs a subcommand"},
		{"record", nil, exitUsage, "needs a subcommand"},
		{"bogus", nil, exitUsage, "unknown command"},
		{"record bogus", nil, exitUsage, "unknown command"},
		{"--bogus record list", nil, exitUsage, "unknown flag: --bogus"},
		{"record show --scope s -Key4711", nil, exitUsage, "unknown flag; a key"},
		{"record show --scope s --Key4711", nil, exitUsage, "unknown flag; a key"},
		{"--session-timeout soon record list", nil, exitUsage, "session-timeout"},
		{"record list", map[string]string{"IDEMCTL_SESSION_TIMEOUT": "soon"}, exitUsage, "IDEMCTL_SESSION_TIMEOUT"},
		{"record list", nil, exitUsage, "no token store"},
		{"record list surplus --redis " + nobody, nil, exitUsage, "surplus"},
		{"record list --state completed --redis " + nobody, nil, exitUsage, "neither pending nor unknown"},
		{"record list --limit 0 --redis " + nobody, nil, exitUsage, "--limit"},
		{"record list --redis http://x", nil, exitUsage, "want redis://"},
		{"record show --redis " + nobody + " k", nil, exitUsage, "--scope"},
		{"record show --redis " + nobody + " --scope s", nil, exitUsage, "KEY"},
		{"record show --redis " + nobody + " --scope s a,b", nil, exitUsage, "KEY"},
		{"store accept --redis " + nobody, nil, exitUsage, "needs --zookeeper"},
		{"store accept --redis " + nobody + " --zookeeper ,", nil, exitUsage, "--zookeeper"},
		{"store accept --redis " + nobody + " --zookeeper z --no-zookeeper", nil, exitUsage, "contradict"},
		{"record list --redis " + nobody, nil, exitFailed, "refused"},
		{"record list", map[string]string{"IDEMCTL_REDIS": nobody}, exitFailed, "refused"},
		{"record list --database postgres://u:hidden@127.0.0.1:1/x", nil, exitFailed, "refused"},
		{"record list", map[string]string{"IDEMCTL_DATABASE": "mysql://u:hidden@127.0.0.1:1/x"}, exitFailed, "refused"},
		{"record list --database sqlite:/nowhere/x.db", nil, exitFailed, "no such file"},
		{"record list --database x", nil, exitUsage, "want postgres://"},
		{"record list --database mysql://u:hid@den@h/x", nil, exitUsage, "%40"},
		{"record list --redis " + nobody + " --database sqlite:/nowhere/x.db", nil, exitFailed, "refused"}, // as the services
		{"store migrate", nil, exitUsage, "needs --database"},
		{"store migrate --help", nil, exitDone, ""},
		{"store migrate --database sqlite:/nowhere/x.db", nil, exitFailed, "--database"},
		{"store migrate --database sqlite:/nowhere/x.db --table-prefix x-", nil, exitFailed, "letters"},
		{"store accept --database sqlite:/nowhere/x.db", nil, exitUsage, "is about Redis"},
		{"lock --help", nil, exitDone, ""},
		{"completion bash", nil, exitDone, ""},
		{"lock --shared /p -- true", nil, exitUsage, "no ensemble"},
		{"lock /p true", nil, exitUsage, "PATH -- CMD"},
		{"lock /p --", nil, exitUsage, "PATH -- CMD"},
		{"lock --timeout -1s /p -- true", nil, exitUsage, "negative"},
		{"lock /p/ -- true", nil, exitUsage, "PATH"},
		{"lock /p -- no-such-command", nil, exitNotFound, "no-such-command"},
		{"lock /p -- ./", nil, exitNotExecutable, "./"},
		{"semaphore --permits 3 /p -- true", nil, exitUsage, "no ensemble"},
		{"semaphore /p -- true", nil, exitUsage, "--permits"},
		{"elect --observe /p", nil, exitUsage, "no ensemble"},
		{"elect /p", nil, exitUsage, "PATH NAME"},
		{"elect --observe /p name", nil, exitUsage, "wants PATH"},
		{"queue", nil, exitUsage, "needs a subcommand"},
		{"queue poll --wait 5s /p", nil, exitUsage, "no ensemble"},
		{"queue poll --wait -5s /p", nil, exitUsage, "negative"},
		{"queue len p", nil, exitUsage, "PATH"},
		{"record show --redis " + nobody + " --scope s k surplus", nil, exitUsage, "arg(s)"},
		{"record show --redis " + nobody + " --key-id abc", nil, exitUsage, "--key-id"},
		{"record show --redis " + nobody + " --key-id " + someID + " k", nil, exitUsage, "not both"},
		{"record show --redis " + nobody + " --key-id " + someID + " --scope s", nil, exitUsage, "not both"},
		{"record show --redis " + nobody + " --key-id " + someID, nil, exitFailed, "refused"},
		{"record resolve --help", nil, exitDone, ""},
		{"record resolve --redis " + nobody + " --scope s k", nil, exitUsage, "--not-applied"},
		{"record resolve --redis " + nobody + " --scope s k --applied f --not-applied", nil, exitUsage, "either --applied"},
		{"record resolve --redis " + nobody + " --not-applied", nil, exitUsage, "--key-id"},
		{"record resolve --redis " + nobody + " --scope s k --applied no-such-file", nil, exitUsage, "no-such-file"},
		{"record resolve --redis " + nobody + " --scope s k --applied -", nil, exitUsage, "JSON object"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --result-ttl 0s", nil, exitUsage, "--result-ttl"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by=", nil, exitUsage, "--by"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by " + strings.Repeat("b", 129), nil, exitUsage, "at most 128"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --reason " + strings.Repeat("r", 513), nil, exitUsage, "at most 512"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied", nil, exitFailed, "refused"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by resolver", nil, exitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by ENGINE", nil, exitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by Sweeper", nil, exitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by marker", nil, exitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --attempt 0", nil, exitUsage, "--attempt"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --attempt -1", nil, exitUsage, "--attempt"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --transport smtp", nil, exitUsage, "--transport"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --allow-header a:b", nil, exitUsage, "--allow-header"},
		{"record resolve --redis " + nobody + " --zookeeper z --scope s k --not-applied --no-zookeeper", nil, exitUsage, "contradict"},
		{"record resolve --scope s k --not-applied", nil, exitUsage, "no token store"},
		{"store retire --help", nil, exitDone, ""},
		{"store retire --redis " + nobody, nil, exitUsage, "arg(s)"},
		{"store retire --redis " + nobody + " " + strings.Repeat("d", 256), nil, exitUsage, "1 to 255"},
		{"store retire --redis " + nobody + " d --no-zookeeper --by=", nil, exitUsage, "--by"},
		{"store retire --redis " + nobody + " d --no-zookeeper --by Resolver", nil, exitUsage, "not a person"},
		{"store retire --redis " + nobody + " d", nil, exitUsage, "needs --zookeeper"},
		{"store retire --redis " + nobody + " --zookeeper z d --no-zookeeper", nil, exitUsage, "contradict"},
		{"store retire --redis " + nobody + " d --no-zookeeper", map[string]string{"IDEMCTL_ZOOKEEPER": "z"}, exitUsage, "contradict"},
		{"store retire --redis " + nobody + " d --no-zookeeper --session-timeout 0s", nil, exitUsage, "--session-timeout"},
		{"store retire --redis " + nobody + " d --no-zookeeper", nil, exitFailed, "refused"},
		{"token", nil, exitUsage, "needs a subcommand"},
		{"token issue --help", nil, exitDone, ""},
		{"token issue --redis " + nobody, nil, exitUsage, "--scope"},
		{"token issue --redis " + nobody + " --scope s --ttl 0s", nil, exitUsage, "--ttl"},
		{"token issue --redis " + nobody + " --scope s", nil, exitFailed, "refused"},
		{"doctor --help", nil, exitDone, ""},
		{"doctor", nil, exitUsage, "--redis, --database or --zookeeper"},
		{"doctor --redis http://x", nil, exitUsage, "want redis://"},
		{"doctor --zookeeper ,", nil, exitUsage, "--zookeeper"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			got := idemctl(t, tt.env, strings.Fields(tt.args)...)
			if got.code != tt.code || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("exit code %d, %q, want %d, %q", got.code, got.stderr, tt.code, tt.stderr)
			}
			if strings.Contains(got.stderr, "hid") && strings.Contains(got.stderr, "den") && !strings.Contains(tt.stderr, "hidden") {
				t.Errorf("said the password: %q", got.stderr)
			}
			if lines := strings.Count(got.stderr, "\n"); tt.code != exitDone && (lines != 1 || got.stdout != "") {
				t.Errorf("said %q and %q, want one line on standard error", got.stdout, got.stderr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	got := idemctl(t, nil, "--version")
	if got.code != exitDone || !strings.HasPrefix(got.stdout, "idemctl version ") || !strings.Contains(got.stdout, runtime.Version()) || got.stderr != "" {
		t.Errorf("--version = %+v", got)
	}
}

func TestTokenIssue(t *testing.T) {
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	got := idemctl(t, env, "token", "issue", "--scope", "m", "--ttl", "1h")
	token := strings.TrimSuffix(got.stdout, "\n")
	if got.code != 0 || token == "" || strings.ContainsAny(token, " \n") || !strings.Contains(got.stderr, "expires at") {
		t.Errorf("token issue = %+v, want the token alone", got)
	}
	if rec := stateOf(t, store, idem.Key(token)); rec.State != driver.StateIssued || rec.TokenExpires.Sub(rec.Created) != time.Hour {
		t.Errorf("record = %+v", rec)
	}
	got = idemctl(t, env, "--json", "token", "issue", "--scope", "m")
	var r tokenRow
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.stderr != "" || time.Until(r.ExpiresAt) > idem.DefaultTokenTTL+time.Minute || time.Until(r.ExpiresAt) < idem.DefaultTokenTTL-time.Minute {
		t.Errorf("token issue --json = %+v, %v", got, err)
	}
	if rec := stateOf(t, store, idem.Key(r.Token)); rec.State != driver.StateIssued || !rec.TokenExpires.Equal(r.ExpiresAt) {
		t.Errorf("record = %+v, want it to expire at %v", rec, r.ExpiresAt)
	}
}
