package zookeeper

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func TestParseConnectString(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in      string
		servers []string
		chroot  string
		bad     bool
	}{
		{in: "a:1", servers: []string{"a:1"}},
		{in: "a:1, b:2,c", servers: []string{"a:1", "b:2", "c"}},
		{in: "a:1,b:2/x/y", servers: []string{"a:1", "b:2"}, chroot: "/x/y"},
		{in: "[::1]:2181/", servers: []string{"[::1]:2181"}},
		{in: "", bad: true},
		{in: "/x", bad: true},
		{in: "a,,b", bad: true},
		{in: "a/x//y", bad: true},
		{in: "a/x/../y", bad: true},
		{in: "[::1]", servers: []string{"[::1]"}},
		{in: "a:2181/x,b:2181/x", bad: true}, // the chroot of two spellings, and so two locks
		{in: "a/x,b/x", bad: true},
		{in: "a/x,y", bad: true},
		{in: "a/x:1", bad: true},
		{in: "a:99999", bad: true},
		{in: "a:0", bad: true},
		{in: "a:", bad: true},
		{in: "[::1]:abc", bad: true},
		{in: "a: 2181", bad: true},
		{in: "a b:2181", bad: true},
		{in: "::1:2181", bad: true}, // an address, or an address and a port
		{in: ":2181", bad: true},
		{in: "[]:2181", bad: true},
		{in: " a:1,b:2/x \n", servers: []string{"a:1", "b:2"}, chroot: "/x"},
		{in: "a:1,", bad: true},
		{in: "a:1 /x y", bad: true},
		{in: "a/x\u00a0/y", bad: true},
		{in: "a,b,a:2181", bad: true},
		{in: "a:1,A:1", bad: true},
		{in: "a:1,a:2", servers: []string{"a:1", "a:2"}},
		{in: "a:1;b:2", bad: true},
		{in: "a;b", bad: true},
		{in: "u:p@a:1", bad: true},
		{in: "zk://a:1", bad: true},
		{in: "[a:2181]", bad: true},
		{in: "[fe80::1%eth0]:1", servers: []string{"[fe80::1%eth0]:1"}},
		{in: "zk_1.example-2.org:2181", servers: []string{"zk_1.example-2.org:2181"}},
	} {
		servers, chroot, err := ParseConnectString(tt.in)
		if (err != nil) != tt.bad || !tt.bad && (!slices.Equal(servers, tt.servers) || chroot != tt.chroot) {
			t.Errorf("ParseConnectString(%q) = %q, %q, %v; want %q, %q", tt.in, servers, chroot, err, tt.servers, tt.chroot)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	given := Config{Servers: []string{"a", "[::1]", "c:9"}}
	cfg, err := given.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a:2181", "[::1]:2181", "c:9"}; !slices.Equal(cfg.Servers, want) {
		t.Errorf("Servers = %q, want %q", cfg.Servers, want)
	}
	if given.Servers[0] != "a" {
		t.Error("the caller's slice was changed")
	}
	if path := cfg.lockPath(newID()); len(path) != len("/lock/")+65 || !strings.HasPrefix(path, "/lock/") {
		t.Errorf("lockPath() = %q", path)
	}
	if cfg.OpenTimeout != 10*time.Second || cfg.SessionTimeout != 10*time.Second || cfg.Logger == nil {
		t.Errorf("OpenTimeout = %v, SessionTimeout = %v, Logger = %v", cfg.OpenTimeout, cfg.SessionTimeout, cfg.Logger)
	}
	if want := (RetryPolicy{First: 100 * time.Millisecond, Max: 5 * time.Second}); cfg.Retry != want {
		t.Errorf("Retry = %+v, want %+v", cfg.Retry, want)
	}
	given.Chroot = "/a/b/"
	if cfg, err := given.withDefaults(); err != nil || cfg.Chroot != "/a/b" {
		t.Errorf("Chroot = %q, %v; want /a/b", cfg.Chroot, err)
	}
	given.SessionTimeout = time.Minute
	if cfg, err := given.withDefaults(); err != nil || cfg.OpenTimeout != time.Minute {
		t.Errorf("OpenTimeout = %v, %v; want that of the session", cfg.OpenTimeout, err)
	}
	given.ACL = zk.WorldACL(zk.PermRead)
	if cfg, err := given.withDefaults(); err != nil || !slices.Equal(cfg.ACL, given.ACL) {
		t.Errorf("ACL = %v, %v; want the given one", cfg.ACL, err)
	}
	given.ACL = nil
	if cfg, err := given.withDefaults(); err != nil || !slices.Equal(cfg.ACL, zk.WorldACL(zk.PermAll)) {
		t.Errorf("ACL = %v, %v; want the world's without an identity", cfg.ACL, err)
	}
	given.TLS = &tls.Config{Certificates: []tls.Certificate{{}}}
	if cfg, err := given.withDefaults(); err != nil || !slices.Equal(cfg.ACL, zk.AuthACL(zk.PermAll)) {
		t.Errorf("ACL = %v, %v; want that of the client's certificate alone", cfg.ACL, err)
	}
	secret := Credential{Scheme: "digest", Secret: []byte("user:s3cret")}
	if s := fmt.Sprint(secret, &secret, secret.LogValue()); strings.Contains(s, "s3cret") {
		t.Errorf("a credential prints as %s", s)
	}
}

func TestConfigThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"no servers":            func(c *Config) { c.Servers = nil },
		"an empty server":       func(c *Config) { c.Servers = []string{"a", ""} },
		"a negative time-out":   func(c *Config) { c.OpenTimeout = -1 },
		"a session of one tick": func(c *Config) { c.SessionTimeout, c.TickTime = time.Second, time.Second },
		"an old version of TLS": func(c *Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS11} },
		"a negative limit":      func(c *Config) { c.MaxLocksPerSession = -1 },
		"a list as the chroot":  func(c *Config) { c.Chroot = "/x,b:2181/x" },
		"a port as the chroot":  func(c *Config) { c.Chroot = "/x:2181" },
		"a chroot of 201 bytes": func(c *Config) { c.Chroot = "/" + strings.Repeat("x", 200) },
		"a port of 99999":       func(c *Config) { c.Servers = []string{"a:99999"} },
		"a server twice":        func(c *Config) { c.Servers = []string{"a", "a:2181"} },
		"a list in one server":  func(c *Config) { c.Servers = []string{"a,b"} },
		"a chroot with a space": func(c *Config) { c.Chroot = "/x " },
		"a bare IPv6 address":   func(c *Config) { c.Servers = []string{"::1:2181"} },
		"a root of 201 bytes":   func(c *Config) { c.Root = "/" + strings.Repeat("x", 200) },
		"a retry that shortens": func(c *Config) { c.Retry = RetryPolicy{First: time.Second, Max: time.Millisecond} },
	} {
		cfg := Config{Servers: []string{"a"}, OpenTimeout: time.Second}
		change(&cfg)
		if _, err := Open(bounded(t), cfg); err == nil || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: Open() = %v, want an error of the configuration", name, err)
		}
	}
}

func TestConfigAtItsLimits(t *testing.T) {
	t.Parallel()
	cfg := Config{
		Servers: []string{"a"}, Root: "/" + strings.Repeat("x", 199),
		Retry: RetryPolicy{First: time.Second, Max: time.Second},
	}
	if _, err := cfg.withDefaults(); err != nil {
		t.Errorf("withDefaults() = %v", err)
	}
}
