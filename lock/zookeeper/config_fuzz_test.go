package zookeeper

import (
	"strings"
	"testing"
)

func FuzzParseConnectString(f *testing.F) {
	f.Add("a:1,b:2/c/d")
	f.Add(" , /")
	f.Add("[::1]:2181/../x")
	f.Fuzz(func(t *testing.T, s string) {
		servers, chroot, err := ParseConnectString(s)
		if err != nil {
			return
		}
		if len(servers) == 0 || strings.HasSuffix(chroot, "/") {
			t.Errorf("ParseConnectString(%q) = %q, %q", s, servers, chroot)
		}
		if _, err := (Config{Servers: servers, Chroot: chroot}).withDefaults(); err != nil {
			t.Errorf("ParseConnectString(%q) is accepted, and Open refuses it: %v", s, err)
		}
	})
}
