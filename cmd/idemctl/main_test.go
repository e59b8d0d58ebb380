package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	const nobody = "redis://127.0.0.1:1"
	someID := idem.NewKeyID("s", "k").String()
	tests := []struct {
		args   string
		env    map[string]string
		code   int
		stderr string // part of the one line; "": none
	}{
		{"--help", nil, cli.ExitDone, ""},
		{"record --help", nil, cli.ExitDone, ""},
		{"record show --help", nil, cli.ExitDone, ""},
		{"", nil, cli.ExitUsage, "needs a subcommand"},
		{"record", nil, cli.ExitUsage, "needs a subcommand"},
		{"bogus", nil, cli.ExitUsage, "unknown command"},
		{"record bogus", nil, cli.ExitUsage, "unknown command"},
		{"--bogus record list", nil, cli.ExitUsage, "unknown flag: --bogus"},
		{"record show --scope s -Key4711", nil, cli.ExitUsage, "unknown flag; a key"},
		{"record show --scope s --Key4711", nil, cli.ExitUsage, "unknown flag; a key"},
		{"--session-timeout soon record list", nil, cli.ExitUsage, "session-timeout"},
		{"record list", map[string]string{"IDEMCTL_SESSION_TIMEOUT": "soon"}, cli.ExitUsage, "IDEMCTL_SESSION_TIMEOUT"},
		{"record list", nil, cli.ExitUsage, "no token store"},
		{"record list surplus --redis " + nobody, nil, cli.ExitUsage, "surplus"},
		{"record list --state completed --redis " + nobody, nil, cli.ExitUsage, "neither pending nor unknown"},
		{"record list --limit 0 --redis " + nobody, nil, cli.ExitUsage, "--limit"},
		{"record list --redis http://x", nil, cli.ExitUsage, "want redis://"},
		{"record show --redis " + nobody + " k", nil, cli.ExitUsage, "--scope"},
		{"record show --redis " + nobody + " --scope s", nil, cli.ExitUsage, "KEY"},
		{"record show --redis " + nobody + " --scope s a,b", nil, cli.ExitUsage, "KEY"},
		{"store accept --redis " + nobody, nil, cli.ExitUsage, "needs --zookeeper"},
		{"store accept --redis " + nobody + " --zookeeper ,", nil, cli.ExitUsage, "--zookeeper"},
		{"store accept --redis " + nobody + " --zookeeper z --no-zookeeper", nil, cli.ExitUsage, "contradict"},
		{"record list --redis " + nobody, nil, cli.ExitFailed, "refused"},
		{"record list", map[string]string{"IDEMCTL_REDIS": nobody}, cli.ExitFailed, "refused"},
		{"record list --database postgres://u:hidden@127.0.0.1:1/x", nil, cli.ExitFailed, "refused"},
		{"record list", map[string]string{"IDEMCTL_DATABASE": "mysql://u:hidden@127.0.0.1:1/x"}, cli.ExitFailed, "refused"},
		{"record list --database sqlite:/nowhere/x.db", nil, cli.ExitFailed, "no such file"},
		{"record list --database x", nil, cli.ExitUsage, "want postgres://"},
		{"record list --database mysql://u:hid@den@h/x", nil, cli.ExitUsage, "%40"},
		{"record list --redis " + nobody + " --database sqlite:/nowhere/x.db", nil, cli.ExitFailed, "refused"}, // as the services
		{"store migrate", nil, cli.ExitUsage, "needs --database"},
		{"store migrate --help", nil, cli.ExitDone, ""},
		{"store migrate --database sqlite:/nowhere/x.db", nil, cli.ExitFailed, "--database"},
		{"store migrate --database sqlite:/nowhere/x.db --table-prefix x-", nil, cli.ExitFailed, "letters"},
		{"store migrate --database sqlite:/nowhere/x.db --from 1", nil, cli.ExitUsage, "--from"},
		{"store migrate --database sqlite:/nowhere/x.db --print --from 2", nil, cli.ExitUsage, "0 to 1"},
		{"store migrate --database sqlite:/nowhere/x.db --lock-timeout 0s", nil, cli.ExitUsage, "--lock-timeout"},
		{"store migrate --database oracle:// --print --from 0", nil, cli.ExitUsage, "want postgres://"},
		{"store grants --for service x", nil, cli.ExitUsage, "--database"},
		{"store grants --database sqlite:/nowhere/x.db x", nil, cli.ExitUsage, "--for"},
		{"store grants --database sqlite:/nowhere/x.db --for root x", nil, cli.ExitUsage, "--for"},
		{"store accept --database sqlite:/nowhere/x.db", nil, cli.ExitUsage, "is about Redis"},
		{"lock --help", nil, cli.ExitDone, ""},
		{"completion bash", nil, cli.ExitDone, ""},
		{"lock --shared /p -- true", nil, cli.ExitUsage, "no ensemble"},
		{"lock /p true", nil, cli.ExitUsage, "PATH -- CMD"},
		{"lock /p --", nil, cli.ExitUsage, "PATH -- CMD"},
		{"lock --timeout -1s /p -- true", nil, cli.ExitUsage, "negative"},
		{"lock /p/ -- true", nil, cli.ExitUsage, "PATH"},
		{"lock /p -- no-such-command", nil, 127, "no-such-command"},
		{"lock /p -- ./", nil, 126, "./"},
		{"semaphore --permits 3 /p -- true", nil, cli.ExitUsage, "no ensemble"},
		{"semaphore /p -- true", nil, cli.ExitUsage, "--permits"},
		{"elect --observe /p", nil, cli.ExitUsage, "no ensemble"},
		{"elect /p", nil, cli.ExitUsage, "PATH NAME"},
		{"elect /p a b", nil, cli.ExitUsage, "PATH NAME"},
		{"elect p a", nil, cli.ExitUsage, "PATH"},
		{"elect --observe", nil, cli.ExitUsage, "wants PATH"},
		{"elect --observe /p name", nil, cli.ExitUsage, "wants PATH"},
		{"queue", nil, cli.ExitUsage, "needs a subcommand"},
		{"queue poll --wait 5s /p", nil, cli.ExitUsage, "no ensemble"},
		{"queue poll --wait -5s /p", nil, cli.ExitUsage, "negative"},
		{"queue len p", nil, cli.ExitUsage, "PATH"},
		{"record show --redis " + nobody + " --scope s k surplus", nil, cli.ExitUsage, "arg(s)"},
		{"record show --redis " + nobody + " --key-id abc", nil, cli.ExitUsage, "--key-id"},
		{"record show --redis " + nobody + " --key-id " + someID + " k", nil, cli.ExitUsage, "not both"},
		{"record show --redis " + nobody + " --key-id " + someID + " --scope s", nil, cli.ExitUsage, "not both"},
		{"record show --redis " + nobody + " --key-id " + someID, nil, cli.ExitFailed, "refused"},
		{"record resolve --help", nil, cli.ExitDone, ""},
		{"record resolve --redis " + nobody + " --scope s k", nil, cli.ExitUsage, "--not-applied"},
		{"record resolve --redis " + nobody + " --scope s k --applied f --not-applied", nil, cli.ExitUsage, "either --applied"},
		{"record resolve --redis " + nobody + " --not-applied", nil, cli.ExitUsage, "--key-id"},
		{"record resolve --redis " + nobody + " --scope s k --applied no-such-file", nil, cli.ExitUsage, "no-such-file"},
		{"record resolve --redis " + nobody + " --scope s k --applied -", nil, cli.ExitUsage, "JSON object"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --result-ttl 0s", nil, cli.ExitUsage, "--result-ttl"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by=", nil, cli.ExitUsage, "--by"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by " + strings.Repeat("b", 129), nil, cli.ExitUsage, "at most 128"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --reason " + strings.Repeat("r", 513), nil, cli.ExitUsage, "at most 512"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied", nil, cli.ExitFailed, "refused"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by resolver", nil, cli.ExitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by ENGINE", nil, cli.ExitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by Sweeper", nil, cli.ExitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --by marker", nil, cli.ExitUsage, "not a person"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --attempt 0", nil, cli.ExitUsage, "--attempt"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --attempt -1", nil, cli.ExitUsage, "--attempt"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --transport smtp", nil, cli.ExitUsage, "--transport"},
		{"record resolve --redis " + nobody + " --scope s k --not-applied --allow-header a:b", nil, cli.ExitUsage, "--allow-header"},
		{"record resolve --redis " + nobody + " --zookeeper z --scope s k --not-applied --no-zookeeper", nil, cli.ExitUsage, "contradict"},
		{"record resolve --scope s k --not-applied", nil, cli.ExitUsage, "no token store"},
		{"store retire --help", nil, cli.ExitDone, ""},
		{"store retire --redis " + nobody, nil, cli.ExitUsage, "arg(s)"},
		{"store retire --redis " + nobody + " " + strings.Repeat("d", 256), nil, cli.ExitUsage, "1 to 255"},
		{"store retire --redis " + nobody + " d --no-zookeeper --by=", nil, cli.ExitUsage, "--by"},
		{"store retire --redis " + nobody + " d --no-zookeeper --by Resolver", nil, cli.ExitUsage, "not a person"},
		{"store retire --redis " + nobody + " d", nil, cli.ExitUsage, "needs --zookeeper"},
		{"store retire --redis " + nobody + " --zookeeper z d --no-zookeeper", nil, cli.ExitUsage, "contradict"},
		{"store retire --redis " + nobody + " d --no-zookeeper", map[string]string{"IDEMCTL_ZOOKEEPER": "z"}, cli.ExitUsage, "contradict"},
		{"store retire --redis " + nobody + " d --no-zookeeper --session-timeout 0s", nil, cli.ExitUsage, "--session-timeout"},
		{"store retire --redis " + nobody + " d --no-zookeeper", nil, cli.ExitFailed, "refused"},
		{"token", nil, cli.ExitUsage, "needs a subcommand"},
		{"token issue --help", nil, cli.ExitDone, ""},
		{"token issue --redis " + nobody, nil, cli.ExitUsage, "--scope"},
		{"token issue --redis " + nobody + " --scope s --ttl 0s", nil, cli.ExitUsage, "--ttl"},
		{"token issue --redis " + nobody + " --scope s", nil, cli.ExitFailed, "refused"},
		{"doctor --help", nil, cli.ExitDone, ""},
		{"doctor", nil, cli.ExitUsage, "--redis, --database or --zookeeper"},
		{"doctor --redis http://x", nil, cli.ExitUsage, "want redis://"},
		{"doctor --zookeeper ,", nil, cli.ExitUsage, "--zookeeper"},
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
			if lines := strings.Count(got.stderr, "\n"); tt.code != cli.ExitDone && (lines != 1 || got.stdout != "") {
				t.Errorf("said %q and %q, want one line on standard error", got.stdout, got.stderr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	got := idemctl(t, nil, "--version")
	if got.code != cli.ExitDone || !strings.HasPrefix(got.stdout, "idemctl version ") || !strings.Contains(got.stdout, runtime.Version()) || got.stderr != "" {
		t.Errorf("--version = %+v", got)
	}
}

func TestTokenIssue(t *testing.T) {
	t.Parallel()
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
	var r struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.stderr != "" || time.Until(r.ExpiresAt) > idem.DefaultTokenTTL+time.Minute || time.Until(r.ExpiresAt) < idem.DefaultTokenTTL-time.Minute {
		t.Errorf("token issue --json = %+v, %v", got, err)
	}
	if rec := stateOf(t, store, idem.Key(r.Token)); rec.State != driver.StateIssued || !rec.TokenExpires.Equal(r.ExpiresAt) {
		t.Errorf("record = %+v, want it to expire at %v", rec, r.ExpiresAt)
	}
}
