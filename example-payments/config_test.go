package main

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func parseConfig(args []string, env map[string]string) (Config, error) {
	return ParseConfig(args, func(name string) string { return env[name] }, &bytes.Buffer{})
}

func TestConfigDefaults(t *testing.T) {
	c, err := parseConfig(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.HTTPAddr != "127.0.0.1:8080" || c.GRPCAddr != "127.0.0.1:9090" || c.ZooKeeper != "" || c.Redis != "" || c.Database != "" || c.TokenStore != "sql" ||
		c.SessionTimeout != 10*time.Second || c.ProcessorLatency != 0 || c.Wait != 0 || c.Resolver != "ledger" || c.LogLevel != slog.LevelInfo {
		t.Errorf("defaults are %+v", c)
	}
	if got := strings.Join(c.APIKeys.Merchants(), " "); got != "merchant_demo merchant_test" {
		t.Errorf("merchants %q", got)
	}
}

// Every flag of the contract can be given by its environment variable, and the
// flag wins.
func TestConfigFromFlagsAndEnvironment(t *testing.T) {
	redis := []string{"--redis", "r"}
	tests := []struct {
		flag, value, other string
		more               []string
		get                func(Config) any
		want               any
	}{
		{"http-addr", "0.0.0.0:1", ":2", nil, func(c Config) any { return c.HTTPAddr }, "0.0.0.0:1"},
		{"zookeeper", "a:1,b:2/c", "d", nil, func(c Config) any { return c.ZooKeeper }, "a:1,b:2/c"},
		{"redis", "redis://a", "redis://b", nil, func(c Config) any { return c.Redis + " " + c.TokenStore }, "redis://a redis"},
		{"database", "sqlite:f", "sqlite:g", nil, func(c Config) any { return c.Database }, "sqlite:f"},
		{"token-store", "memory", "redis", redis, func(c Config) any { return c.TokenStore }, "memory"},
		{"session-timeout", "7s", "8s", nil, func(c Config) any { return c.SessionTimeout }, 7 * time.Second},
		{"zookeeper-tick", "500ms", "8s", nil, func(c Config) any { return c.ZooKeeperTick }, 500 * time.Millisecond},
		{"processor-latency", "1s", "2s", nil, func(c Config) any { return c.ProcessorLatency }, time.Second},
		{"wait", "3s", "4s", nil, func(c Config) any { return c.Wait }, 3 * time.Second},
		{"max-open", "5", "6", nil, func(c Config) any { return c.MaxOpen }, 5},
		{"resolver", "none", "ledger", nil, func(c Config) any { return c.Resolver }, "none"},
		{"durable-markers", "false", "true", nil, func(Config) any { return true }, true},
		{"api-keys", "x=y", "z=w", nil, func(c Config) any { return strings.Join(c.APIKeys.Merchants(), "") }, "y"},
		{"demo", "true", "false", nil, func(c Config) any { return c.Demo }, true},
		{"operators", "ada=x", "bob=y", nil, func(c Config) any { return len(c.Operators["ada"]) > 0 && len(c.Operators) == 1 }, true},
		{"log-level", "debug", "info", nil, func(c Config) any { return c.LogLevel }, slog.LevelDebug},
		{"grpc-addr", "0.0.0.0:3", ":4", nil, func(c Config) any { return c.GRPCAddr }, "0.0.0.0:3"},
	}
	for _, tt := range tests {
		env := envName(tt.flag)
		if got, err := parseConfig(append(tt.more, "--"+tt.flag+"="+tt.value), map[string]string{env: tt.other}); err != nil || tt.get(got) != tt.want {
			t.Errorf("--%s=%s over %s=%s: %v, %v, want %v", tt.flag, tt.value, env, tt.other, tt.get(got), err, tt.want)
		}
		if got, err := parseConfig(tt.more, map[string]string{env: tt.value}); err != nil || tt.get(got) != tt.want {
			t.Errorf("%s=%s: %v, %v, want %v", env, tt.value, tt.get(got), err, tt.want)
		}
	}
}

func TestConfigRefusals(t *testing.T) {
	tests := []struct {
		args, env string // env is NAME=value
		want      string // part of the error
	}{
		{"--bogus", "", "bogus"},
		{"surplus", "", "surplus"},
		{"--wait soon", "", "wait"},
		{"--wait -1s", "", "negative"},
		{"--max-open -1", "", "negative"},
		{"--processor-latency -1s", "", "negative"},
		{"--session-timeout 0s", "", "not positive"},
		{"--http-addr 8080", "", "--http-addr"},
		{"--grpc-addr 9090", "", "--grpc-addr"},
		{"--resolver oracle", "", "neither ledger nor none"},
		{"--token-store redis", "", "needs --redis"},
		{"--token-store disk", "", "is not memory"},
		{"--lock redis", "", "is not sql"},
		{"--lock sql --token-store memory", "", "needs --token-store sql"},
		{"--lock sql", "", "needs a --database"},
		{"--lock sql --database sqlite:x", "", "needs a --database"},
		{"--lock sql --database postgres://h/d --zookeeper h", "", "only one of them"},
		{"--durable-markers", "", "needs --zookeeper"},
		{"--marker-retention 0s", "", "not positive"},
		{"--redis-replicas 1", "", "without --redis"},
		{"--redis redis://127.0.0.1:1 --redis-replicas -1", "", "negative"},
		{"--zookeeper-auth u:p", "", "without --zookeeper"},
		{"--response-keys k1=short", "", "--response-keys"},
		{"--fingerprint-keys k1=short", "", "--fingerprint-keys"},
		{"--console-token-key c2VjcmV0LXNlY3JldA==", "", "32 or more"},
		{"--console-token-key secret!", "", "base64"},
		{"--accept-plain-responses", "", "without --response-keys"},
		{"--api-keys demo", "", "pair 1"},
		{"--api-keys a=b,a=c", "", "repeats"},
		{"--api-keys =", "", "pair 1"},
		{"--operators ada", "", "pair 1"},
		{"--operators a=x,a=y", "", "repeats"},
		{"--operators resolver=x", "", "not the name of a person"},
		{"--log-level loud", "", "log-level"},
		{"", "PAYMENTS_WAIT=soon", "PAYMENTS_WAIT"},
		{"", "PAYMENTS_DURABLE_MARKERS=maybe", "PAYMENTS_DURABLE_MARKERS"},
	}
	for _, tt := range tests {
		name, value, _ := strings.Cut(tt.env, "=")
		_, err := parseConfig(strings.Fields(tt.args), map[string]string{name: value})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want an error with %q", tt.args, tt.env, err, tt.want)
		}
	}
}

func TestSecretsAreNotInErrors(t *testing.T) {
	if _, err := parseConfig([]string{"--api-keys", "secret-1=a, secret-2"}, nil); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v, want one without the token", err)
	}
	for _, flag := range []string{"--response-keys=k1=c2VjcmV0LXNlY3JldA==", "--fingerprint-keys=k1=c2VjcmV0LXNlY3JldA==", "--console-token-key=c2VjcmV0LXNlY3JldA==", "--zookeeper-auth=hidden:c2VjcmV0LXNlY3JldA=="} {
		if _, err := parseConfig([]string{flag}, nil); err == nil || strings.Contains(err.Error(), "c2Vj") || strings.Contains(err.Error(), "secret-secret") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("error %v, want one without what was secret", err)
		}
	}
}

func TestHelp(t *testing.T) {
	var help bytes.Buffer
	_, err := ParseConfig([]string{"--help"}, func(string) string { return "" }, &help)
	if !errors.Is(err, flag.ErrHelp) {
		t.Errorf("ParseConfig(--help) = %v, want ErrHelp", err)
	}
	for _, want := range []string{"--processor-latency", "(default 127.0.0.1:8080)", "PAYMENTS_"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help has no %q:\n%s", want, help.String())
		}
	}
}

// An embedded ledger cannot be claimed, so a second instance with the same lock would start and pay.
func TestLockThatIsSharedAlone(t *testing.T) {
	for args, want := range map[string]bool{
		"--zookeeper h --token-store memory":                     true,
		"--redis redis://h --token-store memory":                 true,
		"--token-store memory":                                   false,
		"--zookeeper h --redis redis://h":                        false,
		"--zookeeper h --token-store memory --database sqlite:x": false,
		"--zookeeper h":                                          false, // the records are the ledger's, and ZooKeeper locks nothing
	} {
		c, err := parseConfig(strings.Fields(args), nil)
		if err != nil || c.lockIsSharedAlone() != want {
			t.Errorf("%s: shared alone = %t, %v, want %t", args, c.lockIsSharedAlone(), err, want)
		}
	}
}
